"""Templates for the output of records."""

from typing import Any

import pytest
from confluent_kafka import Message

from braidlog.cli.records.templates import line_template, parse_template
from braidlog.cli.visible import visible_bytes
from braidlog.clients.errors import WrongUsage


class FakeMessage:
    """A record as the client hands it over."""

    def __init__(self, key: bytes | None, value: bytes | None) -> None:
        self._key, self._value = key, value

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 42

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [("a", b"1"), ("b", None)]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000


def shown(template: str, key: bytes | None = b"k", value: bytes | None = b"value", null: bytes = b"") -> bytes:
    message: Message = FakeMessage(key, value)  # type: ignore[assignment]
    return parse_template("--output", template, null)(message)


def test_templates() -> None:
    assert shown(r"%t/%p %o\t%k=%s\n") == b"t/3 42\tk=value\n"
    assert shown("%T %K %S %h") == b"1700000000000 1 5 a=1,b=NULL"
    assert shown("%K %S[%k|%s]", None, None) == b"-1 -1[|]"
    assert shown("[%k|%s]", None, None, b"NULL") == b"[NULL|NULL]"
    assert shown("%R", value=b"four") == b"\0\0\0\4"
    assert shown("100%% of %s%%") == b"100% of value%"
    assert shown("%%s") == b"%s"
    message: Any = FakeMessage(b"k", b"\xff")
    assert line_template(b":", b"\0")(message) == b"k:\xff\0"
    assert line_template(None, b"\n")(message) == b"\xff\n"


@pytest.mark.parametrize(("template", "says"), [("%x", "unknown field %x"), ("%s%", "single %"), (r"%s\q", "escape")])
def test_templates_that_cannot_be_meant(template: str, says: str) -> None:
    with pytest.raises(WrongUsage, match=says):
        shown(template)


def test_data_is_cleaned_and_the_template_itself_is_not() -> None:
    message: Message = FakeMessage(b"\x1b[2J", b"\xff")  # type: ignore[assignment]
    shape = parse_template("--output", r"\e[1m%k\e[0m %s", clean=visible_bytes)
    assert shape(message) == b"\x1b[1m\\x1b[2J\x1b[0m \\xff"
    assert line_template(b"=", b"\n", clean=visible_bytes)(message) == b"\\x1b[2J=\\xff\n"
