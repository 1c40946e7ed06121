"""The rooms and what each may import: the architecture, as a test."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "braidlog"

PURE = {"records", "wire", "scheduling", "compaction", "cost", "security"}
"""Bytes and numbers in, bytes and numbers out. They do not even import `runtime`."""

MAY_IMPORT: dict[str, set[str]] = {
    "runtime": set(),
    "records": set(),
    "wire": set(),
    "scheduling": set(),
    "compaction": {"records"},
    "cost": set(),
    "security": set(),
    "configs": {"runtime"},
    "objects": {"runtime", "cost"},
    "cache": {"runtime", "objects"},
    "writing": {"runtime", "objects", "records", "scheduling", "cost", "control"},
    "control": {"runtime", "objects", "configs", "compaction", "records", "security"},
    "jobs": {"runtime", "objects", "compaction", "records", "control"},
    "agent": {
        *("runtime", "objects", "records", "wire", "configs", "cost", "security"),
        *("cache", "writing", "control", "jobs"),
    },
    "spark": {"runtime", "objects", "records", "wire", "configs", "cost", "cache", "writing", "control", "jobs"},
    "clients": {"runtime", "wire", "control"},
    "console": {"runtime", "clients", "cost", "wire", "control"},
    "node": {"runtime", "configs", "objects", "cost", "scheduling", "writing", "control", "jobs", "agent", "spark"},
    "cli": {
        *(
            "runtime",
            "clients",
            "console",
            "objects",
            "wire",
            "cost",
            "cache",
            "control",
            "agent",
            "spark",
            "node",
            "sim",
        ),
    },
    "sim": {
        *("runtime", "objects", "records", "wire", "scheduling", "compaction", "cache", "writing", "control", "jobs"),
        "agent",
    },
}
"""Rooms, and the other rooms that each may import."""

TOP = "."
"""The modules at the top of a room, outside its sub-rooms."""

WITHIN: dict[str, dict[str, set[str]]] = {
    "runtime": {
        TOP: set(),
        "rpc": {TOP},
    },
    "writing": {
        TOP: {"journal", "shards"},
        "journal": {TOP},
        "shards": {TOP, "journal"},
    },
    "control": {
        TOP: {"groups", "interface", "jobs", "journals", "log", "metadata", "security", "transactions"},
        "restoring": {TOP, "interface", "log", "metadata"},
        "groups": {TOP, "groups.classic", "groups.consumer", "interface", "metadata"},
        "groups.classic": {"groups", "interface"},
        "groups.consumer": {"groups", "groups.classic", "interface"},
        "interface": set(),
        "jobs": {TOP, "interface", "log", "metadata"},
        "journals": {TOP, "interface", "jobs", "log", "metadata"},
        "log": {TOP, "interface", "journals", "metadata", "transactions"},
        "metadata": set(),
        "security": {TOP, "interface", "metadata"},
        "transactions": {TOP, "groups", "interface", "log", "metadata"},
    },
    "agent": {
        TOP: {
            "apis",
            "apis.cluster",
            "apis.configs",
            "apis.groups",
            "apis.records",
            "apis.security",
            "apis.topics",
            "apis.transactions",
            "cluster",
            "connections",
            "entrance",
            "read_path",
            "ripcord",
        },
        "apis": {
            "apis.cluster",
            "apis.configs",
            "apis.groups",
            "apis.records",
            "apis.security",
            "apis.topics",
            "apis.transactions",
            "cluster",
            "connections",
            "entrance",
            "ripcord",
        },
        "apis.cluster": {"apis", "cluster"},
        "apis.configs": {"apis", "cluster"},
        "apis.groups": {"apis", "cluster", "ripcord"},
        "apis.records": {"apis", "cluster", "connections", "read_path", "ripcord"},
        "apis.security": {"apis", "cluster"},
        "apis.topics": {"apis", "apis.configs", "cluster", "connections", "ripcord"},
        "apis.transactions": {"apis", "cluster", "ripcord"},
        "cluster": {"connections"},
        "connections": {"entrance", "read_path"},
        "entrance": {"cluster"},
        "read_path": {"cluster", "connections"},
        "ripcord": {"cluster", "connections"},
    },
    "spark": {
        TOP: {"sink", "source"},
        "shuffle": {
            TOP,
            "shuffle.aggregate",
            "shuffle.columns",
            "shuffle.expiry",
            "shuffle.join",
            "shuffle.pipeline",
            "shuffle.service",
            "shuffle.tasks",
        },
        "shuffle.aggregate": {TOP, "shuffle", "shuffle.columns", "shuffle.tasks"},
        "shuffle.columns": {TOP},
        "shuffle.expiry": {TOP, "shuffle.aggregate", "shuffle.tasks"},
        "shuffle.join": {TOP, "shuffle.columns"},
        "shuffle.pipeline": {TOP, "shuffle", "shuffle.aggregate", "shuffle.columns", "shuffle.tasks", "sink", "source"},
        "shuffle.service": {TOP, "shuffle"},
        "shuffle.tasks": {TOP, "shuffle", "shuffle.service"},
        "sink": {TOP},
        "source": {TOP},
    },
    "cli": {
        TOP: {"cluster", "demo", "records", "servers", "tools"},
        "cluster": {TOP, "servers"},
        "demo": {TOP, "cluster"},
        "records": {TOP},
        "servers": {TOP},
        "tools": {TOP},
    },
    "sim": {
        TOP: {"checks", "clients", "mistakes", "scenarios", "virtual"},
        "checks": {TOP},
        "clients": {TOP, "virtual"},
        "mistakes": {"virtual"},
        "scenarios": {TOP},
        "virtual": set(),
    },
}
"""Rooms with sub-rooms, and for each sub-room what it may import of the rest of its room."""

DOORS: dict[tuple[str, str], set[str]] = {
    ("writing", "control"): {"interface"},
    ("jobs", "control"): {"interface"},
    ("spark", "control"): {TOP, "interface"},
    ("clients", "control"): {TOP, "interface"},
    ("console", "control"): {TOP, "interface"},
    ("cli", "control"): {TOP, "interface"},
}
"""The parts of another room that a room may import, where that is not all of them."""

MODULES_PER_FOLDER_MAX = 25
"""A folder with more modules than this needs sub-rooms."""

IMPURE_MODULES = {"asyncio", "datetime", "obstore", "os", "random", "secrets", "socket", "threading", "time", "uvloop"}
"""What no pure room may touch: clocks, randomness, sockets, files, stores."""

CLIENT_LIBRARIES = {"confluent_kafka", "aiokafka", "kafka"}
"""Kafka clients are for what people use and for the tests; the log itself must not need one."""


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCE.parent)}:{self.line} imports {self.module}"

    @property
    def folder(self) -> tuple[str, ...]:
        """The folder below `src/braidlog` that the module is in; empty for modules that are not ours."""
        package, *parts = self.module.split(".")
        if package != "braidlog":
            return ()
        while parts and not SOURCE.joinpath(*parts).is_dir():
            parts.pop()
        return tuple(parts)

    @property
    def room(self) -> str | None:
        """The room of ours that is imported, or None for modules outside all rooms."""
        return self.folder[0] if self.folder else None


def imports_of(path: Path, source: str | None = None) -> Iterator[Import]:
    package = ["braidlog", *path.relative_to(SOURCE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8") if source is None else source, str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:  # with its name, for `from braidlog import agent` imports a room
                yield Import(path, node.lineno, f"{module}.{alias.name}")


def rooms() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def modules(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def test_every_room_is_in_the_table() -> None:
    assert set(rooms()) == set(MAY_IMPORT)


def test_table_has_no_cycle_below_what_people_touch() -> None:
    seen: list[str] = []
    waiting = {room: needs for room, needs in MAY_IMPORT.items() if room not in {"cli", "sim"}}
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


@pytest.mark.parametrize("room", rooms())
def test_room_imports_all_that_the_table_allows(room: str) -> None:
    """An entry that nothing uses is a door that nobody would notice being used."""
    used = {i.room for path in modules(room) for i in imports_of(path)}
    assert MAY_IMPORT[room] <= used, MAY_IMPORT[room] - used


def part_of(folder: tuple[str, ...]) -> str:
    """The part of its room that a folder is, such as `groups.classic` for `control/groups/classic`."""
    return ".".join(folder[1:]) or TOP


def parts_of(room: str) -> set[str]:
    """The sub-rooms of a room at any depth, and its top."""
    return {part_of(path.parent.relative_to(SOURCE).parts) for path in modules(room)}


def test_every_room_with_sub_rooms_is_in_their_table() -> None:
    found = {room: parts for room in rooms() if len(parts := parts_of(room)) > 1}
    assert {room: set(table) for room, table in WITHIN.items()} == found


@pytest.mark.parametrize("room", WITHIN)
def test_sub_rooms_import_exactly_what_their_table_allows(room: str) -> None:
    used: dict[str, set[str]] = {part: set() for part in parts_of(room)}
    for path in modules(room):
        part = part_of(path.parent.relative_to(SOURCE).parts)
        used[part] |= {part_of(i.folder) for i in imports_of(path) if i.room == room} - {part}
    wrong = {part: sorted(found) for part, found in used.items() if found != WITHIN[room].get(part)}
    assert not wrong, f"these import other parts of {room} than the table says: {wrong}"


@pytest.mark.parametrize(("room", "other"), DOORS)
def test_room_enters_another_by_its_doors_alone(room: str, other: str) -> None:
    used = {part_of(i.folder) for path in modules(room) for i in imports_of(path) if i.room == other}
    assert used == DOORS[room, other]


def test_no_folder_has_more_modules_than_a_reader_takes_in() -> None:
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    counts = {str(folder.relative_to(SOURCE)): len(list(folder.glob("*.py"))) for folder in folders}
    assert not {folder: count for folder, count in counts.items() if count > MODULES_PER_FOLDER_MAX}


@pytest.mark.parametrize("room", sorted({*PURE, "configs"}))
def test_pure_room_touches_no_outside_world(room: str) -> None:
    wrong = [str(i) for path in modules(room) for i in imports_of(path) if i.module.partition(".")[0] in IMPURE_MODULES]
    assert not wrong, "\n".join(wrong)


def test_only_clients_need_a_kafka_client() -> None:
    wrong = [
        str(i)
        for room in rooms()
        if room not in {"cli", "clients", "console"}
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
