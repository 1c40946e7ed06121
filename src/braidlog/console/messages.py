"""Messages of a topic: read from any place, filtered, and produced.

A message may hold anything. It travels to the page as JSON and is shown there as text, never as markup.
"""

from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from braidlog.clients.errors import CommandError, WrongUsage
from braidlog.clients.kafka_client import CALL_TIMEOUT_S, consumer, producer
from braidlog.clients.timestamps import milliseconds
from braidlog.clients.topics import no_such_topic
from braidlog.console.desk import Arguments, Desk
from braidlog.runtime.clock import Clock, SystemClock

MESSAGES_MAX = 200
PARTITIONS_MAX = 256
SCANNED_MAX = 50_000
SCAN_S_MAX = 4.0
SHOWN_BYTES_MAX = 8 << 10
"""More of a key or a value is not sent to the page; it can be downloaded."""
HEADERS_SHOWN_MAX = 32
HEADER_BYTES_MAX = 1 << 10
"""More of a header is not sent to the page. A message of a megabyte may consist of headers alone."""
POLL_S = 0.5
GATHER_S = 0.03
"""The client gathers messages for this long, even if there are no more."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What to read of a topic."""

    topic: str
    partitions: tuple[int, ...]
    start: str
    """tail, beginning, an offset, or @TIME."""
    count: int
    search: str


async def messages(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Give some messages of a topic, the newest first."""
    topic = arguments.name("topic")
    known = await desk.cluster.topics()
    if topic not in known:
        raise no_such_topic(topic)
    chosen = arguments.text("partition", "all")
    if chosen == "all":
        partitions = tuple(range(min(known[topic], PARTITIONS_MAX)))
    else:
        partitions = (arguments.number("partition", 0, most=known[topic] - 1),)
    reading = Reading(
        topic,
        partitions,
        arguments.text("from", "tail") or "tail",
        arguments.number("count", 50, least=1, most=MESSAGES_MAX),
        arguments.text("q"),
    )
    rows, scanned = await desk.cluster.run(_read, desk.cluster.bootstrap, reading, desk.clock)
    return {
        "topic": topic,
        "rows": rows,
        "scanned": scanned,
        "partition_count": known[topic],
        "left_out": max(0, known[topic] - PARTITIONS_MAX) if chosen == "all" else 0,
    }


def _client(bootstrap: str) -> Any:
    return consumer(
        bootstrap,
        {
            # The client wants a group name, though nothing is shared and nothing is committed.
            "group.id": "braid-console",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "fetch.message.max.bytes": 1 << 20,
            "queued.max.messages.kbytes": 16 << 10,
        },
    )


def _read(bootstrap: str, reading: Reading, clock: Clock) -> tuple[list[dict[str, Any]], int]:
    client = _client(bootstrap)
    try:
        ends = {}
        places = []
        for place, start, end in _starts(client, reading):
            if start < end:
                ends[place] = end
                places.append((place, start))
        return _scan(client, reading, dict(places), ends, clock)
    finally:
        client.close()


def _starts(client: Any, reading: Reading) -> list[tuple[int, int, int]]:
    """Find for each partition where to start, and its end."""
    from confluent_kafka import TopicPartition

    moment_ms = milliseconds("from=@", reading.start[1:]) if reading.start.startswith("@") else None
    if moment_ms is None and reading.start not in {"tail", "beginning"} and not reading.start.isdecimal():
        raise WrongUsage(
            f"from={reading.start!r} is not a place", help="Use tail, beginning, an offset, or @2026-07-31T12:00:00Z."
        )
    found = []
    at = {}
    if moment_ms is not None:
        asked = [TopicPartition(reading.topic, number, moment_ms) for number in reading.partitions]
        at = {place.partition: place.offset for place in client.offsets_for_times(asked, timeout=CALL_TIMEOUT_S)}
    for number in reading.partitions:
        low, high = client.get_watermark_offsets(TopicPartition(reading.topic, number), timeout=CALL_TIMEOUT_S)
        if reading.start == "tail":
            # A filter looks further back than what is shown.
            back = reading.count if not reading.search else max(1, SCANNED_MAX // len(reading.partitions))
            start = max(low, high - back)
        elif reading.start == "beginning":
            start = low
        elif moment_ms is not None:
            start = at.get(number, -1) if at.get(number, -1) >= 0 else high
        else:
            start = min(max(low, int(reading.start)), high)
        found.append((number, start, high))
    return found


def _scan(
    client: Any, reading: Reading, starts: dict[int, int], ends: dict[int, int], clock: Clock
) -> tuple[list[dict[str, Any]], int]:
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    rows: list[dict[str, Any]] = []
    if not starts:
        return rows, 0
    client.assign([TopicPartition(reading.topic, number, offset) for number, offset in starts.items()])
    open_places, scanned = set(starts), 0
    from_tail = reading.start == "tail"
    deadline_s = clock.monotonic_s() + SCAN_S_MAX
    while open_places and scanned < SCANNED_MAX and clock.monotonic_s() < deadline_s:
        if not from_tail and len(rows) >= reading.count:
            break
        for message in client.consume(500, timeout=GATHER_S):
            place, offset = message.partition(), message.offset()
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                open_places.discard(place)
                continue
            if offset + 1 >= ends[place]:
                open_places.discard(place)
            scanned += 1
            if _matches(message, reading.search):
                rows.append(row_of(message))
                if from_tail and len(rows) > 4 * reading.count:
                    rows = sorted(rows, key=_newest, reverse=True)[: reading.count]
    if from_tail:
        return sorted(rows, key=_newest, reverse=True)[: reading.count], scanned
    return rows[: reading.count], scanned


def _newest(row: dict[str, Any]) -> tuple[int, int]:
    return row["timestamp_ms"], row["offset"]


def _matches(message: Any, search: str) -> bool:
    if not search:
        return True
    wanted = search.encode()
    pieces = [message.key(), message.value()]
    for name, value in message.headers() or []:
        pieces += [name.encode(), value]
    return any(piece is not None and wanted in piece for piece in pieces)


def shown(data: bytes | None, bytes_max: int = SHOWN_BYTES_MAX) -> dict[str, Any]:
    """Put bytes into JSON: as text where they are text, otherwise as base64.

    Long ones are cut off.
    """
    if data is None:
        return {"kind": "null", "bytes": 0}
    part = data[:bytes_max]
    cut = len(data) > len(part)
    for drop in range(4 if cut else 1):  # the cut may have hit the middle of a character
        try:
            text = part[: len(part) - drop].decode()
        except UnicodeDecodeError:
            continue
        return {"kind": "text", "text": text, "bytes": len(data), "cut": cut}
    return {"kind": "base64", "text": b64encode(part).decode(), "bytes": len(data), "cut": cut}


def row_of(message: Any) -> dict[str, Any]:
    """Put a message into JSON, within limits, however large it is."""
    headers = message.headers() or []
    return {
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "key": shown(message.key()),
        "value": shown(message.value()),
        "headers": [
            {"name": name[:HEADER_BYTES_MAX], "value": shown(value, HEADER_BYTES_MAX)}
            for name, value in headers[:HEADERS_SHOWN_MAX]
        ],
        "headers_left_out": max(0, len(headers) - HEADERS_SHOWN_MAX),
    }


async def download(desk: Desk, arguments: Arguments) -> bytes:
    """Give the value of one message as it is."""
    topic, partition = arguments.name("topic"), arguments.name("partition")
    offset = arguments.name("offset")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise WrongUsage("a partition and an offset are numbers", help="For example: /topics/orders/messages/0/42")
    return await desk.cluster.run(_value, desk.cluster.bootstrap, topic, int(partition), int(offset), desk.clock)


def _value(bootstrap: str, topic: str, partition: int, offset: int, clock: Clock) -> bytes:
    from confluent_kafka import TopicPartition

    client = _client(bootstrap)
    try:
        client.assign([TopicPartition(topic, partition, offset)])
        deadline_s = clock.monotonic_s() + SCAN_S_MAX
        while clock.monotonic_s() < deadline_s:
            message = client.poll(POLL_S)
            if message is None:
                continue
            if message.error() is None and message.offset() == offset:
                return bytes(message.value() or b"")
            break
    finally:
        client.close()
    raise CommandError(f"{topic}/{partition} has no message at {offset}", help="Compaction or retention may be why.")


async def produce(desk: Desk, arguments: Arguments) -> dict[str, Any]:
    """Produce one message, and say where it is."""
    topic = arguments.name("topic")
    if topic not in await desk.cluster.topics():
        raise no_such_topic(topic)
    key, value = arguments.optional_text("key"), arguments.optional_text("value")
    partition = arguments.number("partition", -1, least=-1)
    headers = [(name, text.encode()) for name, text in arguments.pairs("headers").items()]
    place = await desk.cluster.run(_send, desk.cluster.bootstrap, topic, partition, (key, value, headers))
    return {"done": f"produced to {topic}/{place[0]} at offset {place[1]}", "partition": place[0], "offset": place[1]}


def _send(
    bootstrap: str, topic: str, partition: int, parts: tuple[str | None, str | None, list[tuple[str, bytes]]]
) -> tuple[int, int]:
    from confluent_kafka import KafkaException

    key, value, headers = parts
    client = producer(bootstrap, {"enable.idempotence": True, "linger.ms": 0, "delivery.timeout.ms": 10_000})
    told: list[Any] = []
    client.produce(
        topic,
        value=value.encode() if value is not None else None,
        key=key.encode() if key is not None else None,
        headers=headers,
        partition=partition,
        on_delivery=lambda error, message: told.append((error, message)),
    )
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + CALL_TIMEOUT_S
    while not told and clock.monotonic_s() < deadline_s:
        client.poll(POLL_S)
    if not told:
        raise CommandError(
            "no answer in time, so the outcome is unknown", help="Look for the message before you retry."
        )
    error, message = told[0]
    if error is not None:
        raise KafkaException(error)
    return message.partition(), message.offset()
