"""Reads records from standard input.

They are lines of text, or lines of JSON as `braid consume --format json` writes them.
"""

import binascii
import difflib
import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from braidlog.clients.errors import CommandError

RECORD_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 64 * 1024
BY_KEY = -1

BYTES_FIELDS = ("key", "value", "key_base64", "value_base64")
JSON_FIELDS = (*BYTES_FIELDS, "headers", "partition", "timestamp_ms")
IGNORED_FIELDS = ("topic", "offset")
"""Where a record was read from; ignored, because options say where it goes."""
HEADER_FIELDS = ("name", "value", "value_base64")


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = BY_KEY
    timestamp_ms: int | None = None


def split(stream: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Yield the pieces between delimiters as soon as they arrive.

    The last one needs no delimiter after it.
    """
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    rest = bytearray()
    while chunk := read(READ_BYTES):
        searched = max(0, len(rest) - len(delimiter) + 1)
        rest += chunk
        start = 0
        while (end := rest.find(delimiter, max(start, searched))) >= 0:
            yield bytes(rest[start:end])
            start = end + len(delimiter)
        del rest[:start]
        if len(rest) > RECORD_BYTES_MAX:
            raise CommandError(
                f"a record has more than {RECORD_BYTES_MAX} bytes", help="Is --delimiter what stands between records?"
            )
    if rest:
        yield bytes(rest)


@dataclass(frozen=True, slots=True)
class TextLines:
    """Parses lines of KEY DELIMITER VALUE, or of VALUE."""

    key_delimiter: bytes | None = None
    empty_is_null: bool = False
    common: Record = field(default_factory=lambda: Record(None))
    """What all records have in common: all but key and value."""

    def __call__(self, _number: int, line: bytes) -> Record:
        key: bytes | None = None
        value: bytes | None = line
        if self.key_delimiter is not None:
            before, found, after = line.partition(self.key_delimiter)
            if found:
                key, value = before, after
        if self.empty_is_null:
            key, value = key or None, value or None
        return Record(value, key, self.common.headers, self.common.partition, self.common.timestamp_ms)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Parses a JSON object per line. Fields that it leaves out come from the options."""

    common: Record = field(default_factory=lambda: Record(None))
    partition_is_fixed: bool = False

    def __call__(self, number: int, line: bytes) -> Record | None:
        if not line.strip():
            return None
        try:
            told = json.loads(line)
        except ValueError as error:
            _refuse(number, f"is not JSON: {error}")
        if not isinstance(told, dict):
            _refuse(number, "is not a JSON object")
        _check_names(number, told, (*JSON_FIELDS, *IGNORED_FIELDS))
        common = self.common
        partition = common.partition if self.partition_is_fixed else _whole(number, told, "partition", common.partition)
        timestamp_ms = common.timestamp_ms
        if (own_ms := _whole(number, told, "timestamp_ms", -1)) > 0:  # -1 stands for a record without a time
            timestamp_ms = own_ms
        headers = (*common.headers, *_headers(number, told.get("headers") or []))
        return Record(_data(number, told, "value"), _data(number, told, "key"), headers, partition, timestamp_ms)


def _refuse(number: int, why: str) -> NoReturn:
    raise CommandError(
        f"line {number} of the input {why}",
        help='A record is a line such as {"key": "a", "value": "1", "headers": [{"name": "h", "value": "x"}]}',
    )


def _check_names(number: int, told: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in told:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f": did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
            _refuse(number, f"has the unknown field {name!r}{guess}")


def _whole(number: int, told: dict[str, Any], name: str, otherwise: int) -> int:
    value = told.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 1 << 62:
        _refuse(number, f"has the {name} {value!r}, which is not a whole number")
    return value


def _data(number: int, told: dict[str, Any], name: str) -> bytes | None:
    """Give text as UTF-8, base64 as its bytes, and anything else as JSON."""
    encoded = told.get(f"{name}_base64")
    if encoded is not None:
        if told.get(name) is not None:
            _refuse(number, f"has {name} and {name}_base64")
        try:
            return b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            _refuse(number, f"has a {name}_base64 that is no base64")
    value = told.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _headers(number: int, told: Any) -> Iterator[tuple[str, bytes | None]]:
    if isinstance(told, dict):
        told = [{"name": name, "value": value} for name, value in told.items()]
    if not isinstance(told, list):
        _refuse(number, "has headers that are neither a list nor an object")
    for each in told:
        if not isinstance(each, dict) or not isinstance(each.get("name"), str):
            _refuse(number, "has a header without a name")
        _check_names(number, each, HEADER_FIELDS)
        yield each["name"], _data(number, each, "value")
