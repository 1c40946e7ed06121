"""Jobs on Spark: the same results as in a worker's own process, from tasks that read and write the store themselves."""

from pathlib import Path
from typing import Any

import pytest
from tests.control.driver import create_topic
from tests.jobs.driver import Writer, read_all, start

from braidlog.control.interface import COMPACT, MERGE, ListJobs
from braidlog.jobs.rounds import RoundExecutor
from braidlog.jobs.worker import RoundLimits, Worker
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy

PART_BYTES = 256
"""So small that the merge has several parts, and a compaction two steps."""


@pytest.mark.timeout(300)
async def test_merges_and_compactions_run_as_spark_tasks(spark: Any, tmp_path: Path) -> None:
    from braidlog.spark.engine import SparkEngine

    url = f"file://{tmp_path}/store"
    plane = await start()
    store = open_store(url, clock=SystemClock(), entropy=SeededEntropy(1))
    events = await create_topic(plane.service, "events", 2)
    state = await create_topic(plane.service, "state", 2, cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
    writer = Writer(plane, store=store)
    for number in range(8):
        await writer.write(events, {at: [(None, f"{number}/{at}".encode())] for at in range(2)})
        await writer.write(state, {at: [(b"a", b"%d" % number), (b"%d" % number, b"x")] for at in range(2)})
    before = [await read_all(plane, events, at, store=store) for at in range(2)]
    newest = {}
    for record in await read_all(plane, state, 0, store=store):
        newest[record.key] = record
    await plane.service.parts.planner.plan_once()
    engine = SparkEngine(lambda: spark, url, SystemClock())
    worker = Worker(
        plane.service,
        RoundExecutor(engine, store, SeededEntropy(3), part_bytes=PART_BYTES),
        SystemClock(),
        SeededEntropy(2),
        name="spark",
        kinds=[MERGE, COMPACT],
        limits=RoundLimits(jobs_max=10, bytes_max=1 << 30),
    )
    # The plane's clock stands still, so a lease lasts.
    assert await worker.run_once()
    assert not await worker.run_once()
    listings = (await plane.service.list_jobs(ListJobs())).jobs
    assert worker.statistics().done == 3, listings
    # One round was one stage. The merge has one task for each part, and each compaction two steps: another stage.
    assert all(listing.progress.stage.startswith("spark ") for listing in listings), listings
    assert engine.statistics().stages == 3
    assert engine.statistics().tasks == sum(listing.progress.tasks for listing in listings) > 6
    assert all(listing.progress.bytes_done == listing.bytes_in for listing in listings), listings
    assert [await read_all(plane, events, at, store=store) for at in range(2)] == before
    left = await read_all(plane, state, 0, store=store)
    assert left == sorted(newest.values(), key=lambda record: record.offset)
    await engine.close()
    await store.close()
    await plane.service.close()
