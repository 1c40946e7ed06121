"""`braid produce`: records from standard input to a topic."""

import sys
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format, Topic, pairs
from braidlog.cli.output import OutputFormat, counted, emit_json, say

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

    from braidlog.cli.records.record_input import Record

FLUSH_TIMEOUT_S = 60.0


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class InputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class _Deliveries:
    """Counts acknowledged records, and keeps the first error."""

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


def produce(
    topic: Topic,
    key_delimiter: Annotated[
        str | None,
        typer.Option(
            "--key",
            "-K",
            metavar="DELIMITER",
            help=r"Between key and value, such as : or \t.",
        ),
    ] = None,
    record_delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", metavar="DELIMITER", help="Between records.")
    ] = r"\n",
    empty_is_null: Annotated[
        bool, typer.Option("--null", "-Z", help="Send empty keys and values as null: a key's tombstone.")
    ] = False,
    input: Annotated[
        InputFormat,
        typer.Option("--input", "-i", metavar="text|json", help="json: lines as consume --format json writes."),
    ] = InputFormat.TEXT,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", min=-1, help="-1, the default: by key, or spread.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", "-T", metavar="TIME", help="Of every record: ms since 1970, or ISO 8601."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="On every record; repeat for more.")
    ] = None,
    compression: Annotated[
        Compression,
        typer.Option("--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."),
    ] = Compression.NONE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Write each line of standard input to a topic, exactly once each.

    \b
    Example: seq 1000 | braid produce numbers
    """
    from braidlog.cli.records.escapes import delimiter
    from braidlog.cli.records.record_input import BY_KEY, RECORD_BYTES_MAX, JsonLines, TextLines, split
    from braidlog.clients.errors import CommandError
    from braidlog.clients.kafka_client import producer

    common = _common(partition if partition is not None else BY_KEY, timestamp, header)
    lines: TextLines | JsonLines
    if input is InputFormat.JSON:
        _refuse_text_options(key_delimiter, empty_is_null)
        lines = JsonLines(common, partition_is_fixed=partition is not None)
    else:
        between_key_and_value = delimiter("--key", key_delimiter) if key_delimiter is not None else None
        lines = TextLines(between_key_and_value, empty_is_null, common)
    between = delimiter("--delimiter", record_delimiter)
    client = producer(
        bootstrap,
        {
            "enable.idempotence": True,
            "compression.type": compression.value,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "message.max.bytes": RECORD_BYTES_MAX,  # the topic decides how large a record may be
        },
    )
    if sys.stdin.isatty():
        say("Type records, one a line. End with Ctrl-D.")
    deliveries = _Deliveries()
    try:
        for number, line in enumerate(split(sys.stdin.buffer, between), start=1):
            record = lines(number, line)
            if record is not None:
                _send(client, deliveries, topic, record)
            if deliveries.error is not None:
                break
    except CommandError:
        client.flush(FLUSH_TIMEOUT_S)
        say(f"{topic}: {counted(deliveries.records, 'record')} before the error were written")
        raise
    _finish(topic, deliveries, client.flush(FLUSH_TIMEOUT_S), format)


def _common(partition: int, timestamp: str | None, header: list[str] | None) -> "Record":
    from braidlog.cli.records.record_input import Record
    from braidlog.clients.timestamps import milliseconds

    headers = tuple((name, value.encode()) for name, value in pairs(header, "--header").items())
    common = Record(None, headers=headers, partition=partition)
    return common if timestamp is None else replace(common, timestamp_ms=milliseconds("--timestamp", timestamp))


def _refuse_text_options(key_delimiter: str | None, empty_is_null: bool) -> None:
    from braidlog.clients.errors import WrongUsage

    if key_delimiter is not None or empty_is_null:
        raise WrongUsage(
            "--key and --null are for lines of text",
            help='Lines of JSON say it themselves: {"key": "a", "value": null}',
        )


def _send(client: "Producer", deliveries: _Deliveries, topic: str, record: "Record") -> None:
    told: dict[str, Any] = {"value": record.value, "key": record.key, "partition": record.partition}
    if record.headers:
        told["headers"] = list(record.headers)
    if record.timestamp_ms is not None:
        told["timestamp"] = record.timestamp_ms
    while True:
        try:
            client.produce(topic, on_delivery=deliveries, **told)
            client.poll(0)
            return
        except BufferError:  # the client's queue is full: wait for acknowledgements
            client.poll(1.0)
            if deliveries.error is not None:
                return


def _finish(topic: str, deliveries: _Deliveries, remaining: int, output: OutputFormat) -> None:
    from confluent_kafka import KafkaException

    from braidlog.clients.errors import CommandError

    if deliveries.error is not None:
        raise KafkaException(deliveries.error)
    if remaining:
        raise CommandError(
            f"{remaining} records were not acknowledged within {FLUSH_TIMEOUT_S:.0f} s",
            help="Look at the agent's log. `braid doctor` checks its store.",
        )
    if output is OutputFormat.JSON:
        offsets = [
            {"partition": partition, "first_offset": first, "end_offset": end}
            for partition, (first, end) in sorted(deliveries.offsets.items())
        ]
        emit_json({"topic": topic, "records": deliveries.records, "bytes": deliveries.bytes, "partitions": offsets})
    else:
        say(f"{topic}: {counted(deliveries.records, 'record')}, {counted(deliveries.bytes, 'byte')}")
