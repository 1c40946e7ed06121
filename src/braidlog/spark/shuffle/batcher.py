"""The map side: packs rows into batches and uploads them.

It makes a notification for each partition of a batch.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.keys import shuffle_key
from braidlog.objects.store import Bytes
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.buffers import BATCH_BYTES_MAX, Chunk, Splitter, ZoneBuffer
from braidlog.spark.shuffle.encoder import COMPRESSIONS, BatchIdentity, PackedBatch, pack_batch
from braidlog.spark.shuffle.notification import Notification
from braidlog.writing.arena import REGION_BYTES, Arena

ARENA_BYTES = 128 * 1024 * 1024
"""Memory that stays allocated between batches: fresh memory costs more than everything that is done with it."""
CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""Larger input batches are processed in parts."""


def arena_for(batch_bytes: int) -> Arena:
    """Make an arena for batches of this size.

    An arena reuses allocations of at most half a region. The last batch of a task may be half as large again as the
    others. So a region holds two such last batches, or three others, together with the description of their extents.
    """
    return Arena(free_bytes_max=ARENA_BYTES, region_bytes=max(REGION_BYTES, batch_bytes * 13 // 4))


class BatchWriter(Protocol):
    """Writes batches: a store, or a cache in front of one."""

    async def put(self, key: str, data: Bytes) -> object: ...


class NodeLink(Protocol):
    """A task's link to what all tasks of its node share."""

    @property
    def name(self) -> str:
        """The node's name, which the keys of its batches carry. Empty: it is not known."""
        ...

    async def share(self, runs: Mapping[str, Sequence[Chunk]], *, is_last: bool) -> list[Notification] | None:
        """Store these chunks of each zone and return their notifications.

        They share batches with those of other tasks. None: it cannot be done now. `is_last`: the task has no more rows.
        """
        ...

    async def keep(self, key: str, data: Bytes) -> None:
        """Keep a batch that was just written, for readers in this zone."""
        ...


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    job: str
    batch_bytes: int = 16 * 1024 * 1024
    interval_s: float = 5.0
    compression: str = "lz4"
    uploads_in_flight_max: int = 4
    linger: float = 0.0
    """How much more than `batch_bytes` a batch waits for, as a share of it, so that no small batch is left at the end.
    It saves batches where the input ends. Where the input does not end, it only adds latency."""
    zone: str = ""
    """The zone of the batcher itself."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise JobError(f"a batch cannot have {self.batch_bytes} bytes", help=f"Use 1 to {BATCH_BYTES_MAX}.")
        if self.linger < 0 or self.interval_s <= 0 or self.uploads_in_flight_max < 1:
            raise JobError("the batch interval must be above zero, and at least one upload must be allowed at a time")
        if self.compression not in COMPRESSIONS:
            raise JobError(f"unknown compression {self.compression!r}", help=f"Use one of {', '.join(COMPRESSIONS)}.")


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    batches: int
    rows: int
    rows_bytes: int
    stored_bytes: int
    notifications: int


class BatchPacker:
    """Packs the batches of one writer, and numbers them."""

    def __init__(
        self, settings: BatcherSettings, *, clock: Clock, entropy: Entropy, arena: Arena | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._arena = arena if arena is not None else arena_for(settings.batch_bytes)
        self._incarnation = entropy.token(16).hex()
        self._number = 0

    def pack(self, chunks: Sequence[Chunk], owners: Sequence[int] | None = None, *, node: str = "") -> PackedBatch:
        """Pack rows into the next batch. `owners` is as in `pack_batch`.

        The key names the `node` that keeps the batch, if one does.
        """
        settings = self._settings
        incarnation = f"{node}_{self._incarnation}" if node else self._incarnation
        identity = BatchIdentity(
            key=shuffle_key(settings.job, incarnation, self._number),
            job=settings.job,
            incarnation=incarnation,
            zone=settings.zone,
            nonce=self._entropy.token(16),
            created_ms=self._clock.wall_ms(),
        )
        packed = pack_batch(chunks, identity, compression=settings.compression, arena=self._arena, owners=owners)
        self._number += 1
        return packed


class Batcher:
    """Packs and uploads the rows of one task. Use from one event loop.

    When `finish` returns, all added rows are in the store and their notifications can be taken. If an upload fails,
    `finish` fails, and so does every later call: none of the batches may be used then.
    """

    def __init__(
        self,
        store: BatchWriter,
        settings: BatcherSettings,
        zone_of_partition: Sequence[str],
        *,
        clock: Clock,
        entropy: Entropy,
        arena: Arena | None = None,
        on_uploaded: Callable[[], object] | None = None,
        node: NodeLink | None = None,
    ) -> None:
        """Make a batcher. `zone_of_partition` has the destination zone of each partition.

        Batchers of one process may share an `arena`. `on_uploaded` is called when there are notifications to take. The
        rows that do not fill a batch go to the `node`; the batcher writes them itself if the node cannot.
        """
        self._node = node
        self._on_uploaded = on_uploaded
        self._store = store
        self._settings = settings
        self._splitter = Splitter(zone_of_partition)
        self._buffers = {zone: ZoneBuffer(settings.batch_bytes, settings.linger) for zone in self._splitter.zones}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._packer = BatchPacker(settings, clock=clock, entropy=entropy, arena=arena)
        self._slots = asyncio.Semaphore(settings.uploads_in_flight_max)
        self._uploads = TaskGroup("shuffle uploads", errors_are_awaited=True)
        self._closing = asyncio.Lock()
        self._failure: BaseException | None = None
        self._finished: list[Notification] = []
        self._batches = self._rows = self._rows_bytes = self._stored_bytes = self._notifications = 0

    async def add(self, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> None:
        """Add rows with the partition of each.

        Waits while the maximum number of uploads is under way.
        """
        for start, part in _parts(rows):
            self._raise_failure()
            for zone, chunk in self._splitter.split(part, partitions[start : start + part.num_rows]):
                buffer = self._buffers[zone]
                if not buffer:
                    self._start_timer(zone)
                buffer.add(chunk)
                while buffer.is_full:
                    await self._close_full(zone)

    def _start_timer(self, zone: str) -> None:
        self._stop_timer(zone)
        loop = asyncio.get_running_loop()
        self._timers[zone] = loop.call_later(self._settings.interval_s, self._interval_over, zone)

    def _stop_timer(self, zone: str) -> None:
        timer = self._timers.pop(zone, None)
        if timer is not None:
            timer.cancel()

    def _interval_over(self, zone: str) -> None:
        del self._timers[zone]
        self._uploads.spawn(self._close_old(zone))

    async def _close_old(self, zone: str) -> None:
        """Close a batch that is not full when its interval is over.

        Its rows go into a batch with those of other tasks, if possible.
        """
        if self._node is None:
            await self._close_rest(zone)
            return
        async with self._closing:
            left = self._buffers[zone].take_all()
        if not left:
            return
        try:
            notifications = await self._node.share({zone: left}, is_last=False)
        except BaseException as error:
            self._failure = self._failure or error
            raise
        if notifications is not None:
            self._take_shared(left, notifications)
            return
        async with self._closing:
            self._buffers[zone].put_back(left)
        await self._close_rest(zone)

    async def _close_full(self, zone: str) -> None:
        async with self._closing:
            buffer = self._buffers[zone]
            if buffer.is_full:
                await self._slots.acquire()
                self._start_timer(zone)  # the remaining rows came later
                self._upload(zone, buffer.take_full())

    async def _close_rest(self, zone: str) -> None:
        async with self._closing:
            buffer = self._buffers[zone]
            while buffer:
                await self._slots.acquire()
                self._upload(zone, buffer.take_rest())
            self._stop_timer(zone)

    async def _share_rest(self, node: NodeLink) -> None:
        """Hand over the rows that do not fill a batch.

        They are kept until they are in the store.
        """
        async with self._closing:
            runs: dict[str, list[Chunk]] = {}
            for zone, buffer in self._buffers.items():
                self._stop_timer(zone)
                while (chunks := buffer.take_full_only()) is not None:
                    await self._slots.acquire()
                    self._upload(zone, chunks)
                if buffer:
                    runs[zone] = buffer.take_all()
            if not runs:
                return
            notifications = await node.share(runs, is_last=True)
            if notifications is None:
                for zone, left in runs.items():
                    self._buffers[zone].put_back(left)
                return
            self._take_shared([chunk for left in runs.values() for chunk in left], notifications)

    def _take_shared(self, chunks: Sequence[Chunk], notifications: Sequence[Notification]) -> None:
        self._finished += notifications
        self._rows += sum(each.row_count for each in notifications)
        self._rows_bytes += sum(chunk.size_bytes for chunk in chunks)
        self._notifications += len(notifications)
        if self._on_uploaded is not None:
            self._on_uploaded()

    def _upload(self, zone: str, chunks: Sequence[Chunk]) -> None:
        """Pack and start an upload. The caller has acquired a slot."""
        near = self._node if zone == self._settings.zone else None
        try:
            packed = self._packer.pack(chunks, node=near.name if near is not None else "")
        except BaseException as error:
            self._slots.release()
            self._failure = self._failure or error
            raise
        self._buffers[zone].learn(packed.rows_bytes, len(packed.data))
        self._uploads.spawn(self._put(packed, near))

    async def _put(self, packed: PackedBatch, near: NodeLink | None) -> None:
        try:
            await self._store.put(packed.key, packed.data)
            if near is not None:
                await near.keep(packed.key, packed.data)
        except BaseException as error:
            self._failure = self._failure or error
            raise
        finally:
            self._slots.release()
        self._finished += packed.notifications
        self._batches += 1
        self._rows += sum(each.row_count for each in packed.notifications)
        self._rows_bytes += packed.rows_bytes
        self._stored_bytes += len(packed.data)
        self._notifications += len(packed.notifications)
        if self._on_uploaded is not None:
            self._on_uploaded()

    def take_finished(self) -> list[Notification]:
        """Return the notifications of uploads that have finished since the last call."""
        self._raise_failure()
        finished, self._finished = self._finished, []
        return finished

    async def finish(self) -> None:
        """Close every batch and wait for every upload. This is the commit."""
        self._raise_failure()
        if self._node is not None:
            await self._share_rest(self._node)
        for zone in self._splitter.zones:
            await self._close_rest(zone)
        await self._uploads.wait_all()
        self._raise_failure()

    async def close(self) -> None:
        """Cancel all uploads."""
        for zone in list(self._timers):
            self._stop_timer(zone)
        await self._uploads.cancel_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise JobError(f"a batch could not be uploaded: {self._failure}") from self._failure

    def statistics(self) -> BatcherStatistics:
        return BatcherStatistics(self._batches, self._rows, self._rows_bytes, self._stored_bytes, self._notifications)


def _parts(rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    count = min(rows.num_rows, -(-rows.nbytes // CHUNK_BYTES_MAX))
    if count <= 1:
        return [(0, rows)] if rows.num_rows else []
    row_count = -(-rows.num_rows // count)
    return [(start, rows.slice(start, row_count)) for start in range(0, rows.num_rows, row_count)]
