"""`braid group`: list, describe, delete, reset-offsets."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format
from braidlog.cli.output import OutputFormat, counted, emit, emit_json, emit_rows, say

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

app = typer.Typer(
    help="List, describe and delete consumer groups, and move their offsets.",
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
    """List all consumer groups.

    Example: braid group list
    """
    from confluent_kafka import KafkaException

    from braidlog.cli.kafka import CALL_TIMEOUT_S, admin

    client = admin(bootstrap)
    listing = client.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result(timeout=CALL_TIMEOUT_S)
    if listing.errors:
        first = listing.errors[0]
        raise first if isinstance(first, KafkaException) else KafkaException(first)
    rows = [{"group": g.group_id, "state": g.state.name.lower()} for g in listing.valid]
    emit_rows(format, ["group", "state"], sorted(rows, key=lambda row: row["group"]))


@app.command()
def describe(group: Group, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """Show a group's members, its committed offsets and how far it is behind.

    Example: braid group describe billing
    """
    from confluent_kafka import ConsumerGroupState

    from braidlog.cli.kafka import admin, result

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
    # Where nothing is committed nobody knows how far behind the group is, and it may be everything.
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

    from braidlog.cli.kafka import result

    committed = {(place.topic, place.partition): place.offset for place in _committed(client, group)}
    places = [TopicPartition(topic, partition) for topic, partition in sorted({*committed, *owners})]
    ends = client.list_offsets({place: OffsetSpec.latest() for place in places}) if places else {}
    rows = []
    for place in places:
        key = (place.topic, place.partition)
        offset = committed.get(key, -1)
        end = result(ends, place).offset
        rows.append(
            {
                "topic": place.topic,
                "partition": place.partition,
                "committed": offset if offset >= 0 else None,
                "high_watermark": end,
                "lag": max(0, end - offset) if offset >= 0 else None,
                "client": owners.get(key),
            }
        )
    return rows


def _committed(client: "AdminClient", group: str) -> list["TopicPartition"]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    from braidlog.cli.kafka import result

    places = result(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]), group).topic_partitions
    return list(places or [])


@app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP", help="The groups' ids.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete groups that have no members, with their offsets.

    Example: braid group delete billing
    """
    from confluent_kafka import KafkaError

    from braidlog.cli.errors import failures_of, kafka_code, tell_outcomes
    from braidlog.cli.kafka import admin

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
    to: Annotated[str, typer.Option("--to", help="earliest, latest, an offset, or @MILLISECONDS since 1970.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Move a group's committed offsets. The group's consumers must be stopped.

    Example: braid group reset-offsets billing --topic orders --to earliest
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from braidlog.cli.kafka import admin, result

    client = admin(bootstrap)
    places = [place for name in topic for place in _places(client, name)]
    targets = _targets(client, places, to)
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


def _places(client: "AdminClient", name: str) -> list["TopicPartition"]:
    from confluent_kafka import TopicPartition

    from braidlog.cli.errors import CommandError
    from braidlog.cli.kafka import CALL_TIMEOUT_S

    topic, slash, partition = name.partition("/")
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S).topics.get(topic)
    if metadata is None:
        raise CommandError(f"there is no topic {topic!r}", help="`braid topic list` shows the topics.")
    if not slash:
        return [TopicPartition(topic, number) for number in sorted(metadata.partitions)]
    if not partition.isdecimal() or int(partition) not in metadata.partitions:
        raise CommandError(
            f"{topic} has no partition {partition!r}", help=f"`braid topic describe {topic}` shows its partitions."
        )
    return [TopicPartition(topic, int(partition))]


def _targets(client: "AdminClient", places: list["TopicPartition"], to: str) -> list[int]:
    from confluent_kafka.admin import OffsetSpec

    from braidlog.cli.errors import CommandError
    from braidlog.cli.kafka import result

    starts = client.list_offsets(dict.fromkeys(places, OffsetSpec.earliest()))
    ends = client.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
    bounds = [(result(starts, place).offset, result(ends, place).offset) for place in places]
    if to == "earliest":
        return [start for start, _ in bounds]
    if to == "latest":
        return [end for _, end in bounds]
    if to.isdecimal():
        return [min(max(int(to), start), end) for start, end in bounds]
    if not (to.startswith("@") and to[1:].isdecimal()):
        raise CommandError(
            f"--to {to!r} is not a place", help="Use earliest, latest, an offset such as 42, or @1700000000000."
        )
    found = client.list_offsets(dict.fromkeys(places, OffsetSpec.for_timestamp(int(to[1:]))))
    offsets = [result(found, place).offset for place in places]
    # A timestamp after the last record is answered with -1: then the end it is.
    return [offset if offset >= 0 else end for offset, (_, end) in zip(offsets, bounds, strict=True)]
