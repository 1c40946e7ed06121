"""The map of rooms in ARCHITECTURE.md says what the import table says."""

import re

import pytest
from tests.docs.snippets import ROOT
from tests.test_import_table import DOORS, MAY_IMPORT, PURE, TOP

ROW = re.compile(r"^\| `(?P<room>\w+)` \| (?P<holds>.+) \| (?P<needs>[^|]+) \|$", re.MULTILINE)
NEED = re.compile(r"(?P<top>top of )?`(?P<room>\w+)(?:\.(?P<part>\w+))?`")


def rows() -> dict[str, tuple[str, str]]:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.partition("| room | holds | may import |")[2].partition("\n\n")[0]
    return {row["room"]: (row["holds"], row["needs"]) for row in ROW.finditer(table)}


def test_every_room_is_on_the_map() -> None:
    assert set(rows()) == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_map_names_what_a_room_may_import(room: str) -> None:
    """All but the pure rooms may import `runtime`, which the map says once."""
    found = list(NEED.finditer(rows()[room][1]))
    implied = set() if room in {*PURE, "runtime"} else {"runtime"}
    assert {need["room"] for need in found} | implied == MAY_IMPORT[room]
    for other in MAY_IMPORT[room]:
        parts = {TOP if need["top"] else need["part"] for need in found if need["room"] == other} - {None}
        assert parts == DOORS.get((room, other), set())


def test_map_marks_the_pure_rooms() -> None:
    assert {room for room, (holds, _) in rows().items() if holds.endswith("Pure.")} == PURE
