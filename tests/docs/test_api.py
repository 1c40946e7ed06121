"""The page on the public API lists exactly the names that modules make public, and each can be imported."""

import importlib
import re

import pytest
from tests.docs.snippets import ROOT

SECTION = re.compile(r"^## `([\w.]+)`$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PUBLIC = {module: NAME.findall(body) for module, body in SECTION.findall(PAGE)}


def test_every_public_module_is_on_the_page() -> None:
    assert set(PUBLIC) == {"braidlog", "braidlog.spark", "braidlog.spark.shuffle", "pyspark_braidlog"}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_page_lists_what_the_module_makes_public(module: str) -> None:
    loaded = importlib.import_module(module)
    assert sorted(PUBLIC[module]) == sorted(loaded.__all__)
    for name in PUBLIC[module]:
        assert getattr(loaded, name) is not None
