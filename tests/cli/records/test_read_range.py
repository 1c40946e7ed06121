"""Where to start and stop reading."""

import pytest

from braidlog.cli.records.read_range import Span, Start, parse_span
from braidlog.clients.errors import WrongUsage


@pytest.mark.parametrize(
    ("texts", "span"),
    [
        ([], Span()),
        (["beginning"], Span()),
        (["end"], Span(Start.END)),
        (["42"], Span(Start.OFFSET, 42)),
        (["-5"], Span(Start.LAST, 5)),
        (["s@1700000000000"], Span(Start.TIME, 1_700_000_000_000)),
        (["e@2023-11-14T22:13:20Z"], Span(stop_ms=1_700_000_000_000)),
        (["e@2", "s@1"], Span(Start.TIME, 1, 2)),
    ],
)
def test_places(texts: list[str], span: Span) -> None:
    assert parse_span(texts) == span


@pytest.mark.parametrize(
    "texts", [["middle"], ["1", "2"], ["e@1", "e@2"], ["s@soon"], ["--5"], ["s@"], [""], ["9" * 30]]
)
def test_places_that_are_none(texts: list[str]) -> None:
    with pytest.raises(WrongUsage):
        parse_span(texts)
