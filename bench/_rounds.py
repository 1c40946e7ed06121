"""Rounds of merges and compactions: on executors, on all cores of one machine, and in the worker's process."""

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _backlog import Backlog, Shape, read_partition, write_backlog
from _spark_tasks import event_log_config, read_tasks
from _standalone import standalone
from braidlog.control.interface import (
    DONE,
    EXPIRE,
    MERGE,
    IndexedExtent,
    JobListing,
    JobPartition,
    JobTask,
    ListJobs,
    SnapshotRequest,
    StoredObject,
)
from braidlog.control.remote import connect_control
from braidlog.jobs.executor import run_part
from braidlog.jobs.parts import Part
from braidlog.node.children import BraidProcess
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.open import open_store
from braidlog.records.record import Record, encode_batch
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy, SystemEntropy

MB = 1e6
LOOK_INTERVAL_S = 0.1
WAIT_S_MAX = 1800.0
CALL_TIMEOUT_S = 60.0
MERGE_SIZE = "1MiB"
"""So that a backlog of some hundred megabytes makes a hundred tasks."""

FULL = Shape(objects=10_000, partitions=200, compacted_partitions=50, extents_per_object=10, value_bytes=400)
QUICK = Shape(objects=1_000, partitions=100, compacted_partitions=25, extents_per_object=50, value_bytes=400)


@dataclass(frozen=True, slots=True)
class Run:
    """One backlog worked off."""

    seconds: float
    """From the start of the first task to the end of the last: without the start of Spark."""
    tasks_max: int
    """The tasks of the largest stage."""
    jobs: list[JobListing]

    @property
    def spark_share(self) -> float:
        by_spark = sum(job.progress.bytes_done for job in self.jobs if job.progress.stage.startswith("spark"))
        return by_spark / sum(job.bytes_in for job in self.jobs)


def measure(quick: bool) -> dict[str, float]:
    shape = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="braidlog-rounds-") as name:
        folder = Path(name)
        made = folder / "made"
        made.mkdir()
        backlog = asyncio.run(write_backlog(made, shape))
        bench = _Bench(folder, made, backlog)
        one, two = bench.on_cluster(1), bench.on_cluster(2)
        local = bench.work_off("local2", ["--engine", "spark", "--master", "local[2]"], {})
        process = bench.work_off("process", ["--engine", "local"], {})
    return {
        "merge_mb_per_s_core": merge_mb_per_s_core(3 if quick else 5),
        "rounds_backlog_mb": backlog.size_bytes / MB,
        "rounds_tasks": float(two.tasks_max),
        "spark_share_of_bytes": two.spark_share,
        "one_executor_s": one.seconds,
        "two_executors_s": two.seconds,
        "two_executors_vs_one": one.seconds / two.seconds,
        "local2_s": local.seconds,
        "process_s": process.seconds,
        "local2_vs_process": process.seconds / local.seconds,
    }


class _Bench:
    def __init__(self, folder: Path, made: Path, backlog: Backlog) -> None:
        self._folder = folder
        self._made = made
        self._backlog = backlog

    def on_cluster(self, count: int) -> Run:
        """Over the latency model of S3, so that executors wait for a store as they would in a cloud."""
        folder = self._folder / f"cluster{count}"
        folder.mkdir()
        with standalone(folder, ["a"] * count) as (master, _):
            arguments = ["--engine", "spark", "--master", master, "--set", "store_latency=s3"]
            config = {
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.executor.memory": "512m",
                "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            }
            return self.work_off(f"executors{count}", arguments, config)

    def work_off(self, name: str, arguments: list[str], config: Mapping[str, str]) -> Run:
        """Work off a copy of the backlog, and check every record."""
        folder = self._folder / name
        folder.mkdir()
        # Objects never change, so a copy is a second name.
        shutil.copytree(self._made / "store", folder / "store", copy_function=os.link)
        shutil.copy(self._made / "metadata.db", folder / "metadata.db")
        clock = SystemClock()
        store = f"file://{folder}/store"
        settings = {
            "merge_age_s": "0",
            "merge_size_bytes": MERGE_SIZE,
            "job_check_interval_s": "1",
            "compaction_size_bytes": "0",
            "compaction_interval_s": "0",
            "log_level": "warning",
        }
        control = BraidProcess(
            "control",
            [
                *("control", "--listen", "127.0.0.1:0", "--metrics", "off", "--store", store),
                *("--metadata", f"sqlite://{folder}/metadata.db"),
                *(each for pair in settings.items() for each in ("--set", "=".join(pair))),
            ],
            folder,
            clock,
        )
        options = {**config, **event_log_config(folder / "events")}
        with ExitStack() as stack:
            stack.enter_context(control)
            address = control.addresses["control"]
            self._wait(address, lambda jobs: bool(jobs))
            worker = BraidProcess(
                "pipeline",
                [
                    *("pipeline", "--control", address, "--store", store, "--tasks-at-once", "4", *arguments),
                    *(each for pair in options.items() for each in ("--conf", "=".join(pair))),
                ],
                folder,
                clock,
            )
            with worker:
                jobs = self._wait(address, lambda jobs: bool(jobs) and all(job.state == DONE for job in jobs))
            asyncio.run(self._check(address, store))
        tasks = [task for task in read_tasks(folder / "events") if task.is_good]
        shutil.rmtree(folder)
        if not tasks:
            return Run(_seconds(jobs), 0, jobs)
        seconds = (max(task.finished_ms for task in tasks) - min(task.launched_ms for task in tasks)) / 1000
        return Run(seconds, max(sum(task.stage == each.stage for task in tasks) for each in tasks), jobs)

    def _wait(self, address: str, is_over: Any) -> list[JobListing]:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not is_over(jobs := asyncio.run(_jobs(address))):
            if time.monotonic() > deadline_s or any(job.state == "failed" for job in jobs):
                raise RuntimeError(f"not all jobs are done: {[job for job in jobs if job.state != DONE][:3]}")
            time.sleep(LOOK_INTERVAL_S)
        return jobs

    async def _check(self, address: str, store_url: str) -> None:
        clock, entropy = SystemClock(), SystemEntropy()
        plane = connect_control(address, clock=clock, entropy=entropy)
        store = open_store(store_url, clock=clock, entropy=entropy)
        try:
            for topic in (await plane.snapshot(SnapshotRequest(), timeout_s=CALL_TIMEOUT_S)).topics:
                for partition, partition_id in enumerate(topic.partition_ids):
                    rows = await read_partition(plane, store, partition_id)
                    if rows != self._backlog.expected(topic.name, partition):
                        raise RuntimeError(f"{topic.name}/{partition} has other records than were written")
        finally:
            await store.close()
            await plane.close()


def _seconds(jobs: list[JobListing]) -> float:
    return (max(job.finished_ms for job in jobs) - min(job.started_ms for job in jobs)) / 1000


async def _jobs(address: str) -> list[JobListing]:
    plane = connect_control(address, clock=SystemClock(), entropy=SystemEntropy())
    try:
        found = (await plane.list_jobs(ListJobs(), timeout_s=CALL_TIMEOUT_S)).jobs
        return [job for job in found if job.kind != EXPIRE]
    finally:
        await plane.close()


def merge_mb_per_s_core(runs: int) -> float:
    """A task of 64 MB in extents of 64 KB, from reading them to the finished object, in memory: CPU time."""
    clock = SystemClock()
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    data = encode_batch([Record(at, 0, b"key", bytes(1000), ()) for at in range(64)])
    count = 1000
    extents = [
        IndexedExtent(1, number * 64, number * 64 + 64, number, 0, len(data), 0, 0, None) for number in range(count)
    ]
    objects = [StoredObject(number, f"data/0/{1:010}/bench-{number:010}", len(data)) for number in range(count)]
    task = JobTask(MERGE, [JobPartition(1, bytes(16), 0, 0, extents)], objects, 128 * 1024 * 1024)

    async def run() -> float:
        for stored in objects:
            await store.put(stored.key, data)
        times: list[float] = []
        for number in range(runs + 1):
            started_s = time.process_time()
            await run_part(Part(1, b"", 0, 1, task), store, clock, SeededEntropy(number))
            times.append(time.process_time() - started_s)
        return statistics.median(times[1:])

    return len(data) * count / MB / asyncio.run(run())
