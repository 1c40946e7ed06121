"""Batcher, caches and debatcher over the latency model of a store, in virtual time: latencies and requests as they
would be, whatever else this machine is doing."""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from braidlog.cache.layers import MemoryLayer, StoreLayer
from braidlog.cost.shuffle import ShuffleLoad, predict
from braidlog.objects.latency import SlowStore, latency_factor, latency_profile
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.entropy import SeededEntropy
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification

MIB = 1 << 20
RECORD_BYTES = 1024
TICK_S = 0.05
NORMAL_P95 = 1.6449


def requests_p95_s(batch_bytes: int) -> dict[str, float]:
    """Return the 95th percentile of the time that requests for a whole batch take.

    They are fields of a `ShuffleLoad`. The model's bound is then one for the 95th percentile of latencies.
    """
    profile, factor = latency_profile("s3"), latency_factor(NORMAL_P95)
    return {
        "put_s": factor * profile.put_s_median + batch_bytes / profile.upload_bytes_per_s,
        "get_s": factor * profile.get_s_median + batch_bytes / profile.download_bytes_per_s,
    }


class Timed(StoreLayer):
    """Notes how long the store takes."""

    def __init__(self, store: SlowStore) -> None:
        super().__init__(store)
        self.put_s: list[float] = []
        self.get_s: list[float] = []
        self.put_sizes: list[int] = []
        self.put_at_s: list[float] = []

    async def read(self, key, object_size, start, end):  # type: ignore[no-untyped-def]
        started_s = asyncio.get_running_loop().time()
        data = await super().read(key, object_size, start, end)
        self.get_s.append(asyncio.get_running_loop().time() - started_s)
        return data

    async def put(self, key, data):  # type: ignore[no-untyped-def]
        started_s = asyncio.get_running_loop().time()
        self.put_at_s.append(started_s)
        await super().put(key, data)
        self.put_s.append(asyncio.get_running_loop().time() - started_s)
        self.put_sizes.append(len(data))


@dataclass(frozen=True, slots=True)
class Outcome:
    latency_s: list[float]
    """The latency of records, one sample for each batch of rows that came out."""
    put_s: list[float]
    get_s: list[float]
    put_bytes: list[int]
    put_at_s: list[float]
    """When each upload began."""
    rows_in: int
    rows_out: int
    notifications: int
    load: ShuffleLoad
    elapsed_s: float

    def latency(self, percent: int) -> float:
        return float(np.percentile(self.latency_s, percent))

    @property
    def latency_bound_s(self) -> float:
        """The bound of the model on every record: a batch's time to fill, and the slowest PUT and GET of this run.
        Records come in ticks, and so do notifications."""
        slowest_s = max(self.put_s) + max(self.get_s, default=0.0)
        return predict(self.load).batch_fill_s + slowest_s + 2 * TICK_S


def run(load: ShuffleLoad, *, seconds: float, partitions: int, seed: int = 1) -> Outcome:
    """A shuffle of random records for so long."""
    loop = VirtualLoop(SeededEntropy(seed))
    try:
        return loop.run_until_complete(_run(loop, load, seconds, partitions, seed))
    finally:
        loop.close()


async def _run(loop: VirtualLoop, load: ShuffleLoad, seconds: float, partitions: int, seed: int) -> Outcome:
    clock = SimClock(loop)
    bucket = MemoryBucket()
    store = MemoryStore(bucket, url="memory://", clock=clock)
    slow = SlowStore(store, latency_profile("s3"), clock=clock, entropy=SeededEntropy(seed).fork("latency"))
    zones = [f"zone{number}" for number in range(load.zones)]
    bottoms = [Timed(slow) for _ in zones]
    caches = {
        zone: MemoryLayer(bottom, bytes_max=512 * MIB, on_write=True)
        for zone, bottom in zip(zones, bottoms, strict=True)
    }
    zone_of_partition = [zones[partition % load.zones] for partition in range(partitions)]
    source = Source(load, seed, partitions)
    batchers = [
        Batcher(
            caches[zones[number % load.zones]],
            BatcherSettings(
                job="bench",
                batch_bytes=int(load.batch_bytes),
                interval_s=load.interval_s,
                compression="none",
                uploads_in_flight_max=16,
                zone=zones[number % load.zones],
            ),
            zone_of_partition,
            clock=clock,
            entropy=SeededEntropy(seed).fork(f"batcher {number}"),
        )
        for number in range(load.instances)
    ]
    readers = _Readers(caches, zone_of_partition, source)
    rows_in = 0
    for tick in range(round(seconds / TICK_S)):
        await clock.sleep(max(0.0, tick * TICK_S - loop.time()))
        for batcher in batchers:
            rows, chosen = source.chunk(loop.time())
            rows_in += rows.num_rows
            await batcher.add(rows, chosen)
            readers.notify(batcher.take_finished())
    filled_s = loop.time()

    async def finish(batcher: Batcher) -> None:
        await batcher.finish()
        readers.notify(batcher.take_finished())

    await asyncio.gather(*map(finish, batchers))
    await readers.wait()
    return Outcome(
        latency_s=readers.latency_s,
        put_s=[each for bottom in bottoms for each in bottom.put_s],
        get_s=[each for bottom in bottoms for each in bottom.get_s],
        put_bytes=[each for bottom in bottoms for each in bottom.put_sizes],
        put_at_s=[each for bottom in bottoms for each in bottom.put_at_s],
        rows_in=rows_in,
        rows_out=readers.rows,
        notifications=readers.notifications,
        load=load,
        elapsed_s=filled_s,
    )


class Source:
    """Records of random bytes. Partitions have the same number of them, as the model assumes."""

    def __init__(self, load: ShuffleLoad, seed: int, partitions: int) -> None:
        rng = np.random.default_rng(seed)
        self.rows = round(load.bytes_per_s / load.instances * TICK_S / RECORD_BYTES)
        values = rng.integers(0, 256, (self.rows, RECORD_BYTES), dtype=np.uint8)
        self._values = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(RECORD_BYTES), self.rows, [None, pa.py_buffer(values.tobytes())]
        )
        self._partitions = rng.permutation(np.arange(self.rows) % partitions).astype(np.int32)

    def chunk(self, now_s: float) -> tuple[pa.RecordBatch, np.ndarray]:
        at = pa.array(np.full(self.rows, now_s))
        return pa.record_batch({"value": self._values, "at": at}), self._partitions


class _Readers:
    """Every partition's reader, in the partition's zone: it reads what it is told of, at once."""

    def __init__(self, caches: dict[str, MemoryLayer], zone_of_partition: Sequence[str], source: Source) -> None:
        self._debatchers = {zone: Debatcher(cache, DebatcherSettings()) for zone, cache in caches.items()}
        self._zone_of_partition = zone_of_partition
        self._tasks: set[asyncio.Task[None]] = set()
        self.latency_s: list[float] = []
        self.rows = self.notifications = 0

    def notify(self, notifications: Sequence[Notification]) -> None:
        by_partition: dict[int, list[Notification]] = {}
        for each in notifications:
            by_partition.setdefault(each.partition, []).append(each)
        for partition, found in by_partition.items():
            self.notifications += len(found)
            task = asyncio.get_running_loop().create_task(self._read(self._zone_of_partition[partition], found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read(self, zone: str, notifications: list[Notification]) -> None:
        async for rows in self._debatchers[zone].rows(notifications):
            now_s = asyncio.get_running_loop().time()
            at = rows.column("at").to_numpy()
            self.rows += rows.num_rows
            self.latency_s += (now_s - at[:: max(1, len(at) // 16)]).tolist()

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.gather(*self._tasks)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0
