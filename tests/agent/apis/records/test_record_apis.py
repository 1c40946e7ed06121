"""Deleting records and asking where epochs end, as clients do."""

import pytest
from kio.schema.errors import ErrorCode
from tests.agent.apis.api_caller import ApiCaller, part
from tests.agent.apis.topic_calls import TIMEOUT, append, create, topic

from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import SnapshotRequest

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
