"""Batcher and debatcher without Spark: what goes in comes out, once, in the right partition, or the commit fails."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from braidlog.cache.layers import StoreLayer
from braidlog.objects.format import read_footer
from braidlog.objects.layout import ARROW_STREAM
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes, StoreUnavailable
from braidlog.runtime.entropy import SeededEntropy
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.buffers import Chunk, Splitter, ZoneBuffer
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings, plan_reads
from braidlog.spark.shuffle.notification import Notification, from_arrow, to_arrow

KIB = 1024


def memory_store() -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://shuffle", clock=FakeClock())


def rows_of(ids: list[int], value_bytes: int = 16) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "value": pa.array(
                [str(each).encode().ljust(value_bytes, b".") if each % 7 else None for each in ids], pa.binary()
            ),
            "list": pa.array([[each, None] if each % 3 else None for each in ids], pa.list_(pa.int32())),
        }
    )


def zones_of(partitions: int, zones: int) -> list[str]:
    return [f"z{each % zones}" for each in range(partitions)]


def batcher_of(store: Any, partitions: int, zones: int = 1, **changes: Any) -> Batcher:
    chosen = BatcherSettings(**{"job": "test", "batch_bytes": 4 * KIB, **changes})
    return Batcher(store, chosen, zones_of(partitions, zones), clock=FakeClock(), entropy=SeededEntropy(1))


async def read_all(store: MemoryStore, notifications: list[Notification]) -> list[dict[str, Any]]:
    debatcher = Debatcher(StoreLayer(store), DebatcherSettings())
    return [row async for batch in debatcher.rows(notifications) for row in batch.to_pylist()]


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), max_size=6),
    partitions=st.integers(1, 40),
    zones=st.integers(1, 4),
    batch_bytes=st.integers(64, 20_000),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
    linger=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_every_row_comes_out_once_in_its_partition_and_in_order(
    sizes: list[int], partitions: int, zones: int, batch_bytes: int, compression: str, linger: float, seed: int
) -> None:
    async def run() -> None:
        store = memory_store()
        batcher = batcher_of(store, partitions, zones, batch_bytes=batch_bytes, compression=compression, linger=linger)
        random = np.random.default_rng(seed)
        expected: dict[int, list[int]] = {}
        start = 0
        for size in sizes:
            ids = list(range(start, start + size))
            start += size
            chosen = random.integers(0, partitions, size).astype(np.int32)
            for each, partition in zip(ids, chosen.tolist(), strict=True):
                expected.setdefault(partition, []).append(each)
            await batcher.add(rows_of(ids), chosen)
        await batcher.finish()
        notifications = batcher.take_finished()
        assert batcher.take_finished() == []
        assert {each.partition for each in notifications} == set(expected)
        assert sum(each.row_count for each in notifications) == start == batcher.statistics().rows
        for partition, ids in expected.items():
            mine = sorted((n for n in notifications if n.partition == partition), key=lambda n: n.key[-10:])
            assert await read_all(store, mine) == rows_of(ids).to_pylist()

    asyncio.run(run())


async def test_batches_are_objects_with_one_zone_each() -> None:
    store = memory_store()
    batcher = batcher_of(store, partitions=6, zones=3)
    ids = list(range(3000))
    await batcher.add(rows_of(ids), np.array([each % 6 for each in ids], dtype=np.int32))
    await batcher.finish()
    zones = zones_of(6, 3)
    keys = {each.key for each in batcher.take_finished()}
    listed = await store.list("shuffle/test/")
    assert {each.key for each in listed.objects} == keys
    for key in keys:
        footer = await read_footer(store, key)
        assert {extent.payload for extent in footer.extents} == {ARROW_STREAM}
        assert len({zones[extent.partition] for extent in footer.extents}) == 1


async def test_batches_are_as_large_as_they_should_be() -> None:
    store = memory_store()
    target = 64 * KIB
    batcher = batcher_of(store, partitions=8, zones=2, batch_bytes=target, compression="none", linger=0.5)
    for start in range(0, 20_000, 500):
        ids = list(range(start, start + 500))
        await batcher.add(rows_of(ids, 100), np.array(ids, dtype=np.int32) % 8)
    await batcher.finish()
    sizes = [each.size for each in (await store.list("shuffle/test/")).objects]
    assert sum(sizes) / len(sizes) / target == pytest.approx(1.05, abs=0.1)
    assert min(sizes) > 0.5 * target
    assert max(sizes) < 1.65 * target


async def test_compressed_batches_are_as_large_too() -> None:
    store = memory_store()
    batcher = batcher_of(store, partitions=2, batch_bytes=64 * KIB, compression="zstd")
    for start in range(0, 100_000, 2000):
        ids = list(range(start, start + 2000))
        await batcher.add(rows_of(ids, 100), np.array(ids, dtype=np.int32) % 2)
    await batcher.finish()
    sizes = sorted(each.size for each in (await store.list("shuffle/test/")).objects)
    # Rows are held back up to four times the size: these would be compressed to less than that.
    assert np.median(sizes) > 1.5 * batcher.statistics().stored_bytes / batcher.statistics().rows_bytes * 64 * KIB


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(SeededEntropy(1))
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()


class SlowStore:
    """Takes its time, and can be told to fail."""

    def __init__(self, put_s: float = 1.0, fails_at: int | None = None) -> None:
        self.put_s = put_s
        self.fails_at = fails_at
        self.puts: list[tuple[float, str, int]] = []
        self.under_way = self.under_way_max = 0

    async def put(self, key: str, data: Bytes) -> None:
        number = len(self.puts)
        self.puts.append((asyncio.get_running_loop().time(), key, len(data)))
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        await asyncio.sleep(self.put_s)
        self.under_way -= 1
        if number == self.fails_at:
            raise StoreUnavailable("the store is away")


def test_a_batch_closes_when_its_interval_is_over() -> None:
    async def run() -> None:
        store = SlowStore(put_s=0.5)
        batcher = batcher_of(store, partitions=2, interval_s=5.0)
        await batcher.add(rows_of([1]), np.array([0], dtype=np.int32))
        await asyncio.sleep(3)
        await batcher.add(rows_of([2]), np.array([1], dtype=np.int32))
        assert store.puts == []
        await asyncio.sleep(2.1)
        assert len(store.puts) == 1
        assert batcher.take_finished() == []  # it is not there yet
        await asyncio.sleep(0.5)
        assert [each.row_count for each in batcher.take_finished()] == [1, 1]
        await batcher.add(rows_of([3]), np.array([1], dtype=np.int32))
        await asyncio.sleep(4.9)
        assert len(store.puts) == 1
        await asyncio.sleep(0.2)
        assert len(store.puts) == 2
        await batcher.finish()
        assert len(store.puts) == 2

    in_virtual_time(run)


def test_uploads_run_beside_processing_and_are_bounded() -> None:
    async def run() -> None:
        store = SlowStore()
        batcher = batcher_of(store, partitions=1, uploads_in_flight_max=3, compression="none")
        ids = list(range(4000))
        started_s = asyncio.get_running_loop().time()
        await batcher.add(rows_of(ids), np.zeros(4000, dtype=np.int32))
        await batcher.finish()
        assert len(store.puts) > 10
        assert store.under_way_max == 3
        assert asyncio.get_running_loop().time() - started_s == pytest.approx(-(-len(store.puts) // 3), abs=1.1)

    in_virtual_time(run)


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_a_failed_upload_fails_the_commit(fails_at: int) -> None:
    async def run() -> None:
        store = SlowStore(fails_at=fails_at)
        batcher = batcher_of(store, partitions=1, uploads_in_flight_max=2, compression="none")

        async def task() -> None:
            for start in range(0, 4000, 100):
                await batcher.add(rows_of(list(range(start, start + 100))), np.zeros(100, dtype=np.int32))
            await batcher.finish()

        with pytest.raises(JobError, match="the store is away"):
            await task()
        with pytest.raises(JobError):
            batcher.take_finished()
        with pytest.raises(JobError):
            await batcher.finish()
        await batcher.close()

    in_virtual_time(run)


def test_giving_up_leaves_nothing_under_way() -> None:
    async def run() -> None:
        store = SlowStore()
        batcher = batcher_of(store, partitions=1, compression="none")
        await batcher.add(rows_of(list(range(1000))), np.zeros(1000, dtype=np.int32))
        await batcher.close()
        count = len(store.puts)
        await asyncio.sleep(60)
        assert len(store.puts) == count

    in_virtual_time(run)


async def test_attempts_share_no_keys() -> None:
    store = memory_store()
    entropies = (SeededEntropy(1), SeededEntropy(2))
    for entropy in entropies:
        batcher = Batcher(store, BatcherSettings("test"), ["z"], clock=FakeClock(), entropy=entropy)
        await batcher.add(rows_of([1]), np.zeros(1, dtype=np.int32))
        await batcher.finish()
    assert len((await store.list("shuffle/")).objects) == 2


async def test_a_zone_with_few_rows_does_not_hold_on_to_those_of_others() -> None:
    splitter = Splitter(["a", "b"])
    ids = list(range(10_000))
    chosen = np.zeros(10_000, dtype=np.int32)
    chosen[17] = 1
    found = dict(splitter.split(rows_of(ids), chosen))
    assert found["b"].rows.get_total_buffer_size() < 1000
    assert found["b"].rows.column("id").to_pylist() == [17]


@settings(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=8), data=st.data())
def test_a_chunk_can_be_cut_anywhere(counts: list[int], data: st.DataObject) -> None:
    total = sum(counts)
    ids = list(range(total))
    partitions = [each for each, count in enumerate(counts) for _ in range(count)]
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    chunk = Chunk(rows_of(ids), np.arange(len(counts), dtype=np.int64), bounds, 1000)
    buffer = ZoneBuffer(10)
    buffer.add(chunk)
    found: list[tuple[int, int]] = []
    while buffer:
        taken = buffer._take(data.draw(st.floats(0, 1200)))
        assert sum(each.rows.num_rows for each in taken) > 0
        for each in taken:
            assert each.bounds[0] == 0
            assert each.bounds[-1] == each.rows.num_rows
            assert len(each.bounds) == len(each.partitions) + 1
            repeats = np.diff(each.bounds)
            assert (repeats > 0).all()
            found += zip(np.repeat(each.partitions, repeats).tolist(), each.rows.column("id").to_pylist(), strict=True)
    assert found == list(zip(partitions, ids, strict=True))
    assert buffer.size_bytes == 0


def note(key: str, position: int, length: int, partition: int = 0) -> Notification:
    return Notification(partition, key, position, length, 1, 0, 1 << 30, "")


def test_ranges_of_a_batch_are_read_together() -> None:
    mib = 1024 * KIB
    reads = plan_reads(
        [
            note("b", 0, 100),
            note("a", 200, 100, 2),
            note("a", 0, 100, 1),
            note("a", 5 * mib, 100, 3),
            note("a", 5 * mib + 100, 16 * mib, 4),
        ]
    )
    assert [(each.key, each.start, each.end, len(each.notifications)) for each in reads] == [
        ("b", 0, 100, 1),
        ("a", 0, 300, 2),
        ("a", 5 * mib, 5 * mib + 100, 1),
        ("a", 5 * mib + 100, 21 * mib + 100, 1),
    ]


def test_reads_are_ahead_and_bounded() -> None:
    async def run() -> None:
        store = memory_store()
        batcher = batcher_of(store, partitions=1, compression="none")
        await batcher.add(rows_of(list(range(4000))), np.zeros(4000, dtype=np.int32))
        await batcher.finish()
        notifications = batcher.take_finished()
        under_way: list[int] = []

        class Slow:
            count = 0

            async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
                self.count += end - start
                under_way.append(self.count)
                await asyncio.sleep(1.0)
                self.count -= end - start
                return await store.get_range(key, start, end)

        started_s = asyncio.get_running_loop().time()
        largest = max(each.length for each in notifications)
        debatcher = Debatcher(Slow(), DebatcherSettings(ahead_bytes_max=4 * largest, reads_in_flight_max=16))
        found = [row["id"] async for batch in debatcher.rows(notifications) for row in batch.to_pylist()]
        assert sorted(found) == list(range(4000))
        assert max(under_way) <= 4 * largest
        elapsed_s = asyncio.get_running_loop().time() - started_s
        assert elapsed_s < len(notifications) / 2
        assert debatcher.statistics().reads == len(notifications)

    in_virtual_time(run)


async def test_damage_and_loss_are_seen() -> None:
    store = memory_store()
    batcher = batcher_of(store, partitions=1)
    await batcher.add(rows_of(list(range(100))), np.zeros(100, dtype=np.int32))
    await batcher.finish()
    [notification] = batcher.take_finished()
    data = bytearray((await store.get(notification.key)).data)
    data[notification.position + notification.length // 2] ^= 1
    await store.put(notification.key, bytes(data), overwrite=True)
    with pytest.raises(DataLoss, match="damaged"):
        await read_all(store, [notification])
    await store.delete([notification.key])
    with pytest.raises(DataLoss, match="not in the store"):
        await read_all(store, [notification])


def test_notifications_as_columns() -> None:
    notifications = [note("a", 1, 2, 3), Notification(7, "b", 9, 8, 6, 2**32 - 1, 100, "zone")]
    assert list(from_arrow(to_arrow(notifications))) == notifications
    assert to_arrow([]).num_rows == 0


@pytest.mark.parametrize(
    "wrong", [{"batch_bytes": 0}, {"batch_bytes": 1 << 30}, {"compression": "gzip"}, {"interval_s": 0.0}]
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(JobError):
        BatcherSettings(**{"job": "test", **wrong})


async def test_wide_rows_are_taken_in_parts() -> None:
    store = memory_store()
    batcher = batcher_of(store, partitions=3, batch_bytes=1024 * KIB, compression="none")
    rows = rows_of(list(range(20_000)), 1024)
    await batcher.add(rows, np.arange(20_000, dtype=np.int32) % 3)
    await batcher.finish()
    found = await read_all(store, batcher.take_finished())
    assert Counter(row["id"] for row in found) == Counter(range(20_000))
