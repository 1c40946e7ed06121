"""The pages that are written from the code say what the code says now."""

import pytest
from tests.docs.generate import generated_pages
from tests.docs.snippets import ROOT


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return generated_pages()


@pytest.mark.parametrize("page", ["docs/commands.md", "docs/configuration.md", "docs/metrics.md"])
def test_a_generated_page_is_current(page: str, pages: dict[str, str]) -> None:
    assert (ROOT / page).read_text(encoding="utf-8") == pages[page], f"{page} is out of date: run `make docs`"
