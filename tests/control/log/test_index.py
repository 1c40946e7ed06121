"""The extent index: records by time, and how the front of a log goes."""

from tests.control.driver import batch, commit, create_topic

from braidlog.control.interface import (
    ControlPlane,
    DeleteRecords,
    FindExtents,
    FindTimestamp,
)


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
