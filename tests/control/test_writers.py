"""Writers that upload by themselves: all objects of a batch or none, once, and under a lease that keeps them."""

from pathlib import Path

import pytest
from tests.control.driver import (
    Plane,
    batch,
    create_topic,
    make_object,
    new_producer,
    outcomes,
    start_plane,
)
from tests.fakes import FakeClock

from braidlog.control.interface import (
    BoundsRequest,
    CommitObject,
    CommitObjects,
    CommittedObjects,
    DeleteTopics,
    FeedRequest,
    FindExtents,
    LeaseWriteEpoch,
    ObjectSequenced,
    SnapshotRequest,
    TopicInfo,
    TopicRef,
)
from braidlog.control.settings import ControlSettings
from braidlog.control.writers import BATCHES_REMEMBERED, LEASE_LIFE_MS_MAX, LeaseEnded
from braidlog.objects.memory import MemoryBucket
from braidlog.runtime.errors import InvalidSetting


def objects_of(topic: TopicInfo, *counts: int) -> list[CommitObject]:
    """One object per count, with so many records in each partition."""
    return [
        make_object([(topic.topic_id, index, [batch(count)]) for index in range(len(topic.partition_ids))])
        for count in counts
    ]


async def commit(plane: Plane, batch_id: int, objects: list[CommitObject], writer: str = "query") -> CommittedObjects:
    return await plane.service.commit_objects(CommitObjects(writer, batch_id, objects))


async def high_watermarks(plane: Plane, topic: TopicInfo) -> list[int]:
    answer = await plane.service.current_bounds(BoundsRequest(topic.partition_ids))
    return [bounds.high_watermark for bounds in answer.bounds]


async def test_all_objects_of_a_batch_are_sequenced_in_their_order() -> None:
    plane = await start_plane()
    topic = await create_topic(plane.service, partitions=2)
    before = (await plane.service.snapshot(SnapshotRequest())).position
    answer = await commit(plane, 0, objects_of(topic, 3, 4))
    assert answer.error_code == 0
    assert not answer.repeated
    assert [outcomes(verdict) for verdict in answer.verdicts] == [
        [(0, 0, False), (0, 0, False)],
        [(0, 3, False), (0, 3, False)],
    ]
    page = await plane.service.read_feed(FeedRequest(before, 0))
    assert [len(event.extents) for event in page.events if isinstance(event, ObjectSequenced)] == [2, 2]
    await plane.service.close()


async def test_a_repeated_batch_gets_its_first_answer_and_changes_nothing() -> None:
    plane = await start_plane()
    topic = await create_topic(plane.service)
    first = await commit(plane, 5, objects_of(topic, 3))
    again = await commit(plane, 5, objects_of(topic, 3, 9))
    assert again.repeated
    assert again.verdicts == first.verdicts
    assert await high_watermarks(plane, topic) == [3]
    # Another writer's batch of the same number is another batch.
    assert not (await commit(plane, 5, objects_of(topic, 2), writer="other")).repeated
    assert await high_watermarks(plane, topic) == [5]
    await plane.service.close()


async def test_batches_are_known_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'metadata.db'}"
    bucket = MemoryBucket()
    plane = await start_plane(url, bucket=bucket)
    topic = await create_topic(plane.service)
    first = await commit(plane, 0, objects_of(topic, 3))
    await plane.service.close()
    plane = await start_plane(url, bucket=bucket)
    again = await commit(plane, 0, objects_of(topic, 3))
    assert again.repeated
    assert again.verdicts == first.verdicts
    found = await plane.service.find_extents(FindExtents(topic.partition_ids[0], 0, 1 << 30))
    assert [(extent.base_offset, extent.end_offset) for extent in found.extents] == [(0, 3)]
    await plane.service.close()


async def test_an_earlier_batch_that_is_not_known_is_refused() -> None:
    plane = await start_plane()
    topic = await create_topic(plane.service)
    for batch_id in range(BATCHES_REMEMBERED + 2):
        await commit(plane, batch_id, objects_of(topic, 1))
    assert (await commit(plane, 2, objects_of(topic, 1))).repeated
    refused = await commit(plane, 0, objects_of(topic, 1))
    assert refused.error_code != 0
    assert "already" in refused.error_message
    assert await high_watermarks(plane, topic) == [BATCHES_REMEMBERED + 2]
    await plane.service.close()


async def test_one_bad_object_refuses_all() -> None:
    plane = await start_plane()
    topic = await create_topic(plane.service)
    gone = await create_topic(plane.service, "gone")
    await plane.service.delete_topics(DeleteTopics([TopicRef("gone")]))
    producer_id = await new_producer(plane.service)
    bad = [
        make_object([(gone.topic_id, 0, [batch()])]),
        make_object([(topic.topic_id, 1, [batch()])]),
        make_object([(topic.topic_id, 0, [batch(pid=producer_id)])]),
        make_object([(topic.topic_id, 0, [batch(attributes=0x10)])]),
    ]
    for each in bad:
        answer = await commit(plane, 0, [*objects_of(topic, 3), each])
        assert answer.error_code != 0
        assert answer.error_message
    assert await high_watermarks(plane, topic) == [0]
    # The batch was not used up by it.
    assert (await commit(plane, 0, objects_of(topic, 3))).error_code == 0
    assert await high_watermarks(plane, topic) == [3]
    await plane.service.close()


async def test_commits_of_agents_and_of_writers_share_one_order() -> None:
    plane = await start_plane()
    topic = await create_topic(plane.service)
    await plane.service.commit_object(make_object([(topic.topic_id, 0, [batch(2)])]))
    answer = await commit(plane, 0, objects_of(topic, 3))
    assert outcomes(answer.verdicts[0]) == [(0, 2, False)]
    verdict = await plane.service.commit_object(make_object([(topic.topic_id, 0, [batch(1)])]))
    assert outcomes(verdict) == [(0, 5, False)]
    await plane.service.close()


SWIFT = ControlSettings(epoch_interval_s=1e9, grace_epochs=1, write_lease_s=100.0, sweep_interval_s=1e9)
"""Epochs advance only by hand."""


async def advance(plane: Plane, epochs: int) -> None:
    for _ in range(epochs):
        await plane.service.parts.epochs.advance()


async def test_a_lease_keeps_what_was_uploaded_under_it(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'metadata.db'}"
    clock = FakeClock(sleepers_wait=True)
    plane = await start_plane(url, settings=SWIFT, clock=clock)
    topic = await create_topic(plane.service)
    lease = await plane.service.lease_write_epoch(LeaseWriteEpoch("job"))
    assert lease.store_url == "memory://"
    objects = [make_object([(topic.topic_id, 0, [batch(3)])], write_epoch=lease.write_epoch)]
    await advance(plane, 5)
    await plane.service.parts.sweeper.run_once()
    assert plane.service.parts.epochs.floor <= lease.write_epoch
    await plane.service.close()
    # Also through a restart, and as often as it is renewed.
    plane = await start_plane(url, settings=SWIFT, clock=clock)
    for _ in range(4):
        clock.advance(80)
        renewed = await plane.service.lease_write_epoch(LeaseWriteEpoch("job"))
        assert renewed.write_epoch == plane.service.parts.epochs.current
        await plane.service.parts.sweeper.run_once()
    answer = await plane.service.commit_objects(CommitObjects("query", 0, objects, "job"))
    assert answer.error_code == 0
    # With the commit it is given back.
    await plane.service.parts.sweeper.run_once()
    assert plane.service.parts.epochs.floor == plane.service.parts.epochs.current - 1
    await plane.service.close()


async def test_what_a_lost_lease_held_can_only_fail() -> None:
    clock = FakeClock(sleepers_wait=True)
    plane = await start_plane(settings=SWIFT, clock=clock)
    topic = await create_topic(plane.service)
    lease = await plane.service.lease_write_epoch(LeaseWriteEpoch("job"))
    objects = [make_object([(topic.topic_id, 0, [batch(3)])], write_epoch=lease.write_epoch)]
    await advance(plane, 5)
    clock.advance(101)
    await plane.service.parts.sweeper.run_once()
    with pytest.raises(LeaseEnded):
        await plane.service.lease_write_epoch(LeaseWriteEpoch("job"))
    answer = await plane.service.commit_objects(CommitObjects("query", 0, objects, "job"))
    assert answer.error_code != 0
    assert "floor" in answer.error_message
    assert await high_watermarks(plane, topic) == [0]
    await plane.service.close()


async def test_no_lease_is_renewed_for_ever() -> None:
    clock = FakeClock(sleepers_wait=True)
    plane = await start_plane(settings=SWIFT, clock=clock)
    await plane.service.lease_write_epoch(LeaseWriteEpoch("job"))
    clock.advance(LEASE_LIFE_MS_MAX / 1000 + 1)
    with pytest.raises(LeaseEnded):
        await plane.service.lease_write_epoch(LeaseWriteEpoch("job"))
    await plane.service.parts.writers.expire_once()
    assert plane.service.parts.writers.lowest_leased_epoch() is None
    await plane.service.close()


async def test_writers_that_were_silent_for_long_are_forgotten() -> None:
    clock = FakeClock(sleepers_wait=True)
    plane = await start_plane(clock=clock)
    topic = await create_topic(plane.service)
    await commit(plane, 3, objects_of(topic, 1), writer="old")
    clock.advance(20 * 24 * 3600)
    await commit(plane, 3, objects_of(topic, 1), writer="new")
    clock.advance(20 * 24 * 3600)
    await plane.service.parts.writers.expire_once()
    assert (await commit(plane, 3, objects_of(topic, 1), writer="new")).repeated
    assert not (await commit(plane, 3, objects_of(topic, 1), writer="old")).repeated
    await plane.service.close()


async def test_names_and_numbers_have_limits() -> None:
    plane = await start_plane()
    with pytest.raises(InvalidSetting):
        await plane.service.commit_objects(CommitObjects("", 0, []))
    with pytest.raises(InvalidSetting):
        await plane.service.commit_objects(CommitObjects("query", -1, []))
    with pytest.raises(InvalidSetting):
        await plane.service.lease_write_epoch(LeaseWriteEpoch("x" * 1000))
    await plane.service.close()
