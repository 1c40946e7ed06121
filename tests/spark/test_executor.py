"""Jobs on Spark: the same results as in a worker's own process, from tasks that read and write the store themselves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.control.driver import create_topic
from tests.jobs.driver import Writer, read_all, start

from braidlog.control.interface import COMPACT, MERGE, ListJobs
from braidlog.jobs.worker import Worker
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy


@pytest.mark.timeout(300)
async def test_merges_and_compactions_run_as_spark_tasks(spark: Any, tmp_path: Path) -> None:
    from braidlog.spark.executor import SparkExecutor

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
    executor = SparkExecutor(lambda: spark, url, jobs_at_once=2)
    worker = Worker(
        plane.service, executor, SystemClock(), SeededEntropy(2), name="spark", kinds=[MERGE, COMPACT], jobs_at_once=2
    )
    # The plane's clock stands still, so a lease lasts.
    assert await asyncio.gather(worker.run_once(), worker.run_once(), worker.run_once()) == [True, True, True]
    assert not await worker.run_once()
    assert worker.statistics().done == 3, (await plane.service.list_jobs(ListJobs())).jobs
    assert [await read_all(plane, events, at, store=store) for at in range(2)] == before
    left = await read_all(plane, state, 0, store=store)
    assert left == sorted(newest.values(), key=lambda record: record.offset)
    await store.close()
    await plane.service.close()
