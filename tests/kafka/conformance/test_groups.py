"""Groups of both protocols, step by step and by hand."""

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode as E
from tests.cluster import wait_until
from tests.kafka.conformance.situations import (
    CONSUMER_DESCRIBE,
    CONSUMER_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN,
    LEAVE,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC,
    commit,
    consumer,
    join,
)
from tests.kafka.conformance.wire import Wire, ms, part

NewTopic = Callable[..., str]
Unique = Callable[[str], str]

SUBSCRIPTION = b"\0\0\0\0\0\1"


def subscription(topic: str) -> bytes:
    return SUBSCRIPTION + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"


def protocols(topic: str) -> list[Any]:
    return [part("JoinGroupRequestProtocol", name="range", metadata=subscription(topic))]


def join_alone(wire: Wire, group: str, topic: str, instance: str | None = None) -> Any:
    """The answer to a join that completed: of the only member, which leads."""
    request = join(group, protocols=protocols(topic), group_instance_id=instance)
    answer = wire.call(JOIN, request, version=5)
    if answer.error_code == E.member_id_required:
        known = join(group, answer.member_id, protocols=protocols(topic), group_instance_id=instance)
        answer = wire.call(JOIN, known, version=5)
    assert answer.error_code == E.none, answer
    assert answer.leader == answer.member_id
    return answer


def sync(wire: Wire, group: str, joined: Any, assignment: bytes = b"mine", generation: int | None = None) -> Any:
    request = part(
        "SyncGroupRequest",
        group_id=group,
        generation_id=joined.generation_id if generation is None else generation,
        member_id=joined.member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[part("SyncGroupRequestAssignment", member_id=joined.member_id, assignment=assignment)],
    )
    return wire.call(SYNC, request, version=5)


def beat(wire: Wire, group: str, member: str, generation: int, instance: str | None = None) -> E:
    request = part(
        "HeartbeatRequest", group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
    )
    code: E = wire.call(HEARTBEAT, request, version=4).error_code
    return code


def committed_code(wire: Wire, request: Any, version: int) -> E:
    code: E = wire.call(OFFSET_COMMIT, request, version=version).topics[0].partitions[0].error_code
    return code


def listed(wire: Wire, group: str) -> tuple[str, str, str] | None:
    request = part("ListGroupsRequest", states_filter=(), types_filter=())
    groups = {each.group_id: each for each in wire.call(LIST_GROUPS, request, version=5).groups}
    found = groups.get(group)
    return None if found is None else (found.protocol_type, found.group_state, found.group_type)


def delete_offset(wire: Wire, group: str, topic: str) -> tuple[E, E | None]:
    partitions = [part("OffsetDeleteRequestPartition", partition_index=0)]
    topics = [part("OffsetDeleteRequestTopic", name=topic, partitions=partitions)]
    answer = wire.call(OFFSET_DELETE, part("OffsetDeleteRequest", group_id=group, topics=topics))
    return answer.error_code, answer.topics[0].partitions[0].error_code if answer.topics else None


def delete_group(wire: Wire, group: str) -> E:
    answer = wire.call(DELETE_GROUPS, part("DeleteGroupsRequest", groups_names=(group,)))
    code: E = answer.results[0].error_code
    return code


def test_the_life_of_a_classic_member(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, group = new_topic(), unique("group")
    joined = join_alone(wire, group, topic)
    member, generation = joined.member_id, joined.generation_id
    assert generation == 1
    assert committed_code(wire, commit(group, topic, generation, member), 8) == E.rebalance_in_progress
    assert sync(wire, group, joined, generation=generation + 1).error_code == E.illegal_generation
    synced = sync(wire, group, joined)
    assert (synced.error_code, synced.assignment) == (E.none, b"mine")
    assert beat(wire, group, member, generation) == E.none
    assert beat(wire, group, member, generation + 1) == E.illegal_generation
    assert beat(wire, group, "another", generation) == E.unknown_member_id
    assert committed_code(wire, commit(group, topic, generation, member), 8) == E.none
    assert committed_code(wire, commit(group, topic, generation - 1, member), 8) == E.illegal_generation
    assert committed_code(wire, commit(group, topic), 8) == E.unknown_member_id
    assert listed(wire, group) == ("consumer", "Stable", "classic")
    assert delete_group(wire, group) == E.non_empty_group
    assert delete_offset(wire, group, topic) == (E.none, E.group_subscribed_to_topic)
    described = wire.call(
        DESCRIBE_GROUPS, part("DescribeGroupsRequest", groups=(group,), include_authorized_operations=False)
    ).groups[0]
    assert (described.error_code, described.group_state, described.protocol_data) == (E.none, "Stable", "range")
    assert [each.member_assignment for each in described.members] == [b"mine"]
    leaving = [part("MemberIdentity", member_id=member, group_instance_id=None)]
    left = wire.call(LEAVE, part("LeaveGroupRequest", group_id=group, members=leaving))
    assert (left.error_code, left.members[0].error_code) == (E.none, E.none)
    assert beat(wire, group, member, generation) == E.unknown_member_id
    assert listed(wire, group) == ("consumer", "Empty", "classic")
    assert delete_offset(wire, group, topic) == (E.none, E.none)
    assert delete_group(wire, group) in (E.none, E.group_id_not_found)


def test_without_time_for_rebalances_nobody_stays(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, group = new_topic(), unique("group")
    values = {"protocols": protocols(topic), "session_timeout": ms(1_800_000), "rebalance_timeout": ms(0)}
    known = join(group, wire.call(JOIN, join(group, **values), version=5).member_id, **values)
    joined = wire.call(JOIN, known, version=5)
    assert joined.error_code == E.none
    # Its time for the next step was over at once.
    wait_until(lambda: beat(wire, group, joined.member_id, 1) == E.unknown_member_id, what="the end of its time")
    assert sync(wire, group, joined).error_code == E.unknown_member_id


def test_a_static_member_is_fenced_by_its_successor(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, group = new_topic(), unique("group")
    first = join_alone(wire, group, topic, "instance")
    sync(wire, group, first)
    second = wire.call(JOIN, join(group, protocols=protocols(topic), group_instance_id="instance"), version=5)
    assert second.error_code == E.none
    assert second.generation_id == first.generation_id, "nothing had to be assigned anew"
    assert second.member_id != first.member_id
    assert beat(wire, group, first.member_id, first.generation_id, "instance") == E.fenced_instance_id
    assert beat(wire, group, second.member_id, second.generation_id, "instance") == E.none
    again = join(group, first.member_id, protocols=protocols(topic), group_instance_id="instance")
    assert wire.call(JOIN, again, version=5).error_code == E.fenced_instance_id


def test_groups_of_another_kind_do_not_mix(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, group = new_topic(), unique("group")
    sync(wire, group, join_alone(wire, group, topic))
    other = [part("JoinGroupRequestProtocol", name="another", metadata=b"")]
    assert wire.call(JOIN, join(group, protocols=other), version=3).error_code == E.inconsistent_group_protocol
    connect = join(group, protocol_type="connect", protocols=protocols(topic))
    assert wire.call(JOIN, connect, version=3).error_code == E.inconsistent_group_protocol


def consumer_beat(wire: Wire, group: str, member: str, epoch: int, topic: str | None = None, **values: Any) -> Any:
    if topic is not None:
        values["subscribed_topic_names"] = (topic,)
    return wire.call(CONSUMER_HEARTBEAT, consumer(group, epoch, member_id=member, **values))


def test_the_life_of_a_consumer_member(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, group = new_topic(2), unique("group")
    joined = consumer_beat(wire, group, "m", 0, topic)
    assert (joined.error_code, joined.member_epoch) == (E.none, 1)
    assert joined.heartbeat_interval.total_seconds() > 0
    epoch = joined.member_epoch

    def settled() -> bool:
        nonlocal epoch
        answer = consumer_beat(wire, group, "m", epoch)
        assert answer.error_code == E.none
        epoch = answer.member_epoch
        found = describe_consumer(wire, group)
        return bool(found.group_state == "Stable" and found.members[0].assignment.topic_partitions)

    wait_until(settled, what="an assignment")
    found = describe_consumer(wire, group)
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (epoch, epoch, "uniform")
    [member] = found.members
    assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == ("m", epoch, (topic,))
    assert [sorted(each.partitions) for each in member.assignment.topic_partitions] == [[0, 1]]
    assert listed(wire, group) == ("consumer", "Stable", "consumer")
    assert consumer_beat(wire, group, "m", epoch + 1).error_code == E.fenced_member_epoch
    assert consumer_beat(wire, group, "stranger", 1).error_code == E.unknown_member_id
    assert committed_code(wire, commit(group, topic, epoch, "m"), 9) == E.none
    assert committed_code(wire, commit(group, topic, epoch + 1, "m"), 9) == E.stale_member_epoch
    assert committed_code(wire, commit(group, topic, epoch, "stranger"), 9) == E.unknown_member_id
    assert committed_code(wire, commit(group, topic), 9) == E.unknown_member_id
    assert committed_code(wire, commit(group, topic, epoch, "m"), 8) == E.unsupported_version
    assert fetched_code(wire, group, topic, "m", epoch) == E.none
    assert fetched_code(wire, group, topic, "m", epoch + 1) == E.stale_member_epoch
    assert fetched_code(wire, group, topic, "stranger", epoch) == E.unknown_member_id
    assert fetched_code(wire, group, topic, None, -1) == E.none
    assert delete_group(wire, group) == E.non_empty_group
    assert delete_offset(wire, group, topic) == (E.none, E.group_subscribed_to_topic)
    described = wire.call(
        DESCRIBE_GROUPS,
        part("DescribeGroupsRequest", groups=(group,), include_authorized_operations=False),
        version=6,
    )
    assert described.groups[0].error_code == E.group_id_not_found
    left = consumer_beat(wire, group, "m", -1)
    assert (left.error_code, left.member_epoch) == (E.none, -1)
    assert consumer_beat(wire, group, "m", -1).error_code == E.unknown_member_id
    assert listed(wire, group) == ("consumer", "Empty", "consumer")
    assert delete_group(wire, group) == E.none
    assert listed(wire, group) is None


def describe_consumer(wire: Wire, group: str) -> Any:
    request = part("ConsumerGroupDescribeRequest", group_ids=(group,), include_authorized_operations=False)
    return wire.call(CONSUMER_DESCRIBE, request).groups[0]


def fetched_code(wire: Wire, group: str, topic: str, member: str | None, epoch: int) -> E:
    asked = part(
        "OffsetFetchRequestGroup",
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        topics=[part("OffsetFetchRequestTopics", name=topic, partition_indexes=(0,))],
    )
    answer = wire.call(OFFSET_FETCH, part("OffsetFetchRequest", groups=[asked], require_stable=False), version=9)
    code: E = answer.groups[0].error_code
    return code


def test_a_static_consumer_member_comes_back(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, group = new_topic(2), unique("group")
    joined = consumer_beat(wire, group, "one", 0, topic, instance_id="i")
    assert joined.error_code == E.none
    assert consumer_beat(wire, group, "two", 0, topic, instance_id="i").error_code == E.unreleased_instance_id
    assert consumer_beat(wire, group, "two", 1, instance_id="i").error_code == E.fenced_instance_id
    assert consumer_beat(wire, group, "one", 1, instance_id="another").error_code == E.unknown_member_id
    away = consumer_beat(wire, group, "one", -2, instance_id="i")
    assert (away.error_code, away.member_epoch) == (E.none, -2)
    back = consumer_beat(wire, group, "two", 0, topic, instance_id="i")
    assert (back.error_code, back.member_id) == (E.none, "two")
    assert consumer_beat(wire, group, "one", 1, instance_id="i").error_code == E.fenced_instance_id
    assert consumer_beat(wire, group, "one", -1, instance_id="i").error_code == E.fenced_instance_id
    assert consumer_beat(wire, group, "two", -1, instance_id="i").error_code == E.none


def test_kinds_of_groups_that_are_not_each_other(wire: Wire, new_topic: NewTopic, unique: Unique) -> None:
    topic, classic, newer = new_topic(), unique("classic"), unique("newer")
    other = join(classic, protocol_type="connect", protocols=protocols(topic))
    first = wire.call(JOIN, other, version=3)
    assert first.error_code == E.none
    assert consumer_beat(wire, classic, "m", 0, topic).error_code == E.group_id_not_found
    assert describe_consumer(wire, classic).error_code == E.group_id_not_found
    assert consumer_beat(wire, newer, "m", 0, topic).error_code == E.none
    connect = join(newer, protocol_type="connect", protocols=protocols(topic))
    assert wire.call(JOIN, connect, version=3).error_code == E.inconsistent_group_protocol
    # An empty group goes over by itself.
    assert consumer_beat(wire, newer, "m", -1).error_code == E.none
    again = wire.call(JOIN, join(newer, protocols=protocols(topic), rebalance_timeout=ms(1000)), version=3)
    assert again.error_code == E.none
