"""The sequencer: offsets in order, every object once, refused batches alone."""

import asyncio

from tests.control.driver import START_MS, batch, commit, create_topic, make_object, new_producer

from braidlog.control.interface import (
    BoundsRequest,
    CommitObject,
    ControlPlane,
    FindExtents,
)


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
