"""A worker is ready for a job before it takes one, and runs each round where it should."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.control.interface import MERGE, IndexedExtent, JobPartition, JobTask
from braidlog.jobs.parts import Part
from braidlog.jobs.rounds import Stage
from braidlog.jobs.worker import Worker
from braidlog.node.pipeline import SPARK_RETRY_S, ChosenEngine, PipelinePlan, run_pipeline, work
from braidlog.runtime.errors import BraidError, InvalidSetting
from braidlog.runtime.settings import AgentSettings

WAIT_S = 60.0


class Waiting:
    """A worker that only tells that it was let."""

    def __init__(self) -> None:
        self.takes_jobs = asyncio.Event()

    async def run(self) -> None:
        self.takes_jobs.set()


async def test_loading_compaction_holds_up_the_worker_and_not_the_loop() -> None:
    worker = Waiting()
    is_loading, may_go_on = threading.Event(), threading.Event()

    def load() -> None:
        is_loading.set()
        # Left by itself it would end, so that a loop that is held up fails the test and does not hang it.
        may_go_on.wait(WAIT_S)

    task = asyncio.create_task(work(cast(Worker, cast(Any, worker)), load=load))
    try:
        assert await asyncio.to_thread(is_loading.wait, WAIT_S)
        assert not may_go_on.is_set()
        assert not worker.takes_jobs.is_set()
    finally:
        may_go_on.set()
    async with asyncio.timeout(WAIT_S):
        await task
    assert worker.takes_jobs.is_set()


class Noted:
    """An engine that only notes what it is given."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.error: BraidError | None = None

    async def start(self, parts: Sequence[Part]) -> Stage:
        if self.error is not None:
            raise self.error
        self.rounds.append(sum(part.size_bytes for part in parts))
        return Stage("noted", [])


def part(size_bytes: int) -> Part:
    extent = IndexedExtent(1, 0, 1, 1, 0, size_bytes, 0, 0)
    return Part(1, b"token", 0, 1, JobTask(MERGE, [JobPartition(1, bytes(16), 0, 0, [extent])], [], 1))


async def test_small_rounds_stay_in_the_process_and_large_ones_go_to_spark() -> None:
    local, spark = Noted(), Noted()
    engine = ChosenEngine(local, spark, FakeClock(), spark_bytes_min=100)
    await engine.start([part(40), part(59)])
    await engine.start([part(40), part(60)])
    assert (local.rounds, spark.rounds) == ([99], [100])


async def test_without_a_spark_that_starts_everything_runs_in_the_process_for_a_while() -> None:
    local, spark, clock = Noted(), Noted(), FakeClock()
    engine = ChosenEngine(local, spark, clock, spark_bytes_min=100)
    spark.error = BraidError("no Java")
    await engine.start([part(200)])
    spark.error = None
    await engine.start([part(201)])
    assert (local.rounds, spark.rounds) == ([200, 201], [])
    clock.advance(SPARK_RETRY_S)
    await engine.start([part(202)])
    assert (local.rounds, spark.rounds) == ([200, 201], [202])


@pytest.mark.parametrize("changed", [{"store_url": "memory://"}, {"pipeline_master": "sc://host"}])
async def test_what_a_worker_cannot_do_is_said_at_its_start(changed: dict[str, str]) -> None:
    settings = AgentSettings(**{"store_url": "file:///nowhere", **changed})  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting):
        async with run_pipeline(settings, PipelinePlan()):
            pass
