"""A cluster whose metadata can be lost, and restored from what its bucket holds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.control.driver import batch, make_object
from tests.fakes import FakeClock

from braidlog.control.interface import CommitObject, FindExtents, IndexedExtent, ObjectVerdict, TopicInfo
from braidlog.control.metadata.shipped import ShippedMetadata, with_copy
from braidlog.control.metadata.store import BucketParts, DumpedMetadata, MetadataStore, open_metadata
from braidlog.control.restoring.report import RestoreReport
from braidlog.control.restoring.restore import RestoreOrder, restore
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.format import decode_footer_bytes, encode_trailer, extents_length
from braidlog.objects.layout import BatchEntry
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.entropy import SeededEntropy

COPY_INTERVAL_S = 10.0


class Cluster:
    """One control plane, over metadata of any kind, and its bucket."""

    service: ControlService
    metadata: MetadataStore

    def __init__(
        self, folder: Path, *, before: "Cluster | None" = None, settings: ControlSettings | None = None
    ) -> None:
        self.folder = folder
        self.clock = before.clock if before is not None else FakeClock(sleepers_wait=True)
        self.bucket = before.bucket if before is not None else MemoryBucket()
        self.store = MemoryStore(self.bucket, url="memory://", clock=self.clock)
        self.settings = settings or (before.settings if before is not None else ControlSettings(grace_epochs=2))

    @property
    def parts(self) -> BucketParts:
        return BucketParts(self.store, self.clock, SeededEntropy("parts"), "a test")

    @property
    def url(self) -> str:
        return f"sqlite://{self.folder}/metadata.db"

    async def start(self, url: str | None = None) -> "Cluster":
        metadata = await open_metadata(url or self.url, self.parts)
        if isinstance(metadata, DumpedMetadata):
            metadata = with_copy(metadata, self.store, self.clock, SeededEntropy("copy"), interval_s=COPY_INTERVAL_S)
        self.metadata = metadata
        self.service = ControlService(metadata, self.store, self.clock, SeededEntropy("control"), self.settings)
        try:
            await self.service.start()
        except BaseException:
            await metadata.close()
            raise
        return self

    async def ship(self) -> None:
        """Bring the copy up to date."""
        assert isinstance(self.metadata, ShippedMetadata)
        await self.metadata.copied()

    async def lose(self) -> None:
        """Lose the machine: what was not shipped is gone, and so is the file."""
        assert isinstance(self.metadata, ShippedMetadata)
        await self.metadata._tasks.cancel_all()
        await self.service.close()
        for path in self.folder.glob("metadata.db*"):
            path.unlink()

    async def restored(self, folder: Path, order: RestoreOrder | None = None) -> "tuple[Cluster, RestoreReport]":
        """Restore, and start a control plane with what came of it."""
        after = Cluster(folder, before=self)
        folder.mkdir()
        report = await restore(self.parts, order or RestoreOrder(after.url, waits=False))
        return await after.start(), report

    async def commit(
        self, topic: TopicInfo, batches: Sequence[BatchEntry], partition: int = 0, *, incarnation: str = "agent"
    ) -> ObjectVerdict:
        """Upload an object of these batches, and commit it."""
        request = await self.upload(topic, batches, partition, incarnation=incarnation)
        verdict = await self.service.commit_object(request)
        assert verdict.error_code == 0, verdict
        return verdict

    async def upload(
        self, topic: TopicInfo, batches: Sequence[BatchEntry], partition: int = 0, *, incarnation: str = "agent"
    ) -> CommitObject:
        epoch = self.service.parts.epochs.current
        request = make_object([(topic.topic_id, partition, batches)], write_epoch=epoch, incarnation=incarnation)
        await self.put(request)
        return request

    async def put(self, request: CommitObject) -> None:
        footer = decode_footer_bytes(request.footer)
        content = bytes(extents_length(footer)) + request.footer + encode_trailer(request.footer, footer.nonce)
        await self.store.put(request.key, content)

    async def extents(self, topic: TopicInfo, partition: int = 0) -> list[tuple[IndexedExtent, str]]:
        """All extents of a partition, each with the key of its object; empty: it is in none."""
        found = await self.service.find_extents(FindExtents(topic.partition_ids[partition], 0, 1 << 40))
        keys = {stored.number: stored.key for stored in found.objects}
        return [(extent, keys[extent.object_number]) for extent in found.extents]

    async def places(self, topic: TopicInfo, partition: int = 0) -> dict[str, int]:
        """The first offset of each object's extent."""
        return {key: extent.base_offset for extent, key in await self.extents(topic, partition) if key}


class StoringControl:
    """The control plane of a cluster, for clients that commit objects which they have not stored."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster.service, name)

    async def commit_object(self, request: CommitObject) -> ObjectVerdict:
        await self._cluster.put(request)
        return await self._cluster.service.commit_object(request)


def records(count: int, start: int = 0, *, pid: int = -1, epoch: int = 0) -> BatchEntry:
    return batch(count, pid, epoch, start)
