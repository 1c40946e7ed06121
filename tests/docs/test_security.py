"""The page about security lists what the code asks."""

from kio.schema.index import api_key_map
from tests.docs.snippets import ROOT

from braidlog.security.requirements import REQUIREMENTS, Requirement


def row(key: int, requirement: Requirement | None) -> str:
    name = "".join(part.capitalize() for part in api_key_map[key].split("_"))
    if requirement is None:
        return f"| {name} | | nothing |"
    ways = " or ".join(" and ".join(f"`{right}`" for right in way) for way in requirement.ways)
    return f"| {name} | {requirement.when} | {ways}{' (others are left out)' if requirement.is_silent else ''} |"


def test_the_table_of_rights_is_current() -> None:
    lines = (ROOT / "docs/security.md").read_text(encoding="utf-8").splitlines()
    wanted = [row(key, each) for key, asked in sorted(REQUIREMENTS.items()) for each in asked or (None,)]
    assert lines[-len(wanted) :] == wanted
