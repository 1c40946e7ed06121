"""The reduce side on a folder: the same rows as through the event loop, and the same errors."""

import errno
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from tests.fakes import FakeClock

from braidlog.cache.layers import StoreLayer
from braidlog.objects.files import DIRECT_BYTES_MIN
from braidlog.objects.local import LocalStore
from braidlog.objects.store import Bytes
from braidlog.runtime.entropy import SeededEntropy
from braidlog.spark.errors import DataLoss
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings, Read, plan_reads
from braidlog.spark.shuffle.local_debatcher import LocalDebatcher
from braidlog.spark.shuffle.notification import Notification
from braidlog.writing.arena import Arena

PARTITIONS = 7
ROWS = 20_000


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path, clock=FakeClock(), entropy=SeededEntropy(1))


def columns(kind: str) -> pa.RecordBatch:
    numbers = np.arange(ROWS)
    text = pa.array([None if number % 11 == 0 else f"{number % 97:05}" * 8 for number in numbers])
    if kind == "dictionary":
        text = text.dictionary_encode()
    if kind == "nested":
        text = pa.StructArray.from_arrays([text, pa.array(numbers)], names=["text", "number"])
    return pa.record_batch({"number": pa.array(numbers), "text": text})


async def written(store: LocalStore, rows: pa.RecordBatch, compression: str = "none") -> list[Notification]:
    settings = BatcherSettings("job", batch_bytes=64 * 1024, compression=compression)
    layer = StoreLayer(store)
    batcher = Batcher(layer, settings, [""] * PARTITIONS, clock=FakeClock(), entropy=SeededEntropy(2))
    for start in range(0, rows.num_rows, 1500):
        part = rows.slice(start, 1500)
        await batcher.add(part, (part.column(0).to_numpy() % PARTITIONS).astype(np.int32))
    await batcher.finish()
    return sorted(batcher.take_finished())


def never(read: Read) -> Bytes:
    raise AssertionError(f"{read.key} was to be read at once")


class CountingThread(ThreadPoolExecutor):
    submitted = 0

    def submit(self, *work: Any, **more: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(*work, **more)


def local(
    store: LocalStore,
    otherwise: Callable[[Read], Bytes] = never,
    clock: FakeClock | None = None,
    ahead_bytes_max: int = 50_000,
    read_in: Executor | None = None,
) -> LocalDebatcher:
    return LocalDebatcher(
        store,
        DebatcherSettings(ahead_bytes_max=ahead_bytes_max),
        otherwise,
        clock=clock or FakeClock(),
        memory=Arena(free_bytes_max=0, region_bytes=1 << 20).take,
        read_in=read_in or ThreadPoolExecutor(1),
    )


@pytest.mark.parametrize("kind", ["plain", "dictionary", "nested"])
@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_the_same_rows_as_through_the_event_loop(store: LocalStore, kind: str, compression: str) -> None:
    rows = columns(kind)
    notifications = await written(store, rows, compression)
    for partition in range(PARTITIONS):
        own = [each for each in notifications if each.partition == partition]
        expected = [batch async for batch in Debatcher(StoreLayer(store), DebatcherSettings()).rows(own)]
        found = list(local(store).rows(own))
        assert [batch.to_pylist() for batch in found] == [batch.to_pylist() for batch in expected]
        assert sorted(row["number"] for batch in found for row in batch.to_pylist()) == [
            number for number in range(ROWS) if number % PARTITIONS == partition
        ]


async def test_schemas_may_differ_from_one_batch_to_the_next(store: LocalStore) -> None:
    notifications: list[Notification] = []
    for number, kind in enumerate(["plain", "nested", "plain"]):
        rows = columns(kind)
        batcher = Batcher(
            StoreLayer(store), BatcherSettings("job"), [""], clock=FakeClock(), entropy=SeededEntropy(number)
        )
        await batcher.add(rows, np.zeros(ROWS, dtype=np.int32))
        await batcher.finish()
        notifications += batcher.take_finished()
    found = list(local(store).rows(notifications))
    assert [batch.schema for batch in found] == [columns(kind).schema for kind in ("plain", "nested", "plain")]
    assert sum(batch.num_rows for batch in found) == 3 * ROWS


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_a_slow_disk_is_asked_ahead_within_bounds_and_nothing_stays_open(store: LocalStore) -> None:
    notifications = [each for each in await written(store, columns("plain")) if each.partition == 1]
    before = open_files()
    # The reads themselves: rows that are joined would hide them.
    reads = local(store, clock=FakeClock(look_s=0.01))._data(deque(plan_reads(notifications)))
    next(reads)
    assert open_files() == before  # the first one was not yet known to be slow
    next(reads)
    ahead = open_files() - before
    assert 1 <= ahead <= DebatcherSettings().reads_in_flight_max
    assert ahead <= 50_000 // min(each.length for each in notifications)
    reads.close()
    assert open_files() == before


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_large_ranges_are_read_ahead_and_nothing_stays_open(store: LocalStore) -> None:
    notifications: list[Notification] = []
    for number in range(5):
        settings = BatcherSettings(f"job-{number}", compression="none")
        batcher = Batcher(StoreLayer(store), settings, [""], clock=FakeClock(), entropy=SeededEntropy(number))
        await batcher.add(columns("plain"), np.zeros(ROWS, dtype=np.int32))
        await batcher.finish()
        notifications += batcher.take_finished()
    assert all(each.length >= DIRECT_BYTES_MIN for each in notifications)
    before = open_files()
    thread = CountingThread(1)
    reads = local(store, ahead_bytes_max=1 << 30, read_in=thread)._data(deque(plan_reads(notifications)))
    taken = [next(reads) for _ in range(2)]
    assert thread.submitted == 3
    reads.close()
    assert open_files() == before
    # What was taken is not written over by what was read behind it.
    for read, data in taken:
        assert crc32c(data) == read.notifications[0].checksum


async def test_what_cannot_be_read_now_is_read_otherwise(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    notifications = [each for each in await written(store, columns("plain")) if each.partition == 2]
    root = Path(store.url.removeprefix("file://"))
    asked: list[str] = []
    really_open = os.open

    def open_sometimes(path: str, *more: int) -> int:
        if len(asked) < 2:
            raise OSError(errno.EMFILE, "too many open files")
        return really_open(path, *more)

    def otherwise(read: Read) -> Bytes:
        asked.append(read.key)
        with monkeypatch.context() as unpatched:
            unpatched.setattr(os, "open", really_open)
            return (root / read.key).read_bytes()[read.start : read.end]

    monkeypatch.setattr(os, "open", open_sometimes)
    found = sum(batch.num_rows for batch in local(store, otherwise).rows(notifications))
    assert found == sum(each.row_count for each in notifications)
    assert len(asked) == 2


async def test_damage_and_loss_are_seen(store: LocalStore) -> None:
    root = Path(store.url.removeprefix("file://"))
    notifications = await written(store, columns("plain"))
    own = [each for each in notifications if each.partition == 3]
    first = root / own[0].key
    whole = first.read_bytes()

    damaged = bytearray(whole)
    damaged[own[0].position + 100] ^= 1
    first.write_bytes(damaged)
    with pytest.raises(DataLoss, match="damaged"):
        list(local(store).rows(own))

    first.write_bytes(whole[: own[0].position + 10])
    torn: list[Read] = []

    def otherwise(read: Read) -> Bytes:
        torn.append(read)
        return store.open_range(read.key, read.start, read.end).take()

    with pytest.raises(DataLoss, match="not whole"):
        list(local(store, otherwise).rows(own))
    assert len(torn) == 1  # what is torn may only be so for now

    first.unlink()
    with pytest.raises(DataLoss, match="not in the store any more"):
        list(local(store).rows(own))
