"""`braid produce` and `braid consume`: records between a topic and the terminal."""

import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format, Topic, pairs
from braidlog.cli.output import OutputFormat, counted, emit_json, say

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer

LINE_BYTES_MAX = 64 * 1024 * 1024
FLUSH_TIMEOUT_S = 60.0


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class _Deliveries:
    """Counts what was acknowledged, and keeps the first refusal."""

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.error: Any = None
        self.offsets: dict[int, list[int]] = {}

    def __call__(self, error: Any, message: "Message") -> None:
        if error is not None:
            self.error = self.error or error
            return
        self.records += 1
        self.bytes += len(message)
        partition, offset = message.partition() or 0, message.offset() or 0
        bounds = self.offsets.setdefault(partition, [offset, offset + 1])
        bounds[0], bounds[1] = min(bounds[0], offset), max(bounds[1], offset + 1)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(LINE_BYTES_MAX):
        yield line.removesuffix(b"\n")


def produce(
    topic: Topic,
    key_separator: Annotated[
        str, typer.Option("--key", "-K", metavar="SEPARATOR", help="Lines are KEY SEPARATOR VALUE, or VALUE.")
    ] = "",
    partition: Annotated[int, typer.Option("--partition", "-p", help="-1: by key, or spread.")] = -1,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record.")
    ] = None,
    compression: Annotated[Compression, typer.Option(help="Of whole batches of records.")] = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Write each line of standard input to a topic, exactly once each.

    Example: seq 1000 | braid produce numbers
    """
    from braidlog.cli.kafka import producer

    headers = [(name, value.encode()) for name, value in pairs(header, "--header").items()]
    client = producer(
        bootstrap,
        {"enable.idempotence": True, "compression.type": compression.value, "linger.ms": 50, "batch.size": 1_000_000},
    )
    if sys.stdin.isatty():
        say("Type records, one a line. End with Ctrl-D.")
    deliveries = _Deliveries()
    separator = key_separator.encode()
    for line in _lines(sys.stdin.buffer):
        key: bytes | None = None
        if separator:
            before, found, after = line.partition(separator)
            key, line = (before, after) if found else (None, line)  # noqa: PLW2901 - the rest of the line
        _send(client, deliveries, topic, {"value": line, "key": key, "partition": partition, "headers": headers})
        if deliveries.error is not None:
            break
    remaining = client.flush(FLUSH_TIMEOUT_S)
    _finish(topic, deliveries, remaining, format)


def _send(client: "Producer", deliveries: _Deliveries, topic: str, record: dict[str, Any]) -> None:
    while True:
        try:
            client.produce(topic, on_delivery=deliveries, **record)
            client.poll(0)
            return
        except BufferError:  # the client's own queue is full: wait for acknowledgements
            client.poll(1.0)
            if deliveries.error is not None:
                return


def _finish(topic: str, deliveries: _Deliveries, remaining: int, output: OutputFormat) -> None:
    from confluent_kafka import KafkaException

    from braidlog.cli.errors import CommandError

    if deliveries.error is not None:
        raise KafkaException(deliveries.error)
    if remaining:
        raise CommandError(
            f"{remaining} records were not acknowledged within {FLUSH_TIMEOUT_S:.0f} s",
            help="Look at the agent's log; `braid doctor` checks its store.",
        )
    if output is OutputFormat.JSON:
        offsets = [
            {"partition": partition, "first_offset": first, "end_offset": end}
            for partition, (first, end) in sorted(deliveries.offsets.items())
        ]
        emit_json({"topic": topic, "records": deliveries.records, "bytes": deliveries.bytes, "partitions": offsets})
    else:
        say(f"{topic}: {counted(deliveries.records, 'record')}, {counted(deliveries.bytes, 'byte')}")


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics' names.")],
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Share the topics with this group, and commit.")
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="beginning or end, where the group has no offset yet.")
    ] = "beginning",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many records.")] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end of all partitions.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Write a topic's records to standard output: values, or with --format json all there is.

    Example: braid consume numbers --exit | sort -n | tail -1
    """
    from braidlog.cli.errors import CommandError
    from braidlog.cli.kafka import consumer

    if start not in {"beginning", "end"}:
        raise CommandError(f"--from {start!r} is not a place to start", help="Use --from beginning or --from end.")
    client = consumer(
        bootstrap,
        {
            # Without a group nothing is shared and nothing is committed, but the client wants a name.
            "group.id": group or "braid-consume",
            "enable.auto.commit": group is not None,
            "auto.offset.reset": "earliest" if start == "beginning" else "latest",
            "enable.partition.eof": True,
            "session.timeout.ms": 10_000,
        },
    )
    try:
        tracker = _subscribe(client, topics, group, start)
        seen = 0
        while (count is None or seen < count) and not (exit_at_end and tracker.all_at_end):
            message = client.poll(1.0)
            if message is not None and tracker.is_record(message):
                _show(message, format)
                seen += 1
        sys.stdout.flush()
        say(counted(seen, "record"))
    finally:
        client.close()


class _EndTracker:
    """Which of the partitions that are ours have been read to their end."""

    def __init__(self) -> None:
        self.assigned: set[tuple[str, int]] | None = None
        self.at_end: set[tuple[str, int]] = set()

    @property
    def all_at_end(self) -> bool:
        return self.assigned is not None and self.assigned <= self.at_end

    def assign(self, _client: Any, places: list[Any]) -> None:
        self.assigned = {(place.topic, place.partition) for place in places}
        self.at_end &= self.assigned

    def is_record(self, message: "Message") -> bool:
        from confluent_kafka import KafkaError, KafkaException

        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self.at_end.add((message.topic() or "", message.partition() or 0))
            sys.stdout.flush()
            return False
        raise KafkaException(error)


def _subscribe(client: "Consumer", topics: list[str], group: str | None, start: str) -> _EndTracker:
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    from braidlog.cli.errors import CommandError
    from braidlog.cli.kafka import CALL_TIMEOUT_S

    metadata = client.list_topics(timeout=CALL_TIMEOUT_S).topics
    absent = [topic for topic in topics if topic not in metadata]
    if absent:
        raise CommandError(f"there is no topic {absent[0]!r}", help="`braid topic list` shows the topics.")
    tracker = _EndTracker()
    if group is not None:
        client.subscribe(topics, on_assign=tracker.assign)
        return tracker
    offset = OFFSET_BEGINNING if start == "beginning" else OFFSET_END
    places = [
        TopicPartition(topic, number, offset) for topic in topics for number in sorted(metadata[topic].partitions)
    ]
    tracker.assign(client, places)
    client.assign(places)
    return tracker


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes as JSON: text where they are UTF-8, base64 under another name where they are not."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(data).decode()}


def _show(message: "Message", output: OutputFormat) -> None:
    value: Any = message.value()
    if output is OutputFormat.TEXT:
        sys.stdout.buffer.write((value or b"") + b"\n")
        return
    headers: Any = message.headers() or []
    emit_json(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            **_text("key", message.key()),
            **_text("value", value),
            "headers": [{"name": name, **_text("value", data)} for name, data in headers],
        }
    )
