"""The change feed: every durable change in order, or a reload."""

import asyncio

import pytest
from tests.control.driver import (
    batch,
    commit,
    create_topic,
    start_plane,
)

from braidlog.control.interface import (
    BoundsChanged,
    ControlPlane,
    DeleteRecords,
    DeleteTopics,
    FeedPosition,
    FeedRequest,
    ObjectSequenced,
    SnapshotRequest,
    TopicChanged,
    TopicRef,
    TopicRemoved,
)
from braidlog.control.settings import ControlSettings
from braidlog.runtime.errors import ControlUnavailable


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


async def test_a_reader_behind_the_ring_must_reload() -> None:
    plane = await start_plane(settings=ControlSettings(feed_events_max=3))
    topic = await create_topic(plane.service)
    start = (await plane.service.snapshot(SnapshotRequest())).position
    for _ in range(3):
        await commit(plane.service, topic, [batch()])
    assert len((await plane.service.read_feed(FeedRequest(start, 0))).events) == 3
    await commit(plane.service, topic, [batch()])
    page = await plane.service.read_feed(FeedRequest(start, 0))
    assert page.reload
    snapshot = await plane.service.snapshot(SnapshotRequest())
    assert page.position == snapshot.position
    assert snapshot.bounds[0].high_watermark == 4
    await plane.service.close()


async def test_closing_lets_waiting_readers_go() -> None:
    plane = await start_plane()
    position = (await plane.service.snapshot(SnapshotRequest())).position
    reading = asyncio.create_task(plane.service.read_feed(FeedRequest(position, 60_000)))
    await asyncio.sleep(0)
    await plane.service.close()
    assert (await reading).events == []
    with pytest.raises(ControlUnavailable):
        await plane.service.read_feed(FeedRequest(position, 0))
