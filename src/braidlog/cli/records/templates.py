"""Formats records by templates like kcat's: `%p/%o: %k=%s\\n`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braidlog.cli.records.escapes import unescape
from braidlog.clients.errors import WrongUsage

if TYPE_CHECKING:
    from confluent_kafka import Message

    Piece = Callable[[Message], bytes]
    Cleaner = Callable[[bytes], bytes]

FIELDS = {
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "k": "key",
    "s": "value",
    "h": "headers",
    "T": "timestamp in ms",
    "K": "length of the key, -1 for none",
    "S": "length of the value, -1 for none",
    "R": "the same as 4 bytes",
    "%": "a percent sign",
}


@dataclass(frozen=True, slots=True)
class Template:
    """The pieces of the output, in order."""

    pieces: "tuple[Piece, ...]"

    def __call__(self, message: "Message") -> bytes:
        return b"".join([piece(message) for piece in self.pieces])


def parse_template(option: str, text: str, null: bytes = b"", clean: "Cleaner" = bytes) -> Template:
    """Parse a template.

    `null` stands for a missing key or value. `clean` makes data fit for where it is shown.
    """
    known = _fields(null, clean)
    pieces: list[Piece] = []
    literal, *rest = text.split("%")
    if literal:
        pieces.append(_constant(unescape(option, literal)))
    after_percent = iter(rest)
    for part in after_percent:
        if not part:  # two percent signs, and the text after the second
            pieces.append(_constant(b"%" + unescape(option, next(after_percent, ""))))
            continue
        if part[0] not in known:
            raise WrongUsage(f"{option} has the unknown field %{part[0]}", help=_help())
        pieces.append(known[part[0]])
        if part[1:]:
            pieces.append(_constant(unescape(option, part[1:])))
    if text.endswith("%") and len(text) - len(text.rstrip("%")) & 1:
        raise WrongUsage(f"{option} ends with a single %", help=_help())
    return Template(tuple(pieces))


def line_template(
    key_delimiter: bytes | None, record_delimiter: bytes, null: bytes = b"", clean: "Cleaner" = bytes
) -> Template:
    """Build the default template: values, with keys if there is a delimiter."""
    known = _fields(null, clean)
    key = () if key_delimiter is None else (known["k"], _constant(key_delimiter))
    return Template((*key, known["s"], _constant(record_delimiter)))


def _help() -> str:
    return "Fields: " + ", ".join(f"%{letter} {meaning}" for letter, meaning in FIELDS.items()) + "."


def _constant(data: bytes) -> "Piece":
    return lambda _message: data


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _number(number: Any) -> bytes:
    return str(number).encode()


def _fields(null: bytes, clean: "Cleaner") -> "dict[str, Piece]":
    def shown(data: Any) -> bytes:
        return null if data is None else clean(data)

    def headers(message: "Message") -> bytes:
        found: Any = message.headers() or []
        return b",".join(
            clean(name.encode()) + b"=" + (b"NULL" if data is None else clean(data)) for name, data in found
        )

    return {
        "t": lambda message: (message.topic() or "").encode(),
        "p": lambda message: _number(message.partition()),
        "o": lambda message: _number(message.offset()),
        "k": lambda message: shown(message.key()),
        "s": lambda message: shown(message.value()),
        "h": headers,
        "T": lambda message: _number(message.timestamp()[1]),
        "K": lambda message: _number(_length(_bytes(message.key()))),
        "S": lambda message: _number(_length(_bytes(message.value()))),
        "R": lambda message: _length(_bytes(message.value())).to_bytes(4, "big", signed=True),
    }


def _bytes(data: Any) -> bytes | None:
    found: bytes | None = data
    return found
