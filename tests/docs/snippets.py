"""The snippets of a page: what a reader would copy, and the remarks that say how it is tested.

A remark is an HTML comment right above a fence:

    <!-- not run: needs AWS -->     the snippet is shown only, for that reason
    <!-- output varies -->          its commands are run; what they print is an example

What a snippet takes for granted stands in a comment of its own, and is run with the others, in order:

    <!-- python
    df = spark.range(10)
    -->
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = frozenset({"python", "sh", "console", "toml", "sql"})
SHOWN = frozenset({"text"})
"""Drawings and formats: nobody would run them."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_REMARK = re.compile(r"<!-- (not run: (?P<reason>.+?)|(?P<varies>output varies)) -->\n\Z")
_HIDDEN = re.compile(r"^<!-- python\n(.*?)^-->$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snippet:
    page: str
    line: int
    """Where its first line is, counted from 1."""
    language: str
    text: str
    reason_not_run: str = ""
    output_varies: bool = False

    @property
    def is_run(self) -> bool:
        return self.language in RUN and not self.reason_not_run

    @property
    def needs_spark(self) -> bool:
        return self.language == "sql" or (self.language == "python" and _is_sparks(self.page, self.text))


def _is_sparks(page: str, text: str) -> bool:
    return page in {"docs/spark.md", "docs/shuffle.md"} or "spark" in text.lower()


def pages() -> list[str]:
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found]


def snippets_of(page: str) -> list[Snippet]:
    return list(parse(page, (ROOT / page).read_text(encoding="utf-8")))


def parse(page: str, text: str) -> Iterator[Snippet]:
    """All snippets of a page, in order, with what is hidden from its readers."""
    found = [(match, match[1], match[2]) for match in _FENCE.finditer(text)]
    found += [(match, "python", match[1]) for match in _HIDDEN.finditer(text)]
    for match, language, body in sorted(found, key=lambda each: each[0].start()):
        remark = _REMARK.search(text, 0, match.start())
        yield Snippet(
            page,
            text.count("\n", 0, match.start()) + 2,
            language,
            body,
            reason_not_run=(remark["reason"] or "") if remark else "",
            output_varies=bool(remark and remark["varies"]),
        )


def commands(snippet: Snippet) -> list[tuple[str, list[str]]]:
    """The commands of a shell snippet, each with the lines that the page shows as its output."""
    joined = snippet.text.replace("\\\n", " ")
    if snippet.language == "sh":
        return [(line, []) for line in joined.splitlines() if line.strip()]
    found: list[tuple[str, list[str]]] = []
    for line in joined.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found
