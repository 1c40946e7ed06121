"""A backlog of ten thousand small objects: what it costs to read it before and after merging, and reading meanwhile."""

import pytest
from prometheus_client import CollectorRegistry
from tests.control.driver import Plane, create_topic
from tests.jobs.driver import SETTINGS, Read, Writer, decode, start, worker

from braidlog.agent.cluster.view import PartitionView
from braidlog.agent.read_path.reader import Reader
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import BoundsRequest, TopicInfo
from braidlog.control.jobs.settings import JobSettings
from braidlog.objects.metered import MeteredStore, StoreMetrics

OBJECTS = 10_000
PARTITIONS = 2


class Consumer:
    """Reads a partition from its start, through the code that agents serve with, and counts the GETs it takes."""

    def __init__(self, plane: Plane, topic: TopicInfo, partition: int) -> None:
        self.store = MeteredStore(plane.store, StoreMetrics(CollectorRegistry()), clock=plane.clock)
        self._plane = plane
        self._reader = Reader(plane.service, BlockCache(self.store, bytes_max=1 << 26), call_timeout_s=60.0)
        self._view = PartitionView(topic.partition_ids[partition], topic.topic_id, partition)
        self._offset = 0
        self.seen: list[Read] = []

    @property
    def gets(self) -> int:
        requests = self.store.statistics().requests
        return sum(count for name, count in requests.items() if name.startswith("get"))

    async def poll(self, bytes_max: int = 1 << 20) -> bool:
        """One fetch. False at the end."""
        [bounds] = (await self._plane.service.current_bounds(BoundsRequest([self._view.partition_id]))).bounds
        self._view.high_watermark = bounds.high_watermark
        if self._offset >= bounds.high_watermark:
            return False
        found = await self._reader.read(self._view, self._offset, bytes_max)
        self.seen += decode(b"".join(found.buffers), self._offset)
        self._offset = found.next_offset
        return True

    async def read_all(self) -> None:
        while await self.poll():
            pass


@pytest.mark.timeout(300)
async def test_merging_divides_the_gets_of_a_backlog_by_fifty_and_more() -> None:
    jobs = JobSettings(merge_target_bytes=8 << 20, merge_fan_in=16, merge_age_s=0.0)
    plane = await start(settings=SETTINGS.__class__(unreferenced_grace_s=60.0, jobs=jobs))
    topic = await create_topic(plane.service, "events", PARTITIONS)
    writer = Writer(plane)
    for number in range(OBJECTS):
        await writer.write(topic, {at: [(None, b"%d/%d" % (number, at))] for at in range(PARTITIONS)})
    before = [Consumer(plane, topic, partition) for partition in range(PARTITIONS)]
    meanwhile = Consumer(plane, topic, 0)
    for consumer in before:
        await consumer.read_all()
        assert [read.offset for read in consumer.seen] == list(range(OBJECTS))
    for _ in range(40):
        await meanwhile.poll(4096)
    await plane.service.parts.planner.plan_once()
    some = worker(plane)
    while await some.run_once():
        await meanwhile.poll(4096)
        await plane.service.parts.planner.plan_once()
    # What was read from the index before is deleted by now, and whoever was in the middle of it goes on.
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count >= OBJECTS
    await meanwhile.read_all()
    after = [Consumer(plane, topic, partition) for partition in range(PARTITIONS)]
    for consumer in after:
        await consumer.read_all()
    assert [consumer.seen for consumer in after] == [consumer.seen for consumer in before]
    assert meanwhile.seen == before[0].seen
    gets_before, gets_after = sum(each.gets for each in before), sum(each.gets for each in after)
    assert gets_before == PARTITIONS * OBJECTS
    assert gets_after <= gets_before / 50, (gets_before, gets_after)
    await plane.service.close()
