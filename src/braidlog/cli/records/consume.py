"""`braid consume`: a topic's records on standard output."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format
from braidlog.cli.output import OutputFormat, check_reader, counted, emit_json, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Consumer, Message, TopicPartition

    from braidlog.cli.records.read_range import Span

END_WAIT_MS = 20
MORE_WAIT_MS = 500


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="The topics' names.")],
    group: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="Read as a member of this group, and commit.")
    ] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            "-o",
            metavar="PLACE",
            help="beginning (the default), end, an offset, -N for the last N, s@TIME; e@TIME to stop there.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Read only this partition; repeat for more."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", "-n", metavar="N", min=1, help="Stop after this many records.")
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end of all partitions.")] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--output", "-f", metavar="TEMPLATE", help=r"Such as '%t/%p %o %T %k: %s\n'; also %h %K %S %R %%, \t, \xHH."
        ),
    ] = None,
    key_delimiter: Annotated[
        str | None, typer.Option("--key", "-K", metavar="DELIMITER", help="Show keys, each followed by this.")
    ] = None,
    record_delimiter: Annotated[
        str, typer.Option("--delimiter", "-D", metavar="DELIMITER", help="Written after each record.")
    ] = r"\n",
    show_null: Annotated[bool, typer.Option("--null", "-Z", help="Show missing keys and values as NULL.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Write a topic's records to standard output.

    \b
    Example: braid consume numbers --exit | sort -n | tail -1
    """
    from braidlog.cli.records.read_range import Start, parse_span
    from braidlog.clients.kafka_client import consumer

    span = parse_span(start or [])
    show = _shower(format, template, key_delimiter, record_delimiter, b"NULL" if show_null else b"")
    if group is not None:
        _check_group_options(group, span, partition)
    client = consumer(
        bootstrap,
        {
            # The client wants a group name even if nothing is shared and nothing is committed.
            "group.id": group or "braid-consume",
            "enable.auto.commit": group is not None,
            "auto.offset.reset": "latest" if span.start is Start.END else "earliest",
            "enable.partition.eof": True,
            "session.timeout.ms": 10_000,
            # A fetch that finds nothing reports the end, so with --exit it should not wait for more records.
            "fetch.wait.max.ms": END_WAIT_MS if exit_at_end else MORE_WAIT_MS,
        },
    )
    try:
        places = _places(client, topics, partition or [])
        progress = _Progress()
        if group is not None:
            client.subscribe(topics, on_assign=progress.assign)
        else:
            _assign(client, places, span, progress)
        seen = 0
        while (count is None or seen < count) and not progress.is_over(exit_at_end):
            message = client.poll(1.0)
            if message is None:
                check_reader()
                continue
            if progress.is_record(message):
                show(message)
                seen += 1
        sys.stdout.flush()
        say(counted(seen, "record"))
    finally:
        client.close()


def _check_group_options(group: str, span: "Span", partitions: list[int] | None) -> None:
    from braidlog.cli.records.read_range import Start
    from braidlog.clients.errors import WrongUsage

    if not group:
        raise WrongUsage("--group is empty", help="Name a group, or leave --group out to read without one.")
    if partitions:
        raise WrongUsage(
            "--partition and --group exclude each other: a group hands out partitions itself",
            help="Leave one of them out.",
        )
    if span.start not in (Start.BEGINNING, Start.END) or span.stop_ms is not None:
        raise WrongUsage(
            "a group goes on where it is, so with --group, --from is beginning or end, for where it has no offset yet",
            help=f"`braid group reset-offsets {group}` moves it.",
        )


class _Progress:
    """Tracks how far each partition has been read, and where to stop."""

    def __init__(self) -> None:
        self._assigned: set[tuple[str, int]] | None = None
        self._at_end: set[tuple[str, int]] = set()
        self._stops: dict[tuple[str, int], int] = {}
        self._stopped: set[tuple[str, int]] = set()

    def assign(self, _client: Any, places: "list[TopicPartition]") -> None:
        self._assigned = {(place.topic, place.partition) for place in places}
        self._at_end &= self._assigned

    def stop_before(self, place: tuple[str, int], offset: int) -> None:
        self._stops[place] = offset
        if offset == 0:
            self._stopped.add(place)

    def is_over(self, exit_at_end: bool) -> bool:
        """Tell whether all is read, up to the known end or the time to stop at."""
        if self._assigned is None:
            return False
        done = self._stopped | self._at_end if exit_at_end else self._stopped
        return bool(exit_at_end or self._stops) and self._assigned <= done

    def is_record(self, message: "Message") -> bool:
        """Tell whether to show `message`.

        Others only show how far a partition has been read.
        """
        from confluent_kafka import KafkaError, KafkaException

        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        stop = self._stops.get(place)
        if stop is not None and offset + (error is None) >= stop:
            self._stopped.add(place)
        if error is not None:
            self._at_end.add(place)
            sys.stdout.flush()
            return False
        return stop is None or offset < stop


def _places(client: "Consumer", topics: list[str], partitions: list[int]) -> list["TopicPartition"]:
    """List all partitions of the topics, or those that were named."""
    from confluent_kafka import TopicPartition

    from braidlog.clients.errors import CommandError
    from braidlog.clients.kafka_client import CALL_TIMEOUT_S

    metadata = client.list_topics(timeout=CALL_TIMEOUT_S).topics
    places = []
    for topic in dict.fromkeys(topics):
        if topic not in metadata:
            raise CommandError(f"there is no topic {topic!r}", help="`braid topic list` shows the topics.")
        there = metadata[topic].partitions
        for number in partitions:
            if number not in there:
                raise CommandError(
                    f"{topic} has no partition {number}", help=f"`braid topic describe {topic}` shows its partitions."
                )
        places += [TopicPartition(topic, number) for number in sorted(set(partitions or there))]
    return places


def _assign(client: "Consumer", places: list["TopicPartition"], span: "Span", progress: _Progress) -> None:
    from braidlog.cli.records.read_range import bounds, find_starts, offsets_at
    from braidlog.runtime.clock import SystemClock

    starts = find_starts(client, places, span)
    progress.assign(client, places)
    if span.stop_ms is not None:
        is_past = span.stop_ms <= SystemClock().wall_ms()
        for place, offset in offsets_at(client, places, span.stop_ms):
            if offset < 0 and is_past:  # no record is that late yet, and new ones will be later
                _, offset = bounds(client, place)  # noqa: PLW2901
            if offset >= 0:
                progress.stop_before((place.topic, place.partition), offset)
    client.assign(starts)


def _shower(
    output: OutputFormat, template: str | None, key_delimiter: str | None, record_delimiter: str, null: bytes
) -> "Callable[[Message], object]":
    """Give the function that writes one record."""
    from braidlog.cli.records.escapes import delimiter, unescape
    from braidlog.cli.records.templates import line_template, parse_template
    from braidlog.cli.visible import visible_bytes
    from braidlog.clients.errors import WrongUsage

    if output is OutputFormat.JSON:
        if template is not None or key_delimiter is not None:
            raise WrongUsage("--output and --key are for text", help="Leave out --format json.")
        return _show_json
    # Files and programs get the bytes as they are. A terminal would obey them.
    clean = visible_bytes if sys.stdout.isatty() else bytes
    if template is not None:
        shape = parse_template("--output", template, null, clean)
    else:
        key = delimiter("--key", key_delimiter) if key_delimiter is not None else None
        shape = line_template(key, unescape("--delimiter", record_delimiter), null, clean)
    write = sys.stdout.buffer.write
    return lambda message: write(shape(message))


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    """Put bytes into JSON: as text, or as base64 under another name."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(data).decode()}


def _show_json(message: "Message") -> None:
    key: Any = message.key()
    value: Any = message.value()
    headers: Any = message.headers() or []
    emit_json(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            **_text("key", key),
            **_text("value", value),
            "headers": [{"name": name, **_text("value", data)} for name, data in headers],
        }
    )
