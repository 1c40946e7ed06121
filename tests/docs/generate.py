"""Writes the pages that come from the code: `make docs`, or `python -m tests.docs.generate`."""

import asyncio
import sys

from tests.docs.commands import commands_page
from tests.docs.configuration import configuration_page
from tests.docs.metrics import metrics_page
from tests.docs.snippets import ROOT


def generated_pages() -> dict[str, str]:
    """The text of every such page, by its path."""
    return {
        "docs/commands.md": commands_page(),
        "docs/configuration.md": configuration_page(),
        "docs/metrics.md": asyncio.run(metrics_page()),
    }


def main() -> None:
    for page, text in generated_pages().items():
        (ROOT / page).write_text(text, encoding="utf-8")
        print(page, file=sys.stderr)


if __name__ == "__main__":
    main()
