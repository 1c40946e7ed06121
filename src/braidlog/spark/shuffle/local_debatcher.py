"""The reduce side where the store is a folder: a task's own thread reads files, without an event loop in between."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.files import LocalRange
from braidlog.objects.local import LocalStore
from braidlog.objects.store import Bytes, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import Remedy
from braidlog.spark.shuffle.debatcher import DebatcherSettings, Read, loss_is_told, plan_reads
from braidlog.spark.shuffle.decoding import Decoder, Joiner
from braidlog.spark.shuffle.notifying import Notification

_SLOW_S = 0.002
"""A disk that takes longer for a read is asked for the next ones before they are needed. One that does not is faster
without."""


class LocalDebatcher:
    """Gives the same rows as `Debatcher`, in the same order and within the same bounds."""

    def __init__(
        self, store: LocalStore, settings: DebatcherSettings, otherwise: Callable[[Read], Bytes], *, clock: Clock
    ) -> None:
        """`otherwise` reads what cannot be read now: it is where retries are."""
        self._store = store
        self._settings = settings
        self._otherwise = otherwise
        self._clock = clock
        self._decoder = Decoder()
        self._is_slow = False

    def rows(self, notifications: Iterable[Notification]) -> Iterator[pa.RecordBatch]:
        """All rows of these notifications. It ends only when every one of them has been read."""
        joiner = Joiner()
        for read, data in self._data(deque(plan_reads(notifications))):
            for each in read.notifications:
                for batch in self._decoder.decode(each, read.extent(each, data)):
                    if (ready := joiner.add(batch)) is not None:
                        yield ready
        if (left := joiner.rest()) is not None:
            yield left

    def _data(self, waiting: deque[Read]) -> Generator[tuple[Read, Bytes], None, None]:
        ahead: deque[tuple[Read, LocalRange | None]] = deque()
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
                if opened is not None:
                    opened.close()

    def _may_open(self, read: Read, ahead_count: int, ahead_bytes: int) -> bool:
        if ahead_count == 0:
            return True
        settings = self._settings
        return (
            self._is_slow
            and ahead_count < settings.reads_in_flight_max
            and ahead_bytes + read.end - read.start <= settings.ahead_bytes_max
        )

    def _open(self, read: Read) -> LocalRange | None:
        with loss_is_told(read.key):
            try:
                return self._store.open_range(read.key, read.start, read.end, soon=self._is_slow)
            except StoreError as error:
                if error.remedy is not Remedy.RETRY:
                    raise
                return None

    def _take(self, read: Read, opened: LocalRange | None) -> Bytes:
        started_s = self._clock.monotonic_s()
        with loss_is_told(read.key):
            data = self._now(opened)
            if data is None:
                data = self._otherwise(read)
        if self._clock.monotonic_s() - started_s > _SLOW_S:
            self._is_slow = True
        return data

    def _now(self, opened: LocalRange | None) -> Bytes | None:
        try:
            return None if opened is None else opened.take()
        except StoreError as error:
            if error.remedy is not Remedy.RETRY:
                raise
            return None
