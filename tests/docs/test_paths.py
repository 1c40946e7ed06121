"""Every path, module and link that a page names is there."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.docs.snippets import ROOT

SOURCE = ROOT / "src" / "braidlog"
ROOMS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "bench/README.md", ROOT / "examples/README.md"]
)

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FOLDERS = ("src/", "tests/", "bench/", "docs/", "examples/", ".ci/", *(f"{room}/" for room in ROOMS))
MODULE = re.compile(rf"(?:braidlog\.)?(?:{'|'.join(ROOMS)})(?:\.\w+)+")
OF_SPARK = re.compile(r"spark\.(?!shuffle|source|sink|session)\w+.*|spark\.shuffle(\.[a-z]+[A-Z]\w*)+(\.enabled)?")
"""Settings and calls of Spark itself."""
OF_KAFKA = {"node.id"}
"""Configs of Kafka whose names begin like a room of ours."""


def named_by(text: str) -> Iterator[str]:
    """What a page has in backticks, outside of its snippets."""
    yield from (match[1].strip() for match in CODE.finditer(FENCE.sub("", text)))


def is_path(name: str) -> bool:
    return name.startswith(FOLDERS) or bool(re.fullmatch(r"\w+\.py", name))


def path_is_there(name: str) -> bool:
    clean = name.partition(" ")[0].rstrip("/")
    if "/" not in clean:
        return any(ROOT.glob(f"src/**/{clean}")) or any(ROOT.glob(f"[bte]*/**/{clean}"))
    return (ROOT / clean).exists() or (SOURCE / clean).exists()


@cache
def module_is_there(name: str) -> bool:
    """Whether a dotted name is a package or a module of ours, or something that one of them defines."""
    folder, parts = SOURCE, name.removeprefix("braidlog.").split(".")
    while parts and (folder / parts[0]).is_dir():
        folder /= parts.pop(0)
    if not parts:
        return True
    module = folder / f"{parts[0]}.py"
    if module.is_file():
        parts.pop(0)
    else:
        module = folder / "__init__.py"
    return not parts or defines(module, parts[0])


def defines(module: Path, name: str) -> bool:
    text = module.read_text(encoding="utf-8")
    return bool(re.search(rf"^(?:(?:async )?def|class) {name}\b|^{name}\b.* = |import {name}$", text, re.MULTILINE))


def anchors(page: Path) -> set[str]:
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    missing = []
    for name in named_by(page.read_text(encoding="utf-8")):
        if is_path(name):
            if not any(mark in name for mark in "<*…") and "NN" not in name and not path_is_there(name):
                missing.append(name)
        elif (
            MODULE.fullmatch(name)
            and name not in OF_KAFKA
            and not OF_SPARK.fullmatch(name)
            and not module_is_there(name)
        ):
            missing.append(name)
    assert not missing, f"not there: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not anchor or anchor[1:] in anchors(there), f"{target}{anchor}"


@pytest.mark.parametrize("file", ["Makefile", "pyproject.toml", ".ci/run"])
def test_modules_in_build_files_are_there(file: str) -> None:
    names = re.findall(rf"\bbraidlog\.(?:{'|'.join(ROOMS)})(?:\.\w+)+", (ROOT / file).read_text(encoding="utf-8"))
    assert not [name for name in names if not module_is_there(name)]


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("control.log.sequencer", True),
        ("braidlog.serve", True),
        ("runtime.settings.load_settings", True),
        ("control.log", True),
        ("control.log.nothing", False),
        ("nowhere.at.all", False),
    ],
)
def test_modules_are_told_from_what_is_none(name: str, is_there: bool) -> None:
    assert module_is_there(name) is is_there
