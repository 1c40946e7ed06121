"""The rooms and what each may import: the architecture, as a test."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "braidlog"

PURE = {"records", "wire", "scheduling", "compaction", "cost"}
"""Bytes and numbers in, bytes and numbers out. They do not even import `runtime`."""

BELOW_AGENT = {"runtime", *PURE, "objects", "cache", "writing", "control"}

MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "records": set(),
    "wire": {"records"},
    "scheduling": set(),
    "compaction": {"records"},
    "cost": set(),
    "objects": {"runtime", "records", "cost"},
    "cache": {"runtime", "objects"},
    "writing": {"runtime", "objects", "cache", "scheduling"},
    "control": {"runtime", "objects", "compaction", "records"},
    "agent": BELOW_AGENT,
    "spark": BELOW_AGENT,
    "cli": {*BELOW_AGENT, "agent", "spark", "console", "sim"},
    "console": {*BELOW_AGENT, "agent", "spark", "cli", "sim"},
    "sim": {*BELOW_AGENT, "agent", "spark", "cli", "console"},
}

IMPURE_MODULES = {"asyncio", "datetime", "obstore", "os", "random", "secrets", "socket", "threading", "time", "uvloop"}
"""What no pure room may touch: clocks, randomness, sockets, files, stores."""

CLIENT_LIBRARIES = {"confluent_kafka", "aiokafka", "kafka"}
"""Kafka clients are for the command line and the tests; the log itself must not need one."""


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE.parent)}:{self.line} imports {self.module}"

    @property
    def room(self) -> str | None:
        """The room of ours that is imported, or None for what is not ours (or is the package itself)."""
        parts = self.module.split(".")
        return parts[1] if parts[0] == "braidlog" and len(parts) > 1 and (SOURCE / parts[1]).is_dir() else None


def imports_of(path: Path, source: str | None = None) -> Iterator[Import]:
    package = ["braidlog", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8") if source is None else source, str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield Import(path, node.lineno, module)
            for alias in node.names:  # `from braidlog import agent` names a room too
                yield Import(path, node.lineno, f"{module}.{alias.name}")


def rooms() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def modules(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def test_every_room_is_in_the_table() -> None:
    assert set(rooms()) <= set(MAY_IMPORT)


def test_table_has_no_cycle_below_what_people_touch() -> None:
    seen: list[str] = []
    waiting = {room: needs for room, needs in MAY_IMPORT.items() if room not in {"cli", "console", "sim"}}
    while waiting:
        free = [room for room, needs in waiting.items() if needs <= set(seen)]
        assert free, f"a cycle among {sorted(waiting)}"
        for room in free:
            seen.append(room)
            del waiting[room]


@pytest.mark.parametrize("room", rooms())
def test_room_imports_only_what_the_table_allows(room: str) -> None:
    allowed = {room, *MAY_IMPORT[room]}
    wrong = [str(i) for path in modules(room) for i in imports_of(path) if i.room is not None and i.room not in allowed]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", sorted(PURE & set(rooms())))
def test_pure_room_touches_no_outside_world(room: str) -> None:
    wrong = [str(i) for path in modules(room) for i in imports_of(path) if i.module.partition(".")[0] in IMPURE_MODULES]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_needs_a_kafka_client() -> None:
    wrong = [
        str(i)
        for room in rooms()
        if room not in {"cli", "console"}
        for path in modules(room)
        for i in imports_of(path)
        if i.module.partition(".")[0] in CLIENT_LIBRARIES
    ]
    assert not wrong, "\n".join(wrong)


def test_relative_nested_and_type_checking_imports_are_seen() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from ...wire import messages
def f():
    import braidlog.cli
    from braidlog import control
"""
    found = {i.room for i in imports_of(SOURCE / "agent" / "apis" / "example.py", source)}
    assert found == {None, "wire", "cli", "control"}
