"""The map side: rows into batches, batches into the store, and a notification for each partition of those that are
there."""

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
from braidlog.spark.shuffle.notifying import Notification
from braidlog.spark.shuffle.packing import COMPRESSIONS, PackedBatch, pack_batch
from braidlog.writing.arena import REGION_BYTES, Arena

ARENA_BYTES = 128 * 1024 * 1024
"""Memory that is kept for batches although there are none: fresh memory costs more than all that is done with it."""
CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""Larger pieces of input are taken in parts."""


def arena_for(batch_bytes: int) -> Arena:
    """Memory for batches of such a size. The arena keeps what is at most half of a region, and the last batch of a task
    has half as much again. So a region holds two of those, or three others, with what describes their extents."""
    return Arena(free_bytes_max=ARENA_BYTES, region_bytes=max(REGION_BYTES, batch_bytes * 13 // 4))


class BatchWriter(Protocol):
    """Where batches go: a store, or a cache in front of one."""

    async def put(self, key: str, data: Bytes) -> object: ...


class Sharer(Protocol):
    """Who fills batches together with others."""

    async def share(self, runs: Mapping[str, Sequence[Chunk]]) -> list[Notification] | None:
        """Notifications of these chunks of each zone, when they are in the store. None: it cannot be done now."""
        ...


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    job: str
    batch_bytes: int = 16 * 1024 * 1024
    interval_s: float = 5.0
    compression: str = "lz4"
    uploads_in_flight_max: int = 4
    linger: float = 0.0
    """What a batch waits for beyond its size, as a part of it, so that the end of the input leaves no small one over.
    It makes fewer batches of input that ends, and only adds latency where it does not."""
    zone: str = ""
    """Where the batcher itself is."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise JobError(f"batches of {self.batch_bytes} bytes", help=f"1 to {BATCH_BYTES_MAX} are possible.")
        if self.linger < 0 or self.interval_s <= 0 or self.uploads_in_flight_max < 1:
            raise JobError("a batcher needs an interval above zero and at least one upload at a time")
        if self.compression not in COMPRESSIONS:
            raise JobError(f"unknown compression {self.compression!r}", help=f"Use one of {', '.join(COMPRESSIONS)}.")


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    batches: int
    rows: int
    rows_bytes: int
    stored_bytes: int
    notifications: int


class Batcher:
    """Use from one event loop. What was added is in the store, and its notifications are out, when `finish` returns.
    Where an upload failed, `finish` fails, and so does every call after it: none of its batches is then to be used."""

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
        sharer: Sharer | None = None,
    ) -> None:
        """`arena`: memory for batches, which batchers of one process may share. `on_uploaded` is called when there are
        notifications to take. What is left at the end goes to the `sharer`, and is written here where it cannot."""
        self._sharer = sharer
        self._on_uploaded = on_uploaded
        self._store = store
        self._arena = arena if arena is not None else arena_for(settings.batch_bytes)
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._splitter = Splitter(zone_of_partition)
        self._buffers = {zone: ZoneBuffer(settings.batch_bytes, settings.linger) for zone in self._splitter.zones}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._incarnation = entropy.token(16).hex()
        self._number = 0
        self._slots = asyncio.Semaphore(settings.uploads_in_flight_max)
        self._uploads = TaskGroup("shuffle uploads", errors_are_awaited=True)
        self._closing = asyncio.Lock()
        self._failure: BaseException | None = None
        self._finished: list[Notification] = []
        self._batches = self._rows = self._rows_bytes = self._stored_bytes = self._notifications = 0

    async def add(self, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> None:
        """Take in rows with the partition of each. Waits while as many uploads are under way as may be."""
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
        self._uploads.spawn(self._close_rest(zone))

    async def _close_full(self, zone: str) -> None:
        async with self._closing:
            buffer = self._buffers[zone]
            if buffer.is_full:
                await self._slots.acquire()
                self._start_timer(zone)  # what stays came later
                self._upload(zone, buffer.take_full())

    async def _close_rest(self, zone: str) -> None:
        async with self._closing:
            buffer = self._buffers[zone]
            while buffer:
                await self._slots.acquire()
                self._upload(zone, buffer.take_rest())
            self._stop_timer(zone)

    async def _share_rest(self, sharer: Sharer) -> None:
        """Hand over what does not fill a batch. It is kept until it is in the store."""
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
            notifications = await sharer.share(runs)
            if notifications is None:
                for zone, left in runs.items():
                    self._buffers[zone].put_back(left)
                return
            self._finished += notifications
            self._rows += sum(each.row_count for each in notifications)
            self._rows_bytes += sum(chunk.size_bytes for left in runs.values() for chunk in left)
            self._notifications += len(notifications)

    def _upload(self, zone: str, chunks: Sequence[Chunk]) -> None:
        """Whoever calls has acquired a slot."""
        try:
            packed = self._pack(chunks)
        except BaseException as error:
            self._slots.release()
            self._failure = self._failure or error
            raise
        self._buffers[zone].learn(packed.rows_bytes, len(packed.data))
        self._uploads.spawn(self._put(packed))

    def _pack(self, chunks: Sequence[Chunk]) -> PackedBatch:
        settings = self._settings
        packed = pack_batch(
            chunks,
            key=shuffle_key(settings.job, self._incarnation, self._number),
            job=settings.job,
            incarnation=self._incarnation,
            zone=settings.zone,
            compression=settings.compression,
            nonce=self._entropy.token(16),
            created_ms=self._clock.wall_ms(),
            arena=self._arena,
        )
        self._number += 1
        return packed

    async def _put(self, packed: PackedBatch) -> None:
        try:
            await self._store.put(packed.key, packed.data)
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
        """Notifications of uploads that have finished, each once."""
        self._raise_failure()
        finished, self._finished = self._finished, []
        return finished

    async def finish(self) -> None:
        """Close every batch and wait for every upload: the commit."""
        self._raise_failure()
        if self._sharer is not None:
            await self._share_rest(self._sharer)
        for zone in self._splitter.zones:
            await self._close_rest(zone)
        await self._uploads.wait_all()
        self._raise_failure()

    async def close(self) -> None:
        """Give up what is under way."""
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
