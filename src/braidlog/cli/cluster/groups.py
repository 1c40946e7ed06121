"""`braid group`: list, describe, delete, reset-offsets."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format
from braidlog.cli.output import OutputFormat, counted, emit, emit_json, emit_rows, say

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

app = typer.Typer(
    help="List, describe and delete groups, and move their offsets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _named(group: str) -> str:
    if not group:
        raise typer.BadParameter("a group's id cannot be empty.")
    return group


Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", callback=_named)]


@app.command("list")
def list_groups(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """List all groups, with how many records they are behind.

    \b
    Example: braid group list
    """
    from confluent_kafka import KafkaException

    from braidlog.cli.connect.kafka_client import CALL_TIMEOUT_S, admin

    client = admin(bootstrap)
    listing = client.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result(timeout=CALL_TIMEOUT_S)
    if listing.errors:
        first = listing.errors[0]
        raise first if isinstance(first, KafkaException) else KafkaException(first)
    states = {found.group_id: found.state.name.lower() for found in listing.valid}
    lags = _lags(client, sorted(states))
    rows = [{"group": group, "state": states[group], "lag": lag} for group, lag in lags.items()]
    emit_rows(format, ["group", "state", "lag"], rows)


def _lags(client: "AdminClient", groups: list[str]) -> dict[str, int | None]:
    """Count the records that each group is behind.

    A group that has committed nothing gets None.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    from braidlog.cli.connect.kafka_client import result

    # The client takes one group per call, so all calls are sent before the first answer is awaited.
    asked = {group: client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]) for group in groups}
    committed = {
        group: {
            (place.topic, place.partition): place.offset
            for place in result(answers, group).topic_partitions or []
            if place.offset >= 0
        }
        for group, answers in asked.items()
    }
    places = {TopicPartition(*place) for offsets in committed.values() for place in offsets}
    ends = client.list_offsets(dict.fromkeys(places, OffsetSpec.latest())) if places else {}
    high = {(place.topic, place.partition): end for place in places if (end := _end(ends, place)) is not None}
    return {
        group: sum(max(0, high[place] - offset) for place, offset in offsets.items() if place in high)
        if offsets
        else None
        for group, offsets in committed.items()
    }


def _end(ends: Any, place: "TopicPartition") -> int | None:
    """Give a partition's end offset.

    Gives None if the topic was deleted and only the group remembers it.
    """
    from confluent_kafka import KafkaError, KafkaException

    from braidlog.cli.connect.kafka_client import result

    try:
        return int(result(ends, place).offset)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


@app.command()
def describe(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """Show a group's members, offsets and how far it is behind.

    \b
    Example: braid group describe billing
    """
    from confluent_kafka import ConsumerGroupState

    from braidlog.cli.connect.kafka_client import admin, result

    client = admin(bootstrap)
    description = result(client.describe_consumer_groups([group]), group)
    if description.state == ConsumerGroupState.DEAD:
        raise _no_such_group(group)
    owners: dict[tuple[str, int], str] = {}
    members = []
    for member in description.members:
        assigned = member.assignment.topic_partitions if member.assignment else []
        owners.update({(place.topic, place.partition): member.client_id for place in assigned})
        members.append(
            {
                "member": member.member_id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [f"{place.topic}/{place.partition}" for place in assigned],
            }
        )
    offsets = _lag(client, group, owners)
    state = description.state.name.lower()
    # Without a committed offset the lag is unknown, and may be the whole partition.
    known = [row["lag"] for row in offsets if row["lag"] is not None]
    lag = sum(known) if known else None
    if format is OutputFormat.JSON:
        emit_json({"group": group, "state": state, "lag": lag, "members": members, "offsets": offsets})
        return
    emit(f"group {group}: {state}, {counted(len(members), 'member')}, lag {'-' if lag is None else lag}")
    if offsets:
        emit("")
        emit_rows(format, ["topic", "partition", "committed", "high_watermark", "lag", "client"], offsets)
    if members:
        emit("")
        emit_rows(format, ["member", "client", "host", "partitions"], members)


def _no_such_group(group: str) -> Exception:
    from braidlog.cli.errors import CommandError

    return CommandError(f"there is no group {group!r}", help="`braid group list` shows the groups.")


def _lag(client: "AdminClient", group: str, owners: dict[tuple[str, int], str]) -> list[dict[str, Any]]:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    committed = {(place.topic, place.partition): place.offset for place in _committed(client, group)}
    places = [TopicPartition(topic, partition) for topic, partition in sorted({*committed, *owners})]
    ends = client.list_offsets({place: OffsetSpec.latest() for place in places}) if places else {}
    rows = []
    for place in places:
        key = (place.topic, place.partition)
        offset = committed.get(key, -1)
        end = _end(ends, place)
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset if offset >= 0 else None,
                "high_watermark": end,
                "lag": max(0, end - offset) if offset >= 0 and end is not None else None,
                "client": owners.get(key),
            }
        )
    return rows


def _committed(client: "AdminClient", group: str) -> list["TopicPartition"]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    from braidlog.cli.connect.kafka_client import result

    places = result(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]), group).topic_partitions
    return list(places or [])


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups' ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete groups that have no members, with their offsets.

    \b
    Example: braid group delete billing
    """
    from confluent_kafka import KafkaError

    from braidlog.cli.connect.kafka_client import admin
    from braidlog.cli.errors import failures_of, kafka_code, tell_outcomes

    groups = list(dict.fromkeys(groups))
    client = admin(bootstrap)
    failures = failures_of(client.delete_consumer_groups(groups))
    done = {group: group not in failures for group in groups}
    for group, error in failures.items():
        if kafka_code(error) == KafkaError.GROUP_ID_NOT_FOUND:
            failures[group] = _no_such_group(group)
    tell_outcomes(format, "group", "deleted", done, failures)


@app.command("reset-offsets")
def reset_offsets(
    group: Group,
    topic: Annotated[list[str], typer.Option("--topic", "-t", metavar="TOPIC[/PARTITION]", help="Repeat for more.")],
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help="earliest, latest, an offset, or @TIME.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Move a group's committed offsets. The group's consumers must be stopped.

    \b
    Example: braid group reset-offsets billing --topic orders --to earliest
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from braidlog.cli.connect.kafka_client import admin, partitions_of, result

    place_in_time = _moment(to)
    client = admin(bootstrap)
    places = [place for name in topic for place in partitions_of(client, name)]
    targets = _targets(client, places, to, place_in_time)
    before = {(place.topic, place.partition): place.offset for place in _committed(client, group)}
    rows: list[dict[str, Any]] = []
    for place, target in zip(places, targets, strict=True):
        old = before.get((place.topic, place.partition), -1)
        rows.append(
            {"topic": place.topic, "partition": place.partition, "before": old if old >= 0 else None, "after": target}
        )
    if not dry_run:
        moved = [TopicPartition(row["topic"], row["partition"], row["after"]) for row in rows]
        answer = result(client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, moved)]), group)
        _raise_first(answer.topic_partitions or [])
    emit_rows(format, ["topic", "partition", "before", "after"], rows)
    if dry_run:
        say("Nothing was changed: --dry-run.")


def _raise_first(places: list["TopicPartition"]) -> None:
    from confluent_kafka import KafkaException

    for place in places:
        if place.error is not None:
            raise KafkaException(place.error)


def _moment(to: str) -> int | None:
    """Parse the time in `to`; None if it names another place.

    Refuses everything else.
    """
    from braidlog.cli.errors import WrongUsage
    from braidlog.cli.timestamps import milliseconds

    if to.startswith("@"):
        return milliseconds("--to @", to[1:])
    if to in {"earliest", "latest"} or (to.isascii() and to.isdecimal()):
        return None
    raise WrongUsage(
        f"--to {to!r} is not a place", help="Use earliest, latest, an offset such as 42, or @2026-07-31T12:00:00Z."
    )


def _targets(client: "AdminClient", places: list["TopicPartition"], to: str, moment_ms: int | None) -> list[int]:
    from confluent_kafka.admin import OffsetSpec

    from braidlog.cli.connect.kafka_client import offset_bounds, result

    bounds = offset_bounds(client, places)
    if to == "earliest":
        return [start for start, _ in bounds]
    if to == "latest":
        return [end for _, end in bounds]
    if moment_ms is None:
        return [_within(place, int(to), each) for place, each in zip(places, bounds, strict=True)]
    found = client.list_offsets(dict.fromkeys(places, OffsetSpec.for_timestamp(moment_ms)))
    offsets = [result(found, place).offset for place in places]
    # The answer for a time after the last record is -1, which stands for the end.
    return [offset if offset >= 0 else end for offset, (_, end) in zip(offsets, bounds, strict=True)]


def _within(place: "TopicPartition", offset: int, bounds: tuple[int, int]) -> int:
    """Give the nearest offset that the partition has.

    Reports it if it is not the one asked for.
    """
    start, end = bounds
    nearest = min(max(offset, start), end)
    if nearest != offset:
        side = "past the end" if offset > end else "before the beginning"
        say(f"{place.topic}/{place.partition}: {offset} is {side}, so {nearest} is taken")
    return nearest
