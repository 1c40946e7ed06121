"""Parses where to start and stop reading, like kcat's -o."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from braidlog.cli.output import say
from braidlog.clients.errors import WrongUsage
from braidlog.clients.timestamps import milliseconds

if TYPE_CHECKING:
    from confluent_kafka import Consumer, TopicPartition

OPTION = "--from"
HELP = "Use beginning, end, an offset such as 42, -10 for the last 10, s@TIME to start at, or e@TIME to stop at."


class Start(Enum):
    BEGINNING = auto()
    END = auto()
    OFFSET = auto()
    LAST = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Span:
    """The records to read of each partition."""

    start: Start = Start.BEGINNING
    number: int = 0
    """The offset, the count or the time that belongs to `start`."""
    stop_ms: int | None = None
    """Records at this time or later are not read."""


def parse_span(texts: list[str]) -> Span:
    """Parse one or more places: at most one to start at, and one to stop at."""
    start: tuple[Start, int] | None = None
    stop_ms: int | None = None
    for text in texts:
        if text.startswith("e@"):
            if stop_ms is not None:
                raise WrongUsage("there are two times to stop at", help=HELP)
            stop_ms = milliseconds(OPTION, text[2:])
            continue
        if start is not None:
            raise WrongUsage("there are two places to start at", help=HELP)
        start = _parse_start(text)
    kind, number = start or (Start.BEGINNING, 0)
    return Span(kind, number, stop_ms)


def _parse_start(text: str) -> tuple[Start, int]:
    if text in {"beginning", "end"}:
        return (Start.BEGINNING if text == "beginning" else Start.END), 0
    if text.startswith("s@"):
        return Start.TIME, milliseconds(OPTION, text[2:])
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and int(digits) < 1 << 62):
        raise WrongUsage(f"{OPTION} {text!r} is not a place to start", help=HELP)
    return (Start.LAST if text.startswith("-") else Start.OFFSET), int(digits)


def find_starts(client: "Consumer", places: list["TopicPartition"], span: Span) -> list["TopicPartition"]:
    """Give the same partitions, each with the offset to start at."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    if span.start is Start.TIME:
        offsets = offsets_at(client, places, span.number)
        return [TopicPartition(p.topic, p.partition, OFFSET_END if at < 0 else at) for p, at in offsets]
    if span.start in (Start.BEGINNING, Start.END):
        offset = OFFSET_BEGINNING if span.start is Start.BEGINNING else OFFSET_END
        return [TopicPartition(place.topic, place.partition, offset) for place in places]
    return [TopicPartition(place.topic, place.partition, _counted(client, place, span)) for place in places]


def _counted(client: "Consumer", place: "TopicPartition", span: Span) -> int:
    low, high = bounds(client, place)
    if span.start is Start.LAST:
        return max(low, high - span.number)
    nearest = min(max(low, span.number), high)
    if nearest != span.number:
        say(f"{place.topic}/{place.partition} has the offsets [{low}, {high}): starting at {nearest}")
    return nearest


def bounds(client: "Consumer", place: "TopicPartition") -> tuple[int, int]:
    """Give a partition's first offset and its end offset."""
    from braidlog.clients.kafka_client import CALL_TIMEOUT_S

    low, high = client.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S)
    return low, high


def offsets_at(
    client: "Consumer", places: list["TopicPartition"], moment_ms: int
) -> list[tuple["TopicPartition", int]]:
    """Find the offset of each partition's first record at `moment_ms` or later.

    The offset is -1 if there is none.
    """
    from confluent_kafka import KafkaException, TopicPartition

    from braidlog.clients.kafka_client import CALL_TIMEOUT_S

    asked = [TopicPartition(place.topic, place.partition, moment_ms) for place in places]
    found = client.offsets_for_times(asked, timeout=CALL_TIMEOUT_S)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return [(place, place.offset) for place in found]
