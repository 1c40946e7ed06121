"""What a cluster says of its groups, and how their offsets are moved."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from braidlog.clients.errors import CommandError, WrongUsage
from braidlog.clients.kafka_client import CALL_TIMEOUT_S, offset_bounds, partitions_of, result
from braidlog.clients.timestamps import milliseconds

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient


def group_states(client: "AdminClient") -> dict[str, str]:
    """Give the state of every group."""
    from confluent_kafka import KafkaException

    listing = client.list_consumer_groups(request_timeout=CALL_TIMEOUT_S).result(timeout=CALL_TIMEOUT_S)
    if listing.errors:
        first = listing.errors[0]
        raise first if isinstance(first, KafkaException) else KafkaException(first)
    return {found.group_id: found.state.name.lower() for found in listing.valid}


def group_lags(client: "AdminClient", groups: list[str]) -> dict[str, int | None]:
    """Count the records that each group is behind.

    A group that has committed nothing gets None.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import OffsetSpec

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
    high = {(place.topic, place.partition): end for place in places if (end := _end_offset(ends, place)) is not None}
    return {
        group: sum(max(0, high[place] - offset) for place, offset in offsets.items() if place in high)
        if offsets
        else None
        for group, offsets in committed.items()
    }


def _end_offset(ends: Any, place: "TopicPartition") -> int | None:
    """Give a partition's end offset.

    Gives None if the topic was deleted and only the group remembers it.
    """
    from confluent_kafka import KafkaError, KafkaException

    try:
        return int(result(ends, place).offset)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise


def no_such_group(group: str) -> Exception:
    """Make the error for a group that is not there."""
    return CommandError(f"there is no group {group!r}", help="`braid group list` shows the groups.")


def _lag_rows(client: "AdminClient", group: str, owners: dict[tuple[str, int], str]) -> list[dict[str, Any]]:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    committed = {(place.topic, place.partition): place.offset for place in _committed(client, group)}
    places = [TopicPartition(topic, partition) for topic, partition in sorted({*committed, *owners})]
    ends = client.list_offsets({place: OffsetSpec.latest() for place in places}) if places else {}
    rows = []
    for place in places:
        key = (place.topic, place.partition)
        offset = committed.get(key, -1)
        end = _end_offset(ends, place)
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

    places = result(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]), group).topic_partitions
    return list(places or [])


def describe_group(client: "AdminClient", group: str) -> dict[str, Any]:
    """Give a group's state, members, offsets and lag."""
    from confluent_kafka import ConsumerGroupState

    description = result(client.describe_consumer_groups([group]), group)
    if description.state == ConsumerGroupState.DEAD:
        raise no_such_group(group)
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
    offsets = _lag_rows(client, group, owners)
    # Without a committed offset the lag is unknown, and may be the whole partition.
    known = [row["lag"] for row in offsets if row["lag"] is not None]
    return {
        "group": group,
        "state": description.state.name.lower(),
        "lag": sum(known) if known else None,
        "members": members,
        "offsets": offsets,
    }


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """One partition's part in a move of a group's offsets."""

    topic: str
    partition: int
    before: int | None
    after: int
    remark: str = ""

    def row(self) -> dict[str, Any]:
        return {"topic": self.topic, "partition": self.partition, "before": self.before, "after": self.after}


def parse_place(option: str, to: str) -> int | None:
    """Parse the time in `to`; None if it names another place.

    Refuses everything else.
    """
    if to.startswith("@"):
        return milliseconds(f"{option} @", to[1:])
    if to in {"earliest", "latest"} or (to.isascii() and to.isdecimal()):
        return None
    raise WrongUsage(
        f"{option} {to!r} is not a place", help="Use earliest, latest, an offset such as 42, or @2026-07-31T12:00:00Z."
    )


def plan_move(client: "AdminClient", group: str, topics: list[str], to: str, moment_ms: int | None) -> list[OffsetMove]:
    """Find where a group's offsets in TOPIC or TOPIC/PARTITION would go.

    `moment_ms` is what `parse_place` made of `to`.
    """
    places = [place for name in topics for place in partitions_of(client, name)]
    targets = _targets(client, places, to, moment_ms)
    before = {(place.topic, place.partition): place.offset for place in _committed(client, group)}
    moves = []
    for place, (target, remark) in zip(places, targets, strict=True):
        old = before.get((place.topic, place.partition), -1)
        moves.append(OffsetMove(place.topic, place.partition, old if old >= 0 else None, target, remark))
    return moves


def move_offsets(client: "AdminClient", group: str, moves: list[OffsetMove]) -> None:
    """Move a group's committed offsets. Its consumers must be stopped."""
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

    moved = [TopicPartition(each.topic, each.partition, each.after) for each in moves]
    answer = result(client.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, moved)]), group)
    for place in answer.topic_partitions or []:
        if place.error is not None:
            raise KafkaException(place.error)


def _targets(
    client: "AdminClient", places: list["TopicPartition"], to: str, moment_ms: int | None
) -> list[tuple[int, str]]:
    """Give each partition's offset, with a remark if another one was asked for."""
    from confluent_kafka.admin import OffsetSpec

    bounds = offset_bounds(client, places)
    if to == "earliest":
        return [(start, "") for start, _ in bounds]
    if to == "latest":
        return [(end, "") for _, end in bounds]
    if moment_ms is None:
        return [_within(place, int(to), each) for place, each in zip(places, bounds, strict=True)]
    found = client.list_offsets(dict.fromkeys(places, OffsetSpec.for_timestamp(moment_ms)))
    offsets = [result(found, place).offset for place in places]
    # The answer for a time after the last record is -1, which stands for the end.
    return [(offset if offset >= 0 else end, "") for offset, (_, end) in zip(offsets, bounds, strict=True)]


def _within(place: "TopicPartition", offset: int, bounds: tuple[int, int]) -> tuple[int, str]:
    start, end = bounds
    nearest = min(max(offset, start), end)
    if nearest == offset:
        return nearest, ""
    side = "past the end" if offset > end else "before the beginning"
    return nearest, f"{place.topic}/{place.partition}: {offset} is {side}, so {nearest} is taken"
