"""Jobs on Spark: the same results as in a worker's own process, from tasks that read and write the store themselves."""

import subprocess
import sys
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


_IDLE = """
import asyncio, os, sys
from pathlib import Path
from braidlog.control.interface import MERGE, JobTask
from braidlog.jobs.parts import Part
from braidlog.runtime.clock import SystemClock
from braidlog.spark.engine import SparkEngine
from braidlog.spark.session import create_session, stop_session, with_task_retries

def children():
    return [child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()]

async def main():
    clock = SystemClock()
    engine = SparkEngine(
        lambda: create_session(with_task_retries("local[1]"), quick=True, progress=False),
        sys.argv[1], clock, stop=stop_session, idle_s=0.0,
    )
    for _ in range(2):
        stage = await engine.start([Part(1, b"", 0, 1, JobTask(MERGE, [], [], 1))])
        assert children(), "Spark is there"
        await asyncio.gather(*stage.results)
        while engine.is_started or children():
            await clock.sleep(0.05)
    await engine.close()
    print(engine.statistics().tasks)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_without_work_there_is_no_java_and_with_work_there_is_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IDLE, f"file://{tmp_path}/store"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "2"


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", "local[1,4]"), ("local[*]", "local[*,4]"), ("local[2]", "local[2,4]"), ("spark://a:1", "spark://a:1")],
)
def test_a_local_master_tries_tasks_again_too(master: str, expected: str) -> None:
    from braidlog.spark.session import with_task_retries

    assert with_task_retries(master) == expected
