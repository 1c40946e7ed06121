"""Retention: what is too old or too much is dropped, and never more."""

from tests.control.driver import START_MS, Plane, batch, commit, create_topic, make_object, upload

from braidlog.control.interface import (
    BoundsRequest,
    DeleteTopics,
    FindExtents,
    TopicRef,
)


async def test_a_deleted_topics_objects_go(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    other = await create_topic(plane.service, "other")
    requests = [await upload(plane, topic) for _ in range(3)]
    shared = make_object([(topic.topic_id, 0, [batch()]), (other.topic_id, 0, [batch()])])
    await plane.store.put(shared.key, b"x")
    for request in [*requests, shared]:
        await plane.service.commit_object(request)
    await plane.service.delete_topics(DeleteTopics([TopicRef(topic.name)]))
    assert await plane.service.parts.retention.run_once() == 4
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 3
    assert plane.keys == [shared.key]
    assert await plane.metadata.read(lambda tx: tx.query("SELECT COUNT(*) FROM partitions")) == [(1,)]


async def test_retention_by_time_keeps_what_is_behind_a_young_extent(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_ms="10000")
    for age_s in (30, 20, 5, 25):
        await commit(plane.service, topic, [batch(10, timestamp_ms=START_MS - age_s * 1000)])
    await plane.service.parts.retention.run_once()
    bounds = (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds[0]
    assert (bounds.log_start_offset, bounds.high_watermark, bounds.size_bytes) == (20, 40, 200)
    plane.clock.advance(6)
    await plane.service.parts.retention.run_once()
    bounds = (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds[0]
    assert (bounds.log_start_offset, bounds.high_watermark, bounds.size_bytes) == (40, 40, 0)


async def test_retention_by_size_never_keeps_less_than_was_asked_for(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_bytes="250", retention_ms="-1")
    compacted = await create_topic(plane.service, "c", 1, retention_bytes="1", cleanup_policy="compact")
    for _ in range(5):
        await commit(plane.service, topic, [batch(10)])
        await commit(plane.service, compacted, [batch(10)])
    assert await plane.service.parts.retention.run_once() == 2
    found = await plane.service.find_extents(FindExtents(topic.partition_ids[0], 20, 10**9))
    assert [extent.base_offset for extent in found.extents] == [20, 30, 40]
    bounds = (await plane.service.current_bounds(BoundsRequest(compacted.partition_ids))).bounds[0]
    assert bounds.log_start_offset == 0


async def test_records_without_a_time_are_as_old_as_their_commit(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 1, retention_ms="10000")
    await commit(plane.service, topic, [batch(timestamp_ms=-1)])
    plane.clock.advance(9)
    assert await plane.service.parts.retention.run_once() == 0
    plane.clock.advance(2)
    assert await plane.service.parts.retention.run_once() == 1
