"""One behaviour, embedded and in another process' place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.control.driver import START_MS, Plane, batch, commit, create_topic, make_object, new_producer, start_plane

from braidlog.control.interface import (
    AgentHeartbeat,
    AgentLeave,
    AgentRemoved,
    AlterConfigs,
    BoundsChanged,
    BoundsRequest,
    CommitObject,
    ConfigChange,
    ControlPlane,
    CreatePartitions,
    CreateTopics,
    DeleteRecords,
    DeleteTopics,
    FeedPosition,
    FeedRequest,
    FindExtents,
    FindTimestamp,
    InitProducerId,
    ListGroups,
    NewTopic,
    ObjectSequenced,
    PartitionGrowth,
    RegisterAgent,
    SnapshotRequest,
    TopicChanged,
    TopicRef,
    TopicRemoved,
)
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.settings import ControlSettings
from braidlog.objects.format import CorruptObject
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import DeadlineExceeded


@asynccontextmanager
async def offered(kind: str, plane: Plane) -> AsyncIterator[ControlPlane]:
    if kind == "embedded":
        yield plane.service
        return
    server = await serve_control(plane.service, "127.0.0.1:0")
    remote = connect_control(server.address, plane.clock, SeededEntropy(1))
    try:
        yield remote
    finally:
        await remote.close()
        await server.close()


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    # Four recent extents, so that every test also meets extents that have settled.
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=ControlSettings(recent_extents_max=4))
    yield plane
    await plane.service.close()


@pytest.fixture(params=["embedded", "remote"])
async def control(request: pytest.FixtureRequest, plane: Plane) -> AsyncIterator[ControlPlane]:
    async with offered(request.param, plane) as control:
        yield control


async def test_topics_are_created_grown_and_deleted(control: ControlPlane) -> None:
    topic = await create_topic(control, "a.b", 2, retention_ms="5")
    assert len(set(topic.partition_ids)) == 2
    assert topic.configs == {"retention.ms": "5"}
    grown = (await control.create_partitions(CreatePartitions([PartitionGrowth("a.b", 3)]))).outcomes[0]
    assert grown.topic is not None
    assert grown.topic.partition_ids[:2] == topic.partition_ids
    deleted = await control.delete_topics(DeleteTopics([TopicRef("", topic.topic_id)]))
    assert [outcome.error_code for outcome in deleted.outcomes] == [0]
    again = await create_topic(control, "a.b", 1)
    assert again.topic_id != topic.topic_id
    assert not set(again.partition_ids) & set(grown.topic.partition_ids)


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("", 1), 17),
        (NewTopic("..", 1), 17),
        (NewTopic("a b", 1), 17),
        (NewTopic("a" * 250, 1), 17),
        (NewTopic("taken", 1), 36),
        (NewTopic("with_dot", 1), 17),
        (NewTopic("new", 0), 37),
        (NewTopic("new", -2), 37),
        (NewTopic("new", 100_001), 37),
        (NewTopic("new", 1, 0), 38),
        (NewTopic("new", 1, -2), 38),
        (NewTopic("new", 1, 3), 0),
        (NewTopic("new", -1, -1), 0),
        (NewTopic("new", 1, configs={"no.such": "1"}), 40),
        (NewTopic("new", 1, configs={"retention.ms": "soon"}), 40),
    ],
)
async def test_wrong_topics_get_kafkas_codes(control: ControlPlane, new: NewTopic, code: int) -> None:
    await create_topic(control, "taken")
    await create_topic(control, "with.dot")
    for validate_only in (True, False):
        answer = await control.create_topics(CreateTopics([new], validate_only))
        assert answer.outcomes[0].error_code == code
        assert bool(answer.outcomes[0].error_message) == (code != 0)


async def test_a_topic_named_twice_in_one_request_is_refused(control: ControlPlane) -> None:
    answer = await control.create_topics(CreateTopics([NewTopic("x", 1), NewTopic("x", 2), NewTopic("y", 1)]))
    assert [outcome.error_code for outcome in answer.outcomes] == [42, 42, 0]
    y = answer.outcomes[2].topic
    assert y is not None
    answer = await control.delete_topics(DeleteTopics([TopicRef("y"), TopicRef("", y.topic_id), TopicRef("x")]))
    assert [outcome.error_code for outcome in answer.outcomes] == [0, 42, 3]
    answer = await control.delete_topics(DeleteTopics([TopicRef("", y.topic_id)]))
    assert answer.outcomes[0].error_code == 100


async def test_partitions_can_only_grow(control: ControlPlane) -> None:
    await create_topic(control, "t", 2)
    wanted = [PartitionGrowth("t", 2), PartitionGrowth("none", 3)]
    answer = await control.create_partitions(CreatePartitions(wanted))
    assert [outcome.error_code for outcome in answer.outcomes] == [37, 3]


async def test_configs_are_altered_step_by_step_or_as_a_whole(control: ControlPlane) -> None:
    await create_topic(control, "t", 1, retention_ms="5")

    async def alter(name: str, *changes: ConfigChange, kind: int = 2, **options: bool) -> int:
        return (await control.alter_configs(AlterConfigs(kind, name, list(changes), **options))).error_code

    assert await alter("t", ConfigChange("cleanup.policy", 2, "compact")) == 0
    assert await alter("t", ConfigChange("retention.ms", 2, "1")) == 40
    assert await alter("t", ConfigChange("retention.ms", 0, "x"), validate_only=True) == 40
    assert await alter("t", ConfigChange("retention.ms", 0, "7"), validate_only=True) == 0
    assert await alter("t", ConfigChange("retention.ms", 0, "7"), ConfigChange("retention.ms", 1, None)) == 42
    assert await alter("none", ConfigChange("retention.ms", 0, "7")) == 3
    assert await alter("1", ConfigChange("num.partitions", 0, "7"), kind=4) == 42
    assert await alter("", ConfigChange("num.partitions", 0, "7"), kind=4) == 0
    snapshot = await control.snapshot(SnapshotRequest())
    assert snapshot.topics[0].configs == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    assert snapshot.cluster_configs == {"num.partitions": "7"}
    assert len((await create_topic(control, "wide", -1)).partition_ids) == 7
    assert await alter("t", ConfigChange("retention.bytes", 0, "1"), replace=True) == 0
    snapshot = await control.snapshot(SnapshotRequest())
    assert snapshot.topics[0].configs == {"retention.bytes": "1"}


async def test_offsets_are_given_in_order_and_found_again(control: ControlPlane) -> None:
    topic = await create_topic(control, "t", 2)
    for number in range(12):
        assert await commit(control, topic, [batch(2), batch(3)]) == [
            (0, 5 * number, False),
            (0, 5 * number + 2, False),
        ]
    partition_id = topic.partition_ids[0]
    for offset in range(60):
        found = await control.find_extents(FindExtents(partition_id, offset, 1))
        assert found.known
        assert found.bounds.high_watermark == 60
        [extent] = found.extents
        assert extent.base_offset <= offset < extent.end_offset
        assert [stored.number for stored in found.objects] == [extent.object_number]
    everything = (await control.find_extents(FindExtents(partition_id, 7, 10**9))).extents
    assert [extent.base_offset for extent in everything] == list(range(5, 60, 5))
    assert len((await control.find_extents(FindExtents(partition_id, 0, 10**9, 5))).extents) == 5
    assert len((await control.find_extents(FindExtents(partition_id, 0, 401))).extents) == 3
    assert (await control.find_extents(FindExtents(partition_id, 60, 1))).extents == []
    assert not (await control.find_extents(FindExtents(999, 0, 1))).known
    bounds = (await control.current_bounds(BoundsRequest([topic.partition_ids[1], 999, partition_id]))).bounds
    assert [(bound.partition_id, bound.high_watermark, bound.size_bytes) for bound in bounds] == [
        (topic.partition_ids[1], 0, 0),
        (partition_id, 60, 2400),
    ]


async def test_an_object_is_sequenced_once(control: ControlPlane) -> None:
    topic = await create_topic(control, "t", 3)
    request = make_object([(topic.topic_id, index, [batch(4)]) for index in range(3)])
    verdicts = await asyncio.gather(*(control.commit_object(request) for _ in range(3)))
    verdicts.append(await control.commit_object(request))
    assert all(verdict == verdicts[0] for verdict in verdicts)
    bounds = await control.current_bounds(BoundsRequest(topic.partition_ids))
    assert [bound.high_watermark for bound in bounds.bounds] == [4, 4, 4]


async def test_concurrent_commits_leave_no_gap(control: ControlPlane) -> None:
    topic = await create_topic(control)
    answers = await asyncio.gather(*(commit(control, topic, [batch(3)]) for _ in range(50)))
    assert sorted(answer[0][1] for answer in answers) == list(range(0, 150, 3))


async def test_a_refused_batch_splits_its_extent(control: ControlPlane) -> None:
    topic = await create_topic(control, "t", 2)
    pid = await new_producer(control)
    batches = [
        batch(1, timestamp_ms=START_MS + 5),
        batch(2, attributes=0x10),
        batch(3, pid, 0, 7),
        batch(4, pid, 0, 0, timestamp_ms=START_MS + 1),
        batch(5, attributes=0x20),
        batch(6, pid, 0, 4),
    ]
    unknown = (b"\xff" * 16, 0, [batch()])
    request = make_object([(topic.topic_id, 0, batches), (topic.topic_id, 2, [batch(), batch()]), unknown])
    verdict = await control.commit_object(request)
    codes = [[(each.error_code, each.base_offset) for each in extent.verdicts] for extent in verdict.extents]
    assert codes == [
        [(0, 0), (87, -1), (45, -1), (0, 1), (87, -1), (0, 5)],
        [(3, -1), (3, -1)],
        [(100, -1)],
    ]
    found = await control.find_extents(FindExtents(topic.partition_ids[0], 0, 10**9))
    assert [(each.base_offset, each.end_offset, each.position, each.length) for each in found.extents] == [
        (0, 1, 0, 100),
        (1, 5, 300, 100),
        (5, 11, 500, 100),
    ]
    assert [each.timestamp_ms_max for each in found.extents] == [START_MS + 5, START_MS + 1, START_MS]
    assert found.bounds.size_bytes == 300


async def test_producers_are_identified_and_fenced(control: ControlPlane) -> None:
    first, second = await new_producer(control), await new_producer(control)
    assert first != second
    bumped = await control.init_producer_id(InitProducerId(None, 0, first, 0))
    assert (bumped.error_code, bumped.producer_id, bumped.producer_epoch) == (0, first, 1)
    assert (await control.init_producer_id(InitProducerId(None, 0, first, 0))).error_code == 47
    exhausted = await control.init_producer_id(InitProducerId(None, 0, first, 32_767))
    assert exhausted.producer_id not in (first, second)
    assert exhausted.producer_epoch == 0
    transactional = await control.init_producer_id(InitProducerId("tx", 1000))
    assert transactional.error_code == 0
    assert transactional.producer_id not in (first, second, exhausted.producer_id)


async def test_records_are_found_by_time(control: ControlPlane) -> None:
    topic = await create_topic(control)
    for minute in (1, 3, 2, 5, 4, 5):
        await commit(control, topic, [batch(10, timestamp_ms=minute)])

    async def first(timestamp_ms: int) -> list[int]:
        found = await control.find_timestamp(FindTimestamp(topic.partition_ids[0], timestamp_ms))
        return [extent.base_offset for extent in found.extents]

    assert [await first(when) for when in (0, 2, 4, 5, 6, -1)] == [[0], [10], [30], [30], [], [30]]


async def test_records_are_deleted_from_the_front(control: ControlPlane) -> None:
    topic = await create_topic(control)
    partition_id = topic.partition_ids[0]
    for _ in range(6):
        await commit(control, topic, [batch(10)])
    deleted = await control.delete_records(DeleteRecords(partition_id, 35))
    assert (deleted.error_code, deleted.log_start_offset) == (0, 35)
    found = await control.find_extents(FindExtents(partition_id, 35, 10**9))
    assert [extent.base_offset for extent in found.extents] == [30, 40, 50]
    assert (found.bounds.log_start_offset, found.bounds.size_bytes) == (35, 300)
    assert (await control.delete_records(DeleteRecords(partition_id, 5))).log_start_offset == 35
    assert (await control.delete_records(DeleteRecords(partition_id, 61))).error_code == 1
    assert (await control.delete_records(DeleteRecords(partition_id, -1))).log_start_offset == 60
    assert (await control.find_extents(FindExtents(partition_id, 60, 1))).extents == []
    assert await commit(control, topic, [batch()]) == [(0, 60, False)]
    assert (await control.delete_records(DeleteRecords(999, -1))).error_code == 3
    compacted = await create_topic(control, "c", 1, cleanup_policy="compact")
    assert (await control.delete_records(DeleteRecords(compacted.partition_ids[0], -1))).error_code == 44


async def test_agents_keep_their_node_id_and_expire(control: ControlPlane, plane: Plane) -> None:
    first = await control.register_agent(RegisterAgent("one", "host", 1, "a"))
    second = await control.register_agent(RegisterAgent("two", "host", 2, "b"))
    assert (first.node_id, second.node_id) == (1, 2)
    assert (await control.register_agent(RegisterAgent("one-again", "host", 1, "a"))).node_id == 1
    assert not (await control.heartbeat_agent(AgentHeartbeat("one"))).known
    beat = await control.heartbeat_agent(AgentHeartbeat("two"))
    assert (beat.known, beat.write_epoch) == (True, first.write_epoch)
    position = (await control.snapshot(SnapshotRequest())).position
    plane.clock.advance(9)
    await control.heartbeat_agent(AgentHeartbeat("two"))
    plane.clock.advance(2)
    await plane.service.agents.expire_once()
    page = await control.read_feed(FeedRequest(position, 0))
    assert page.events == [AgentRemoved(1)]
    assert [agent.node_id for agent in (await control.snapshot(SnapshotRequest())).agents] == [2]
    await control.leave_agent(AgentLeave("two"))
    assert (await control.snapshot(SnapshotRequest())).agents == []
    assert (await control.register_agent(RegisterAgent("two-again", "host", 2, "b"))).node_id == 2
    with pytest.raises(Exception, match="another agent"):
        await control.register_agent(RegisterAgent("three", "host", 3, "b", node_id=2))


async def test_the_feed_tells_every_change_in_order(control: ControlPlane) -> None:
    position = (await control.snapshot(SnapshotRequest())).position
    topic = await create_topic(control)
    await commit(control, topic, [batch(3)])
    await control.delete_records(DeleteRecords(topic.partition_ids[0], 1))
    await control.delete_topics(DeleteTopics([TopicRef(topic.name)]))
    page = await control.read_feed(FeedRequest(position, 0))
    assert [type(event) for event in page.events] == [TopicChanged, ObjectSequenced, BoundsChanged, TopicRemoved]
    assert not page.reload
    again = await control.read_feed(FeedRequest(page.position, 0))
    assert (again.events, again.position) == ([], page.position)


async def test_a_waiting_reader_wakes_with_the_change(control: ControlPlane) -> None:
    position = (await control.snapshot(SnapshotRequest())).position
    reading = asyncio.create_task(control.read_feed(FeedRequest(position, 60_000)))
    topic = await create_topic(control)
    page = await reading
    assert page.events == [TopicChanged(topic)]
    assert (await control.read_feed(FeedRequest(page.position, 10))).events == []


async def test_a_reader_from_elsewhere_must_reload(control: ControlPlane) -> None:
    position = (await control.snapshot(SnapshotRequest())).position
    for wrong in (
        FeedPosition(position.fencing_epoch - 1, position.revision),
        FeedPosition(position.fencing_epoch, position.revision + 1),
        FeedPosition(-1, -1),
    ):
        assert (await control.read_feed(FeedRequest(wrong, 60_000))).reload


async def test_a_deadline_holds(control: ControlPlane) -> None:
    position = (await control.snapshot(SnapshotRequest())).position
    with pytest.raises(DeadlineExceeded):
        await control.read_feed(FeedRequest(position, 60_000), timeout_s=0.01)


async def test_garbage_is_refused_with_a_typed_error(control: ControlPlane) -> None:
    topic = await create_topic(control)
    good = make_object([(topic.topic_id, 0, [batch()])])
    with pytest.raises(CorruptObject):
        await control.commit_object(CommitObject(good.key, good.size, b"\x00"))
    with pytest.raises(CorruptObject):
        await control.commit_object(CommitObject(good.key, 10, good.footer))
    other = make_object([(topic.topic_id, 0, [batch()])], write_epoch=2)
    with pytest.raises(CorruptObject):
        await control.commit_object(CommitObject(other.key, good.size, good.footer))


async def test_two_objects_cannot_share_a_key(control: ControlPlane) -> None:
    topic = await create_topic(control)
    first, second, third = (make_object([(topic.topic_id, 0, [batch()])]) for _ in range(3))
    clashing = CommitObject(first.key, second.size, second.footer)
    await control.commit_object(first)
    answers = await asyncio.gather(
        control.commit_object(clashing), control.commit_object(third), return_exceptions=True
    )
    assert isinstance(answers[0], Exception)
    assert not isinstance(answers[1], BaseException)
    assert answers[1].extents[0].verdicts[0].base_offset == 1


async def test_groups_are_served(control: ControlPlane) -> None:
    assert (await control.list_groups(ListGroups())).groups == []
