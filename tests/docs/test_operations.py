"""The page for operators names log lines, metrics and settings that exist."""

import re
from functools import cache

import pytest
from tests.docs.snippets import ROOT

from braidlog.runtime.settings import fields

PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
CODE = re.compile(r"`([^`\n]+)`")
METRIC = re.compile(r"`(braidlog_[a-z_]+)(?:\{[^`]*\})?`")
SETTING = re.compile(r"[a-z]+(?:_[a-z]+)+_(?:ms|s|bytes|month|max|url|listen|policy)")
OTHER_NAMES = {"docs/shuffle.md", "docs/simulator.md", "docs/metrics.md"}
"""Pages with names of another kind: settings of shuffles, names in the code, metrics."""
OF_KAFKA = {"throttle_time_ms"}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@cache
def sources() -> str:
    """All sources, with strings that stand on several lines joined."""
    files = sorted((ROOT / "src").rglob("*.py"))
    return re.sub(r'"\s+f?"', "", "".join(path.read_text(encoding="utf-8") for path in files))


def failures() -> list[list[str]]:
    table = page("docs/operations.md").partition("## What to do when")[2]
    rows = [row.strip("| \n").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    return rows[1:]


@pytest.mark.parametrize("row", failures(), ids=lambda row: row[0])
def test_log_lines_and_errors_are_in_the_code(row: list[str]) -> None:
    lines = [name for name in CODE.findall(row[1]) if " " in name and not name.startswith("braid ")]
    errors = [text.strip("… ") for text in re.findall(r"\*([^*]+)\*", row[0] + row[1])]
    missing = [text for text in lines + errors if text not in sources()]
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_metrics_are_in_the_reference(name: str) -> None:
    reference = page("docs/metrics.md")
    missing = [metric for metric in METRIC.findall(page(name)) if f"`{metric}" not in reference]
    assert not missing


@pytest.mark.parametrize("name", [name for name in PAGES if name not in OTHER_NAMES])
def test_settings_exist(name: str) -> None:
    names = {text.partition("=")[0] for text in CODE.findall(page(name))}
    missing = {text for text in names if SETTING.fullmatch(text) and text not in fields()}
    missing = {text for text in missing if not text.startswith("braidlog_")} - OF_KAFKA
    assert not missing
