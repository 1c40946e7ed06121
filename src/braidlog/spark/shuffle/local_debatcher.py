"""The reduce side for a store that is a folder: reads files without an event loop.

The task's own thread reads small ranges. Another thread reads large ones, while the task passes on earlier rows.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, wait

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.files import DIRECT_BYTES_MIN, AlignedMemory, LocalRange
from braidlog.objects.local import LocalStore
from braidlog.objects.store import Bytes, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import Remedy
from braidlog.spark.shuffle.debatcher import DebatcherSettings, Read, lost_batch_is_an_error, plan_reads
from braidlog.spark.shuffle.decoder import BatchCoalescer, Decoder
from braidlog.spark.shuffle.notification import Notification

_SLOW_S = 0.005
_SLOW_BYTES_PER_S = 200e6
"""If a read takes longer than both together, the disk is slow, and the next reads start before they are needed. A fast
disk is faster without that."""
_LARGE_AHEAD_MAX = 2
"""Large reads that are under way at a time even if the disk is not slow: another thread waits for them."""


class LocalDebatcher:
    """Yields the same rows as `Debatcher`, in the same order and limits."""

    def __init__(
        self,
        store: LocalStore,
        settings: DebatcherSettings,
        otherwise: Callable[[Read], Bytes],
        *,
        clock: Clock,
        memory: AlignedMemory,
        read_in: Executor,
    ) -> None:
        """Make a debatcher.

        `otherwise` reads again, with retries, what could not be read at once.

        The single thread of `read_in` makes the large reads, and only it uses `memory`.
        """
        self._store = store
        self._settings = settings
        self._otherwise = otherwise
        self._clock = clock
        self._memory = memory
        self._read_in = read_in
        self._decoder = Decoder()
        self._is_slow = False

    def rows(self, notifications: Iterable[Notification]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of these notifications.

        Ends only when every one of them has been read.
        """
        coalescer = BatchCoalescer()
        for read, data in self._data(deque(plan_reads(notifications))):
            for each in read.notifications:
                for batch in self._decoder.decode(each, read.extent(each, data)):
                    if (ready := coalescer.add(batch)) is not None:
                        yield ready
        if (left := coalescer.rest()) is not None:
            yield left

    def _data(self, waiting: deque[Read]) -> Generator[tuple[Read, Bytes], None, None]:
        ahead: deque[tuple[Read, LocalRange | Future[Bytes] | None]] = deque()
        ahead_bytes = 0
        try:
            while ahead or waiting:
                while waiting and self._may_open(waiting[0], len(ahead), ahead_bytes):
                    read = waiting.popleft()
                    ahead_bytes += read.end - read.start
                    ahead.append((read, self._open(read)))
                read, opened = ahead.popleft()
                yield read, self._take(read, opened)
                ahead_bytes -= read.end - read.start
        finally:
            for _, opened in ahead:
                if isinstance(opened, Future):
                    wait([opened])  # the thread closes the file itself
                elif opened is not None:
                    opened.close()

    def _may_open(self, read: Read, ahead_count: int, ahead_bytes: int) -> bool:
        if ahead_count == 0:
            return True
        settings = self._settings
        ahead_max = _LARGE_AHEAD_MAX if _is_large(read) else 0
        if self._is_slow:
            ahead_max = settings.reads_in_flight_max
        return ahead_count < ahead_max and ahead_bytes + read.end - read.start <= settings.ahead_bytes_max

    def _open(self, read: Read) -> LocalRange | Future[Bytes] | None:
        with lost_batch_is_an_error(read.key):
            try:
                opened = self._store.open_range(read.key, read.start, read.end, soon=self._is_slow, memory=self._memory)
            except StoreError as error:
                if error.remedy is not Remedy.RETRY:
                    raise
                return None
        return self._read_in.submit(opened.take) if _is_large(read) else opened

    def _take(self, read: Read, opened: LocalRange | Future[Bytes] | None) -> Bytes:
        started_s = self._clock.monotonic_s()
        with lost_batch_is_an_error(read.key):
            data = self._now(opened)
            if data is None:
                data = self._otherwise(read)
        if self._clock.monotonic_s() - started_s > _SLOW_S + (read.end - read.start) / _SLOW_BYTES_PER_S:
            self._is_slow = True
        return data

    def _now(self, opened: LocalRange | Future[Bytes] | None) -> Bytes | None:
        try:
            if isinstance(opened, Future):
                return opened.result()
            return None if opened is None else opened.take()
        except StoreError as error:
            if error.remedy is not Remedy.RETRY:
                raise
            return None


def _is_large(read: Read) -> bool:
    return read.end - read.start >= DIRECT_BYTES_MIN
