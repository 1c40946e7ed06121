"""Tables of Markdown, for the pages that are written by the code."""

from collections.abc import Iterable, Sequence

WRITTEN_BY = "<!-- Written by `make docs`. Edit the code that it describes, not this page. -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells may hold any text."""
    lines = [header, ["---"] * len(header), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
