"""The reduce side: turns notifications into rows, and reads ahead of the consumer."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.store import Bytes, NotFound, TornRead
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.errors import DataLoss
from braidlog.spark.shuffle.decoder import BatchCoalescer, Decoder
from braidlog.spark.shuffle.notification import Notification

READ_BYTES_MAX = 16 * 1024 * 1024
"""The largest read that close ranges are combined into."""
READ_GAP_BYTES_MAX = 256 * 1024
"""Two ranges this close are cheaper to read with one request than with two."""


class BatchReader(Protocol):
    """Reads batches: a store, or a cache in front of one."""

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        """Return the bytes [start, end) of an object of `object_size` bytes."""
        ...


@dataclass(frozen=True, slots=True)
class DebatcherSettings:
    ahead_bytes_max: int = 64 * 1024 * 1024
    """The limit on bytes being read or waiting for the consumer. A single read may be larger."""
    reads_in_flight_max: int = 16


@dataclass(frozen=True, slots=True)
class DebatcherStatistics:
    reads: int
    read_bytes: int
    notifications: int
    rows: int


@dataclass(frozen=True, slots=True)
class Read:
    """One range of one batch, and the notifications that lie in it."""

    key: str
    object_bytes: int
    start: int
    end: int
    notifications: tuple[Notification, ...]

    def extent(self, notification: Notification, data: Bytes) -> memoryview:
        return memoryview(data)[notification.position - self.start : notification.end - self.start]


def plan_reads(notifications: Iterable[Notification]) -> list[Read]:
    """Plan as few reads as possible.

    Ranges of a batch that lie close together become one read.

    Reads are in the order in which their batches first occur.
    """
    by_key: dict[str, list[Notification]] = {}
    for each in notifications:
        by_key.setdefault(each.key, []).append(each)
    reads: list[Read] = []
    for found in by_key.values():
        run: list[Notification] = []
        for each in sorted(found, key=lambda one: one.position):
            if run and (
                each.position - run[-1].end > READ_GAP_BYTES_MAX or each.end - run[0].position > READ_BYTES_MAX
            ):
                reads.append(_read(run))
                run = []
            run.append(each)
        reads.append(_read(run))
    return reads


def _read(run: Sequence[Notification]) -> Read:
    return Read(run[0].key, run[0].object_bytes, run[0].position, max(each.end for each in run), tuple(run))


@contextmanager
def lost_batch_is_an_error(key: str) -> Iterator[None]:
    """Turn the error for a missing or truncated batch into `DataLoss`."""
    try:
        yield
    except NotFound as error:
        raise DataLoss(
            f"batch {key} is not in the store any more",
            help="Keep batches for longer: retention must outlast the slowest retry of a task.",
        ) from error
    except TornRead as error:
        raise DataLoss(
            f"batch {key} is not whole any more: {error}",
            help="The store has lost a part of the batch. braid doctor checks the store.",
        ) from error


class Debatcher:
    """Reads the rows of notifications. Use from one event loop."""

    def __init__(self, reader: BatchReader, settings: DebatcherSettings) -> None:
        self._reader = reader
        self._settings = settings
        self._decoder = Decoder()
        self._reads = self._read_bytes = 0

    async def rows(self, notifications: Iterable[Notification]) -> AsyncIterator[pa.RecordBatch]:
        """Yield all rows of these notifications.

        Ends only when every one of them has been read.
        """
        coalescer = BatchCoalescer()
        async for batch in self._extents(plan_reads(notifications)):
            if (ready := coalescer.add(batch)) is not None:
                yield ready
        if (left := coalescer.rest()) is not None:
            yield left

    async def _extents(self, reads: Sequence[Read]) -> AsyncIterator[pa.RecordBatch]:
        settings = self._settings
        ahead: deque[tuple[Read, asyncio.Task[Bytes]]] = deque()
        ahead_bytes = 0
        tasks = TaskGroup("shuffle reads", errors_are_awaited=True)
        waiting = deque(reads)
        try:
            while ahead or waiting:
                while (
                    waiting
                    and len(ahead) < settings.reads_in_flight_max
                    and (not ahead or ahead_bytes + waiting[0].end - waiting[0].start <= settings.ahead_bytes_max)
                ):
                    read = waiting.popleft()
                    ahead_bytes += read.end - read.start
                    ahead.append(
                        (read, tasks.spawn(self._reader.read(read.key, read.object_bytes, read.start, read.end)))
                    )
                read, coming = ahead.popleft()
                with lost_batch_is_an_error(read.key):
                    data = await coming
                self._reads += 1
                self._read_bytes += read.end - read.start
                for each in read.notifications:
                    for batch in self._decoder.decode(each, read.extent(each, data)):
                        yield batch
                ahead_bytes -= read.end - read.start
        finally:
            await tasks.cancel_all()

    def statistics(self) -> DebatcherStatistics:
        return DebatcherStatistics(self._reads, self._read_bytes, self._decoder.extents, self._decoder.rows)
