"""Every snippet of README and docs does what its page says, or says why nobody can try it here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.reader import Reader
from tests.docs.snippets import RUN, SHOWN, Snippet, commands, pages, parse, snippets_of

ALL = {page: snippets_of(page) for page in pages()}


def some(page: str, *, spark: bool) -> list[Snippet]:
    return [snippet for snippet in ALL[page] if snippet.is_run and snippet.needs_spark is spark]


PLAIN_PAGES = [page for page in ALL if some(page, spark=False)]
SPARK_PAGES = [page for page in ALL if some(page, spark=True)]
SLOW_PAGES = {"docs/simulator.md"}
"""Simulating a cluster takes seconds."""


@pytest.fixture
def reader(clean_places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Each page stands alone, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path, clean_places)


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW_PAGES else []) for page in PLAIN_PAGES]
)
def test_what_a_page_shows_works(page: str, reader: Reader) -> None:
    for snippet in some(page, spark=False):
        reader.attempt(snippet)


@pytest.fixture(scope="module")
def session_that_ends() -> Iterator[None]:
    """Stops the Spark session that the pages made: other tests want theirs with other settings."""
    yield
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)  # a JVM takes minutes to start where others use the machine
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("session_that_ends")
@pytest.mark.parametrize("page", SPARK_PAGES)
def test_what_a_page_shows_of_spark_works(page: str, reader: Reader) -> None:
    for snippet in some(page, spark=True):
        reader.attempt(snippet)


@pytest.mark.parametrize("page", ALL)
def test_every_snippet_is_run_or_says_why_not(page: str) -> None:
    for snippet in ALL[page]:
        where = f"{page}:{snippet.line}"
        assert snippet.language in RUN | SHOWN, f"{where}: name the language, or `text` for what nobody would run"
        is_tried = page in PLAIN_PAGES + SPARK_PAGES and snippet.is_run
        assert is_tried or snippet.reason_not_run or snippet.language in SHOWN, where
        assert not (snippet.reason_not_run and snippet.language in SHOWN), f"{where}: nobody expects it to be run"


PAGE = """
```python
one = 1
```

<!-- not run: needs AWS -->
```sh
aws s3 ls
```

<!-- python
hidden = 2
-->
<!-- output varies -->
```console
$ echo a \\
    b
a b
$ true
```

```text
a drawing
```
"""


def test_snippets_are_found_with_their_remarks() -> None:
    first, second, third, fourth, fifth = parse("README.md", PAGE)
    assert (first.language, first.text, first.line, first.is_run) == ("python", "one = 1\n", 3, True)
    assert (second.reason_not_run, second.is_run) == ("needs AWS", False)
    assert (third.language, third.text, third.is_run) == ("python", "hidden = 2\n", True)
    assert (fourth.output_varies, fourth.is_run) == (True, True)
    assert commands(fourth) == [("echo a      b", ["a b"]), ("true", [])]
    assert (fifth.language, fifth.is_run) == ("text", False)
