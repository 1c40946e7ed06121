"""What leaves: objects that nothing points to, records that are too old, producers that are silent."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.driver import START_MS, Plane, batch, commit, create_topic, make_object, new_producer, start_plane

from braidlog.control.interface import (
    BoundsRequest,
    CommitObject,
    DeleteRecords,
    DeleteTopics,
    FenceAgent,
    FindExtents,
    TopicInfo,
    TopicRef,
)
from braidlog.control.settings import ControlSettings
from braidlog.objects.keys import parse_data_key

SETTINGS = ControlSettings(grace_epochs=2, unreferenced_grace_s=60.0, full_sweep_interval_s=1000.0)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


async def upload(plane: Plane, topic: TopicInfo) -> CommitObject:
    request = make_object([(topic.topic_id, 0, [batch()])], write_epoch=plane.service.epochs.current)
    await plane.store.put(request.key, b"x" * request.size)
    return request


async def pass_epochs(plane: Plane, count: int) -> None:
    for _ in range(count):
        await plane.service.epochs.advance()


async def test_an_orphan_is_swept_and_can_never_be_sequenced(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    kept, orphan = await upload(plane, topic), await upload(plane, topic)
    first_verdict = await plane.service.commit_object(kept)
    await pass_epochs(plane, 2)
    assert (await plane.service.sweeper.run_once()).orphan_count == 0
    await pass_epochs(plane, 1)
    swept = await plane.service.sweeper.run_once()
    assert (swept.listed_count, swept.orphan_count) == (2, 1)
    assert plane.keys == [kept.key]
    refused = await plane.service.commit_object(orphan)
    assert (refused.error_code, refused.extents) == (6, [])
    assert (await plane.service.commit_object(kept)) == first_verdict
    # Only what is new is listed: nothing was written since.
    await pass_epochs(plane, 1)
    assert (await plane.service.sweeper.run_once()).listed_count == 0


async def test_nothing_of_a_writer_that_was_fenced_off_is_sequenced_any_more(plane: Plane, tmp_path: Path) -> None:
    topic = await create_topic(plane.service)
    before, late = await upload(plane, topic), await upload(plane, topic)
    verdict = await plane.service.commit_object(before)
    incarnation = parse_data_key(late.key).incarnation
    await plane.service.fence_agent(FenceAgent(incarnation))
    await plane.service.fence_agent(FenceAgent(incarnation))
    refused = await plane.service.commit_object(late)
    assert (refused.error_code, refused.extents) == (6, [])
    assert "fenced off" in refused.error_message
    assert await plane.service.commit_object(before) == verdict
    # A new control plane knows of it, and nobody has to once the floor has passed.
    restarted = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    assert (await restarted.service.commit_object(late)).error_code == 6
    await pass_epochs(restarted, 3)
    await restarted.service.sweeper.run_once()
    assert await restarted.metadata.read(lambda tx: tx.query("SELECT * FROM fenced_writers")) == []
    assert (await restarted.service.commit_object(late)).error_code == 6
    await restarted.service.close()


async def test_the_floor_is_up_before_anything_is_listed(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    late = await upload(plane, topic)
    await pass_epochs(plane, 3)
    seen: list[int] = []
    list_objects = plane.store.list

    async def commit_while_listing(prefix: str, *, after: str | None = None, limit: int = 1000) -> object:
        verdict = await plane.service.commit_object(late)
        seen.append(verdict.error_code)
        return await list_objects(prefix, after=after, limit=limit)

    plane.store.list = commit_while_listing  # type: ignore[method-assign,assignment]
    assert (await plane.service.sweeper.run_once()).orphan_count == 1
    assert set(seen) == {6}


async def test_what_lands_after_its_epoch_was_swept_is_found_by_a_full_sweep(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    late = make_object([(topic.topic_id, 0, [batch()])], write_epoch=1)
    await pass_epochs(plane, 4)
    await plane.service.sweeper.run_once()
    await plane.store.put(late.key, b"x")
    assert (await plane.service.sweeper.run_once()).orphan_count == 0
    plane.clock.advance(2000)
    assert (await plane.service.sweeper.run_once()).orphan_count == 1
    assert plane.keys == []


async def test_an_object_goes_a_while_after_its_last_extent(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    request = await upload(plane, topic)
    await plane.service.commit_object(request)
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], -1))
    assert (await plane.service.sweeper.run_once()).unreferenced_count == 0
    plane.clock.advance(61)
    assert (await plane.service.sweeper.run_once()).unreferenced_count == 1
    assert plane.keys == []
    # Its nonce is known until the floor has passed: it cannot come back.
    assert (await plane.service.commit_object(request)).extents[0].verdicts[0].base_offset == 0
    await pass_epochs(plane, 3)
    await plane.service.sweeper.run_once()
    assert await plane.metadata.read(lambda tx: tx.query("SELECT number FROM objects")) == []
    plane.service.sequencer._verdicts.clear()
    assert (await plane.service.commit_object(request)).error_code == 6
    assert (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds[0].high_watermark == 1


async def test_an_object_with_nothing_accepted_is_swept(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    request = await upload(plane, topic)
    await plane.service.delete_topics(DeleteTopics([TopicRef(topic.name)]))
    assert (await plane.service.commit_object(request)).extents[0].verdicts[0].error_code == 100
    plane.clock.advance(61)
    assert (await plane.service.sweeper.run_once()).unreferenced_count == 1


async def test_a_deleted_topics_objects_go(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    other = await create_topic(plane.service, "other")
    requests = [await upload(plane, topic) for _ in range(3)]
    shared = make_object([(topic.topic_id, 0, [batch()]), (other.topic_id, 0, [batch()])])
    await plane.store.put(shared.key, b"x")
    for request in [*requests, shared]:
        await plane.service.commit_object(request)
    await plane.service.delete_topics(DeleteTopics([TopicRef(topic.name)]))
    assert await plane.service.retention.run_once() == 4
    plane.clock.advance(61)
    assert (await plane.service.sweeper.run_once()).unreferenced_count == 3
    assert plane.keys == [shared.key]
    assert await plane.metadata.read(lambda tx: tx.query("SELECT COUNT(*) FROM partitions")) == [(1,)]


async def test_retention_by_time_keeps_what_is_behind_a_young_extent(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_ms="10000")
    for age_s in (30, 20, 5, 25):
        await commit(plane.service, topic, [batch(10, timestamp_ms=START_MS - age_s * 1000)])
    await plane.service.retention.run_once()
    bounds = (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds[0]
    assert (bounds.log_start_offset, bounds.high_watermark, bounds.size_bytes) == (20, 40, 200)
    plane.clock.advance(6)
    await plane.service.retention.run_once()
    bounds = (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds[0]
    assert (bounds.log_start_offset, bounds.high_watermark, bounds.size_bytes) == (40, 40, 0)


async def test_retention_by_size_never_keeps_less_than_was_asked_for(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_bytes="250", retention_ms="-1")
    compacted = await create_topic(plane.service, "c", 1, retention_bytes="1", cleanup_policy="compact")
    for _ in range(5):
        await commit(plane.service, topic, [batch(10)])
        await commit(plane.service, compacted, [batch(10)])
    assert await plane.service.retention.run_once() == 2
    found = await plane.service.find_extents(FindExtents(topic.partition_ids[0], 20, 10**9))
    assert [extent.base_offset for extent in found.extents] == [20, 30, 40]
    bounds = (await plane.service.current_bounds(BoundsRequest(compacted.partition_ids))).bounds[0]
    assert bounds.log_start_offset == 0


async def test_records_without_a_time_are_as_old_as_their_commit(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_ms="10000")
    await commit(plane.service, topic, [batch(timestamp_ms=-1)])
    plane.clock.advance(9)
    assert await plane.service.retention.run_once() == 0
    plane.clock.advance(2)
    assert await plane.service.retention.run_once() == 1


async def test_a_silent_producer_is_forgotten(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 2)
    pid = await new_producer(plane.service)
    assert await commit(plane.service, topic, [batch(5, pid, 0, 0)]) == [(0, 0, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 9)], partition=1) == [(45, -1, False)]
    plane.clock.advance(24 * 3600 + 1)
    # Not known any more, so it may go on anywhere, in every partition.
    assert await commit(plane.service, topic, [batch(1, pid, 0, 9)], partition=1) == [(0, 0, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 77)]) == [(0, 5, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 79)]) == [(45, -1, False)]
    plane.clock.advance(12 * 3600)
    await commit(plane.service, topic, [batch(1, pid, 0, 78)])
    plane.clock.advance(13 * 3600)
    assert await plane.service.producers.expire_once() == 0
    plane.clock.advance(12 * 3600)
    assert await plane.service.producers.expire_once() == 1
    assert await plane.metadata.read(lambda tx: tx.query("SELECT * FROM producer_partitions")) == []
