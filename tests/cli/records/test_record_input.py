"""Records from lines of text and of JSON."""

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.cli.records.record_input import JsonLines, Record, TextLines, split
from braidlog.clients.errors import CommandError


@given(st.lists(st.binary(max_size=6).filter(lambda data: b"ab" not in data + b"a"), max_size=8), st.integers(1, 5))
def test_records_are_split_wherever_reads_end(pieces: list[bytes], read_bytes: int) -> None:
    class Trickle(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return super().read1(read_bytes)

    joined = b"".join(piece + b"ab" for piece in pieces)
    assert list(split(Trickle(joined), b"ab")) == pieces
    assert list(split(Trickle(joined + b"rest"), b"ab")) == [*pieces, b"rest"]


def test_lines_of_text() -> None:
    lines = TextLines(b"\t", empty_is_null=True, common=Record(None, None, (("h", b"v"),), 3, 7))
    assert lines(1, b"k\tv") == Record(b"v", b"k", (("h", b"v"),), 3, 7)
    assert (lines(1, b"k\t").value, lines(1, b"\tv").key, lines(1, b"").value) == (None, None, None)
    assert TextLines(b":")(1, b"k:") == Record(b"", b"k")
    assert TextLines(b":")(1, b"value") == Record(b"value")


def test_lines_of_json() -> None:
    def record(**told: Any) -> Record | None:
        return JsonLines()(1, json.dumps(told).encode())

    assert record(key="k", value="v", topic="other", offset=7) == Record(b"v", b"k")
    assert record(key="k", value=None) == record(key="k") == Record(None, b"k")
    assert record(value={"a": [1, "ä"]}) == Record('{"a":[1,"ä"]}'.encode())
    assert record(key_base64="/w==", value_base64="AA==") == Record(b"\0", b"\xff")
    assert record(value="", partition=2, timestamp_ms=5) == Record(b"", None, (), 2, 5)
    assert record(value="", timestamp_ms=-1) == Record(b"")
    headers = [{"name": "a", "value": "1"}, {"name": "b", "value": None}, {"name": "c", "value_base64": "/w=="}]
    assert record(value="", headers=headers) == Record(b"", None, (("a", b"1"), ("b", None), ("c", b"\xff")))
    assert record(value="", headers={"a": "1"}) == Record(b"", None, (("a", b"1"),))
    assert JsonLines()(1, b"  ") is None
    assert JsonLines(Record(None, partition=1), partition_is_fixed=True)(1, b'{"partition": 9}') == Record(
        None, partition=1
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"value", "line 4 of the input is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"vale": "1"}', "unknown field 'vale': did you mean 'value'?"),
        (b'{"qq": "1"}', "unknown field 'qq'; known are"),
        (b'{"value": "1", "value_base64": "AA=="}', "has value and value_base64"),
        (b'{"value_base64": "!"}', "is no base64"),
        (b'{"value_base64": 7}', "is no base64"),
        (b'{"partition": "1"}', "is not a whole number"),
        (b'{"partition": true}', "is not a whole number"),
        (b'{"headers": "a"}', "neither a list nor an object"),
        (b'{"headers": [{"value": "1"}]}', "a header without a name"),
    ],
)
def test_lines_that_are_no_records(line: bytes, says: str) -> None:
    with pytest.raises(CommandError) as caught:
        JsonLines()(4, line)
    assert says in str(caught.value)
