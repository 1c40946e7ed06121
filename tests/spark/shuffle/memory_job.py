"""Shuffles many rows through a folder with as little memory as may be, as a Python worker of Spark would, and prints
how much more resident memory that took at most: python -m tests.spark.shuffle.memory_job FOLDER MIB."""

import asyncio
import json
import resource
import sys

import numpy as np
import pyarrow as pa

from braidlog.cache.layers import StoreLayer
from braidlog.objects.open import open_store
from braidlog.runtime.allocator import keep_freed_memory
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.spark.daemon import ARENAS_MAX
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification

MIB = 1 << 20
ZONES = ("a", "b", "c")
PARTITIONS = 9
BATCH_BYTES = 4 * MIB
UPLOADS_MAX = 2
AHEAD_BYTES = 8 * MIB
CHUNK_ROWS = 4 * 1024
VALUE_BYTES = 1016


def peak_bytes() -> int:
    """Return the peak memory of this process so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def shuffle(layer: StoreLayer, mib: int) -> dict[str, int]:
    chance = np.random.default_rng(1)
    values = chance.integers(0, 256, CHUNK_ROWS * VALUE_BYTES, dtype=np.uint8)
    bounds = np.arange(CHUNK_ROWS + 1, dtype=np.int32) * np.int32(VALUE_BYTES)
    column = pa.Array.from_buffers(pa.binary(), CHUNK_ROWS, [None, pa.py_buffer(bounds), pa.py_buffer(values)])
    settings = BatcherSettings(
        "memory", BATCH_BYTES, 60.0, compression="none", uploads_in_flight_max=UPLOADS_MAX, linger=0.5
    )
    zones = [ZONES[partition % len(ZONES)] for partition in range(PARTITIONS)]
    batcher = Batcher(layer, settings, zones, clock=SystemClock(), entropy=SystemEntropy())
    notifications: list[Notification] = []
    before_bytes = peak_bytes()
    for chunk in range(mib // 4):
        ids = np.arange(chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS)
        await batcher.add(
            pa.record_batch({"id": pa.array(ids), "value": column}),
            chance.integers(0, PARTITIONS, CHUNK_ROWS, np.int32),
        )
        notifications += batcher.take_finished()
    await batcher.finish()
    notifications += batcher.take_finished()
    mapped_bytes = peak_bytes()
    debatcher = Debatcher(layer, DebatcherSettings(ahead_bytes_max=AHEAD_BYTES))
    rows = total = 0
    for partition in range(PARTITIONS):
        async for batch in debatcher.rows([each for each in notifications if each.partition == partition]):
            rows += batch.num_rows
            total += int(batch.column("id").to_numpy().sum())
    return {
        "rows": rows,
        "total": total,
        "map_bytes": mapped_bytes - before_bytes,
        "reduce_bytes": peak_bytes() - mapped_bytes,
    }


async def main(folder: str, mib: int) -> None:
    store = open_store(f"file://{folder}", clock=SystemClock(), entropy=SystemEntropy())
    print(json.dumps(await shuffle(StoreLayer(store), mib)))
    await store.close()


if __name__ == "__main__":
    keep_freed_memory(ARENAS_MAX)
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
