"""Deleting records and asking where epochs end, as clients do."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from tests.agent.apis.api_caller import ApiCaller, part
from tests.agent.apis.topic_calls import TIMEOUT, append, create, topic

from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.read_path.partition_answers import PartitionAnswers, PartitionRead, ReadServices
from braidlog.control.interface import SnapshotRequest
from braidlog.wire.fetch import FetchedPartition, FetchPartition

DELETE_RECORDS = 21


async def delete_records(call: ApiCaller, topic_name: str, offset: int, index: int = 0) -> tuple[ErrorCode, int]:
    partition = part("DeleteRecordsPartition", partition_index=index, offset=offset)
    wanted = part("DeleteRecordsTopic", name=topic_name, partitions=[partition])
    response = await call(DELETE_RECORDS, part("DeleteRecordsRequest", topics=[wanted], timeout=TIMEOUT))
    [result] = response.topics[0].partitions
    return result.error_code, result.low_watermark


async def test_a_partition_that_is_named_repeatedly_is_meant_once(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    partitions = [part("DeleteRecordsPartition", partition_index=0, offset=offset) for offset in (2, 4)]
    wanted = part("DeleteRecordsTopic", name="a", partitions=partitions * 100)
    response = await call(DELETE_RECORDS, part("DeleteRecordsRequest", topics=[wanted] * 3, timeout=TIMEOUT))
    [answered] = response.topics
    assert [(each.error_code, each.low_watermark) for each in answered.partitions] == [(ErrorCode.none, 4)]


async def test_records_are_deleted_up_to_an_offset(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    assert await delete_records(call, "a", 4) == (ErrorCode.none, 4)
    assert await delete_records(call, "a", 2) == (ErrorCode.none, 4)
    assert await delete_records(call, "a", 11) == (ErrorCode.offset_out_of_range, -1)
    assert await delete_records(call, "a", -2) == (ErrorCode.offset_out_of_range, -1)
    assert await delete_records(call, "a", -1) == (ErrorCode.none, 10)
    assert await delete_records(call, "a", 0, 1) == (ErrorCode.unknown_topic_or_partition, -1)
    assert await delete_records(call, "nowhere", 0) == (ErrorCode.unknown_topic_or_partition, -1)


@pytest.mark.parametrize(
    ("policy", "code"), [("compact", ErrorCode.policy_violation), ("compact,delete", ErrorCode.none)]
)
async def test_records_of_compacted_topics(call: ApiCaller, policy: str, code: ErrorCode) -> None:
    await create(call, topic("a", cleanup_policy=policy))
    assert (await delete_records(call, "a", 0))[0] is code


def _restored(agent: SimpleNamespace) -> None:
    """Begin leader epoch 2 at offset 6 of every partition, as a restore does."""
    for state in agent.control.parts.catalog.partitions.values():
        state.leader_epochs = ((0, 0), (2, 6))
    for partition in agent.view.partitions.values():
        partition.leader_epochs = ((0, 0), (2, 6))


async def test_epochs_after_a_restore(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    _restored(call.agent)
    asked = [(2, 0), (2, 1), (2, 2), (2, 3), (0, 0), (3, 0)]
    partitions = [
        part("OffsetForLeaderPartition", partition=0, current_leader_epoch=current, leader_epoch=epoch)
        for current, epoch in asked
    ]
    topics = [part("OffsetForLeaderTopic", topic="a", partitions=partitions)]
    [result] = (await call(23, part("OffsetForLeaderEpochRequest", topics=topics))).topics
    assert [(each.error_code, each.leader_epoch, each.end_offset) for each in result.partitions] == [
        (ErrorCode.none, 0, 6),
        (ErrorCode.none, 0, 6),
        (ErrorCode.none, 2, 10),
        (ErrorCode.none, -1, -1),
        (ErrorCode.fenced_leader_epoch, -1, -1),
        (ErrorCode.unknown_leader_epoch, -1, -1),
    ]


async def test_offsets_are_listed_with_the_epoch_they_belong_to(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    _restored(call.agent)
    answers = []
    for epoch, timestamp in ((-1, -2), (2, -1), (0, -1), (3, -1)):
        wanted = part("ListOffsetsPartition", partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)
        topics = [part("ListOffsetsTopic", name="a", partitions=[wanted])]
        [found] = (
            await call(2, part("ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=topics, timeout=TIMEOUT))
        ).topics
        answers.append((found.partitions[0].error_code, found.partitions[0].offset, found.partitions[0].leader_epoch))
    assert answers == [
        (ErrorCode.none, 0, 0),
        (ErrorCode.none, 10, 2),
        (ErrorCode.fenced_leader_epoch, -1, -1),
        (ErrorCode.unknown_leader_epoch, -1, -1),
    ]


async def test_a_fetch_is_fenced_by_its_epochs(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    _restored(call.agent)
    agent = call.agent
    reads = ReadServices(agent.view, agent.control, cast(Any, None), "")
    answers = PartitionAnswers(reads, committed_only=False, by_id=False, rack_id="")
    found = agent.view.topics_by_name["a"]

    def begin(offset: int, current: int, fetched: int = -1) -> FetchedPartition:
        begun = answers.begin(found, FetchPartition(0, offset, 0, current, fetched), 0, at_least_one=False)
        assert not isinstance(begun, PartitionRead)
        return begun

    assert begin(3, 2).error_code == ErrorCode.none
    assert begin(3, -1).error_code == ErrorCode.none
    assert begin(3, 0).error_code == ErrorCode.fenced_leader_epoch
    assert begin(3, 3).error_code == ErrorCode.unknown_leader_epoch
    assert begin(6, 2, 0).diverging_epoch == (-1, -1)
    assert begin(7, 2, 0).diverging_epoch == (0, 6)  # what it has read behind 6 is not in the log any more
    assert begin(7, 2, 2).diverging_epoch == (-1, -1)


async def test_where_epochs_end(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    stale, call.agent.view = call.agent.view, ClusterView()
    call.agent.view.load(await call.agent.control.snapshot(SnapshotRequest()))
    call.agent.view.topics_by_name["a"].partitions[0].high_watermark = 3  # behind: it must not be what counts
    asked = [(-1, 0), (0, 0), (1, 0), (0, 1), (0, -1)]
    partitions = [
        part("OffsetForLeaderPartition", partition=0, current_leader_epoch=current, leader_epoch=epoch)
        for current, epoch in asked
    ]
    partitions.append(part("OffsetForLeaderPartition", partition=1, leader_epoch=0))
    topics = [part("OffsetForLeaderTopic", topic="a", partitions=partitions)]
    [result] = (await call(23, part("OffsetForLeaderEpochRequest", topics=topics))).topics
    call.agent.view = stale
    assert [(each.error_code, each.leader_epoch, each.end_offset) for each in result.partitions] == [
        (ErrorCode.none, 0, 10),
        (ErrorCode.none, 0, 10),
        (ErrorCode.unknown_leader_epoch, -1, -1),
        (ErrorCode.none, -1, -1),
        (ErrorCode.none, -1, -1),
        (ErrorCode.unknown_topic_or_partition, -1, -1),
    ]
