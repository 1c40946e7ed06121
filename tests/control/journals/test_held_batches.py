"""Held batches: durable, bounded, and readable once they are appended."""

from pathlib import Path

from tests.control.driver import Plane, batch, new_producer
from tests.control.journals.driver import Journal, read_log, restarted

from braidlog.control.interface import (
    BatchVerdict,
    FeedRequest,
    ObjectSequenced,
    SnapshotRequest,
)


async def test_no_more_are_held_than_there_is_room_for(plane: Plane, journal: Journal) -> None:
    pids = [await new_producer(plane.service) for _ in range(30)]
    for place, pid in enumerate(pids):
        plane.clock.advance(1)
        await journal.commit(batch(1, pid, 0, 1))
        await plane.service.parts.sequencer.close()
        assert plane.service.parts.journals.statistics().held_batches <= 20, place
    log = await read_log(plane.service, journal.topic.partition_ids[0], journal.files)
    assert [each.producer_id for each in log] == pids[: len(log)]
    assert len(log) >= 10


async def test_a_restart_keeps_held_batches_watermarks_and_gaps(plane: Plane, journal: Journal, tmp_path: Path) -> None:
    pid = await new_producer(plane.service)
    await journal.commit(batch(1, pid, 0, 0))
    await journal.commit(batch(1, pid, 0, 4))
    plane.clock.advance(600)
    await plane.service.parts.journals.give_up_once()
    await journal.commit(batch(1, pid, 0, 7))
    plane = await restarted(plane, tmp_path)
    assert plane.service.parts.journals.sequences.records["agent-a", 0].watermark == 3
    assert plane.service.parts.journals.statistics().held_batches == 1
    assert await journal.commit(batch(1, pid, 0, 7)) == [BatchVerdict(0, -1, True)]
    assert await journal.commit(batch(1, pid, 0, 2)) == [BatchVerdict(0, 2)]
    plane = await restarted(plane, tmp_path)
    assert await journal.commit(batch(1, pid, 0, 2)) == [BatchVerdict(0, -1, True)]
    assert await journal.commit(batch(2, pid, 0, 5)) == [BatchVerdict(0, 3)]
    assert await journal.log() == [(0, 0), (0, 4), (0, 2), (0, 5), (0, 7)]


async def test_held_batches_are_readable_at_once_where_they_lie(plane: Plane, journal: Journal) -> None:
    """The feed tells of them as extents of their own objects, in the order of offsets."""
    pid = await new_producer(plane.service)
    snapshot = await plane.service.snapshot(SnapshotRequest())
    await journal.commit(batch(1, pid, 0, 1), batch(1))
    await journal.commit(batch(1, pid, 0, 0), batch(1))
    page = await plane.service.read_feed(FeedRequest(snapshot.position, 0))
    events = [event for event in page.events if isinstance(event, ObjectSequenced)]
    assert [(event.object.key[-1], [each.base_offset for each in event.extents]) for event in events] == [
        ("0", [0]),
        ("1", [1]),
        ("0", [3]),
    ]
