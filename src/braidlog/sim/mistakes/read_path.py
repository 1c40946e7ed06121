"""Mistakes in the read path."""

from contextlib import AbstractContextManager
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.records import api_02_list_offsets
from braidlog.agent.apis.records.services import RecordServices
from braidlog.agent.cluster.follower import FeedFollower
from braidlog.agent.cluster.view import ClusterView
from braidlog.cache.blocks import BlockCache
from braidlog.control.interface import FeedRequest, PartitionBounds
from braidlog.sim.mistakes.mistake import mistake, replaced


@mistake("Ignores a gap in the change feed.")
def _lose_the_feeds_gap() -> AbstractContextManager[None]:
    original_append = ClusterView._append

    def append(self: ClusterView, stored: Any, extents: Any) -> None:
        for extent in extents:
            partition = self.partitions.get(extent.partition_id)
            if partition is not None:
                partition.high_watermark = extent.base_offset
        original_append(self, stored, extents)

    async def run(self: FeedFollower) -> None:
        while True:
            try:
                page = await self._control.read_feed(FeedRequest(self._view.position, 10_000), timeout_s=15.0)
                self._view.apply(page.events, page.position)
            except Exception:  # noqa: BLE001 - the mistake does not care
                await self._clock.sleep(0.5)

    return replaced((ClusterView, "_append", append), (FeedFollower, "run", run))


@mistake("Answers where a log ends from its own view, without asking the control plane.")
def _latest_from_memory() -> AbstractContextManager[None]:
    original = api_02_list_offsets._find

    async def find(services: RecordServices, partition: Any, bounds: PartitionBounds, timestamp_ms: int) -> Any:
        if timestamp_ms == api_02_list_offsets.LATEST:
            return ErrorCode.none, (partition.high_watermark, -1)
        return await original(services, partition, bounds, timestamp_ms)

    return replaced((api_02_list_offsets, "_find", find))


@mistake("Caches blocks under the object's number alone, which other agents use too.")
def _cache_mixes_objects_up() -> AbstractContextManager[None]:
    original_keep, original_found = BlockCache._keep, BlockCache._found

    def short(key: str) -> str:
        return key.rpartition("-")[2]

    def keep(self: BlockCache, name: tuple[str, int], block: memoryview) -> None:
        original_keep(self, (short(name[0]), name[1]), block)

    def found(self: BlockCache, name: tuple[str, int]) -> memoryview | None:
        return original_found(self, (short(name[0]), name[1]))

    return replaced((BlockCache, "_keep", keep), (BlockCache, "_found", found))
