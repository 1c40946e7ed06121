"""A round on a standalone cluster with two executors, one of which is killed in the middle."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from bench._backlog import EVENTS, STATE, Backlog, Shape, read_partition, write_backlog
from bench._spark_tasks import event_log_config, executor_pids, lost_executors, read_tasks
from bench._standalone import standalone
from tests.cluster import Cluster, Process, wait_until
from tests.jobs.test_kills import SETTINGS, wait_tidy

from braidlog.control.interface import DONE, EXPIRE, RUNNING, WAITING, JobListing, ListJobs, SnapshotRequest
from braidlog.control.remote import connect_control
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

PATIENCE_S = 300.0
SHAPE = Shape(objects=300, partitions=40, compacted_partitions=10, extents_per_object=10, value_bytes=300)
JOBS_MIN = SHAPE.partitions + SHAPE.compacted_partitions
"""So small is the size of merged objects that every partition is a job of its own."""


def list_jobs(control: Process) -> list[JobListing]:
    async def ask() -> list[JobListing]:
        plane = connect_control(control.address, clock=SystemClock(), entropy=SystemEntropy())
        try:
            found = (await plane.list_jobs(ListJobs(), timeout_s=60.0)).jobs
            return [job for job in found if job.kind != EXPIRE]
        finally:
            await plane.close()

    return asyncio.run(ask())


async def check_records(control: Process, store_url: str, backlog: Backlog) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    plane = connect_control(control.address, clock=clock, entropy=entropy)
    store = open_store(store_url, clock=clock, entropy=entropy)
    try:
        for topic in (await plane.snapshot(SnapshotRequest(), timeout_s=60.0)).topics:
            for partition, partition_id in enumerate(topic.partition_ids):
                rows = await read_partition(plane, store, partition_id)
                assert rows == backlog.expected(topic.name, partition), (topic.name, partition)
    finally:
        await store.close()
        await plane.close()


def start_pipeline(cluster: Cluster, control: Process, master: str, config: dict[str, str]) -> Process:
    arguments = ["pipeline", "--control", control.address, "--store", cluster.store_url, "--engine", "spark"]
    arguments += ["--master", master, "--set", "store_latency=s3", "--set", "log_format=json"]
    for name, value in config.items():
        arguments += ["--conf", f"{name}={value}"]
    pipeline = Process("pipeline", arguments, 0, cluster.folder)
    cluster.processes["pipeline"] = pipeline
    return pipeline.start()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_executor_is_killed_in_the_middle_of_a_round(tmp_path: Path) -> None:
    backlog = asyncio.run(write_backlog(tmp_path, SHAPE))
    settings = {**SETTINGS, "merge_size_bytes": 16 * 1024, "job_lease_s": 600}
    events = tmp_path / "events"
    config = {
        **event_log_config(events),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    with standalone(tmp_path, ["a", "b"]) as (master, nodes), Cluster(tmp_path, settings=settings) as cluster:
        control = cluster.control()
        wait_until(lambda: len(list_jobs(control)) >= JOBS_MIN, timeout_s=PATIENCE_S, what="the plan")
        pipeline = start_pipeline(cluster, control, master, config)
        wait_until(
            lambda: Counter(job.state for job in list_jobs(control))[DONE] >= 3,
            timeout_s=PATIENCE_S,
            what="the first results of the stage",
            interval_s=0.05,
        )
        [executor] = executor_pids(nodes[0].folder.parent / "work")
        os.kill(executor, signal.SIGKILL)
        is_in_the_middle = Counter(job.state for job in list_jobs(control))[DONE] <= JOBS_MIN // 2
        wait_until(
            lambda: not any(job.state in (RUNNING, WAITING) for job in list_jobs(control)),
            timeout_s=PATIENCE_S,
            what="the last job",
            interval_s=0.2,
        )
        pipeline.stop()
        asyncio.run(check_records(control, cluster.store_url, backlog))
        wait_tidy(cluster)
        asyncio.run(check_records(control, cluster.store_url, backlog))
        jobs = list_jobs(control)
    assert {job.state for job in jobs} == {DONE}, jobs
    assert Counter(job.subject.partition("/")[0] for job in jobs if job.kind == "merge")[EVENTS] == SHAPE.partitions
    assert Counter(job.subject.partition("/")[0] for job in jobs if job.kind == "compact")[STATE] >= 10
    # Nobody but Spark has read a byte, by its own record of the tasks.
    assert all(job.progress.bytes_done == job.bytes_in for job in jobs)
    tasks = read_tasks(events)
    assert Counter(f"spark {task.stage}" for task in tasks if task.is_good) == sum(
        (Counter({job.progress.stage: job.progress.tasks}) for job in jobs), Counter()
    )
    assert len({task.stage for task in tasks}) < len(jobs) / 5, "many jobs share a stage"
    # Results were in the index before the stage was over, and a job had one attempt: Spark repeated only its task.
    assert min(job.finished_ms for job in jobs) < max(task.finished_ms for task in tasks if task.is_good)
    assert {job.attempts for job in jobs} == {1}
    if is_in_the_middle:  # else the machine stood still while the test waited, and the executor had nothing to do
        assert lost_executors(events)
