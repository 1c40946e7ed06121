"""Rounds: many leases at once, each reported as its own work ends; and jobs that several tasks share."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.control.driver import Plane, create_topic
from tests.jobs.driver import JOBS, Writer, read_all, start, work_off, worker
from tests.jobs.test_compacting import compacted_topic, latest, write_random

from braidlog.control.interface import COMPACT, DONE, MERGE, RUNNING, ListJobs, TakeJobs, TopicInfo
from braidlog.jobs.parts import Part, PartResult, Step
from braidlog.jobs.rounds import LocalEngine, RoundExecutor, Stage
from braidlog.jobs.worker import RoundLimits, Worker
from braidlog.runtime.entropy import SeededEntropy

WAIT_S = 60.0
MANY = RoundLimits(jobs_max=100, bytes_max=1 << 30)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start(f"sqlite://{tmp_path}/metadata.db")
    yield plane
    await plane.service.close()


async def topics(plane: Plane, sizes: Sequence[int]) -> list[TopicInfo]:
    """Compacted topics of one partition, each with some bytes for a compaction of its own."""
    found: list[TopicInfo] = []
    for number, size in enumerate(sizes):
        configs = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0"}
        found.append(await create_topic(plane.service, f"state-{number}", 1, **configs))
        writer = Writer(plane, f"writer-{number}")
        for turn in range(3):
            await writer.write(found[-1], {0: [(b"k", bytes([turn]) * size)]})
    await plane.service.parts.planner.plan_once()
    return found


class Gated:
    """An engine whose parts each wait until they may go on."""

    def __init__(self, plane: Plane) -> None:
        self._inner = LocalEngine(plane.store, plane.clock, SeededEntropy("gated"))
        self.started = asyncio.Event()
        self.order: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}

    async def start(self, parts: Sequence[Part]) -> Stage:
        self.order = [part.job_id for part in parts]
        self.gates = {part.job_id: asyncio.Event() for part in parts}
        self.started.set()
        return Stage("gated", [asyncio.ensure_future(self._run(part)) for part in parts])

    async def _run(self, part: Part) -> PartResult:
        await self.gates[part.job_id].wait()
        [result] = (await self._inner.start([part])).results
        return await result


def gated_worker(plane: Plane) -> tuple[Gated, Worker]:
    engine = Gated(plane)
    executor = RoundExecutor(engine, plane.store, SeededEntropy("round"))
    kinds = [MERGE, COMPACT]
    return engine, Worker(
        plane.service, executor, plane.clock, SeededEntropy("worker"), name="gated", kinds=kinds, limits=MANY
    )


async def states(plane: Plane) -> dict[int, str]:
    return {job.job_id: job.state for job in (await plane.service.list_jobs(ListJobs())).jobs}


async def until_done(plane: Plane, job_id: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await states(plane))[job_id] != DONE:
            await asyncio.sleep(0)


async def test_a_round_has_as_many_jobs_as_its_limits_allow(plane: Plane) -> None:
    await topics(plane, [100] * 5)
    size_bytes = (await plane.service.list_jobs(ListJobs())).jobs[0].bytes_in

    async def taken(jobs_max: int, bytes_max: int) -> int:
        return len((await plane.service.take_jobs(TakeJobs("some", [COMPACT], 0, jobs_max, bytes_max))).jobs)

    assert await taken(2, 1 << 30) == 2
    # The first counts in any case.
    assert await taken(9, size_bytes - 1) == 1
    assert await taken(9, 2 * size_bytes) == 2
    assert await taken(9, 1 << 30) == 0


async def test_the_largest_comes_first_and_a_straggler_holds_up_nobody(plane: Plane) -> None:
    made = await topics(plane, [100, 5000, 800])
    engine, some = gated_worker(plane)
    running = asyncio.ensure_future(some.run_once())
    async with asyncio.timeout(WAIT_S):
        await engine.started.wait()
    listings = {job.job_id: job for job in (await plane.service.list_jobs(ListJobs())).jobs}
    assert [listings[job_id].subject for job_id in engine.order] == ["state-1/0", "state-2/0", "state-0/0"]
    straggler, *rest = engine.order
    for job_id in rest:
        engine.gates[job_id].set()
        await until_done(plane, job_id)
    assert not running.done()
    assert (await states(plane))[straggler] == RUNNING
    assert len(await read_all(plane, made[0])) == 1
    assert len(await read_all(plane, made[1])) == 3
    engine.gates[straggler].set()
    async with asyncio.timeout(WAIT_S):
        assert await running
    assert len(await read_all(plane, made[1])) == 1
    assert some.statistics().done == 3


async def test_every_lease_of_a_round_is_renewed_and_a_lost_one_is_given_up(plane: Plane) -> None:
    await topics(plane, [100] * 3)
    engine, some = gated_worker(plane)
    running = asyncio.ensure_future(some.run_once())
    async with asyncio.timeout(WAIT_S):
        await engine.started.wait()
    board = plane.service.parts.jobs
    lost, *kept = engine.order
    board.open[lost].token = b"of another worker"
    # Three times as long as a lease, in steps of a quarter: only heartbeats keep them.
    for _ in range(12):
        before_s = plane.clock.monotonic_s()
        plane.clock.advance(JOBS.lease_s / 4)
        async with asyncio.timeout(WAIT_S):
            while any(board.open[job_id].deadline_s <= before_s + JOBS.lease_s for job_id in kept):
                await asyncio.sleep(0)
    assert some.running == 2, "the lost one is no longer worked on"
    for gate in engine.gates.values():
        gate.set()
    async with asyncio.timeout(WAIT_S):
        assert await running
    found = await states(plane)
    assert [found[job_id] for job_id in kept] == [DONE, DONE]
    assert found[lost] != DONE
    assert (some.statistics().done, some.statistics().refused) == (2, 1)


@pytest.mark.parametrize("part_bytes", [1, 2_000, 1 << 30])
async def test_a_divided_merge_leaves_the_same_records(plane: Plane, part_bytes: int) -> None:
    topic = await create_topic(plane.service, "events", 2)
    writer = Writer(plane)
    for number in range(30):
        await writer.write(topic, {at: [(b"k", b"%d" % number * 100)] for at in range(2)})
    before = [await read_all(plane, topic, at) for at in range(2)]
    assert await work_off(plane, part_bytes=part_bytes) == 1
    assert [await read_all(plane, topic, at) for at in range(2)] == before
    [listing] = (await plane.service.list_jobs(ListJobs())).jobs
    assert listing.progress.bytes_done == listing.bytes_in
    assert (listing.progress.tasks > 1) == (part_bytes < 1 << 30)


@pytest.mark.parametrize("part_bytes", [1, 2_000])
async def test_a_compaction_in_two_steps_leaves_the_newest_of_each_key(plane: Plane, part_bytes: int) -> None:
    topic = await compacted_topic(plane, 2)
    for seed in (1, 2):
        # The second time, a part of the partition is clean already.
        await write_random(plane, topic, objects=20, seed=seed)
        before = [await read_all(plane, topic, at) for at in range(2)]
        assert await work_off(plane, part_bytes=part_bytes) == 2
        for at in range(2):
            expected = sorted(latest(before[at]).values(), key=lambda record: record.offset)
            assert await read_all(plane, topic, at) == expected
    # Only the collected keys were deleted; the replaced objects stay for their grace period.
    assert not [key for key in plane.keys if "/keys-" in key]
    plane.clock.advance(61)
    await plane.service.parts.sweeper.run_once()
    assert [await read_all(plane, topic, at) for at in range(2)]


async def test_tombstones_go_in_two_steps_too_though_nothing_is_dirty(plane: Plane) -> None:
    topic = await compacted_topic(plane, delete_retention_ms="1000")
    writer = Writer(plane)
    for number in range(6):
        await writer.write(
            topic, {0: [(b"gone", None if number == 3 else b"x"), (b"%d" % number, b"y" * 500)][: 1 + (number != 5)]}
        )
    await writer.write(topic, {0: [(b"gone", None)]})
    await writer.write(topic, {0: [(b"last", b"z")]})
    assert await work_off(plane, part_bytes=600) == 1
    assert [record.key for record in await read_all(plane, topic) if record.value is None] == [b"gone"]
    plane.clock.advance(2)
    assert await work_off(plane, part_bytes=600) == 1
    assert [record.key for record in await read_all(plane, topic) if record.value is None] == []


async def test_extents_that_stay_between_others_that_do_not(tmp_path: Path) -> None:
    """Both sides of a large extent that loses nothing are replaced, in objects of their own."""
    plane = await start(f"sqlite://{tmp_path}/metadata.db")
    topic = await compacted_topic(plane)
    writer = Writer(plane)
    await writer.write(topic, {0: [(b"a", b"1"), (b"a", b"2")]})
    large = await writer.write(topic, {0: [(b"large", b"x" * (JOBS.merge_target_bytes // 2 + 100))]})
    await writer.write(topic, {0: [(b"b", b"1"), (b"b", b"2")]})
    before = await read_all(plane, topic)
    assert await work_off(plane) == 1
    assert await read_all(plane, topic) == sorted(latest(before).values(), key=lambda record: record.offset)
    plane.clock.advance(61)
    await plane.service.parts.sweeper.run_once()
    assert large in plane.keys
    assert len(plane.keys) == 3
    await plane.service.close()


async def test_a_backlog_of_one_partition_is_merged_by_one_round(plane: Plane) -> None:
    """Not one object's worth for each plan."""
    topic = await create_topic(plane.service)
    writer = Writer(plane)
    for number in range(40):
        await writer.write(topic, {0: [(b"k", bytes([number]) * 8000)]})
    before = await read_all(plane, topic)
    await plane.service.parts.planner.plan_once()
    some = worker(plane, limits=MANY, part_bytes=JOBS.merge_target_bytes)
    assert await some.run_once()
    [listing] = (await plane.service.list_jobs(ListJobs())).jobs
    assert listing.extents_in == 40
    assert listing.progress.tasks == 5
    assert await read_all(plane, topic) == before


def test_steps_have_names_that_last() -> None:
    """They travel between processes of different releases."""
    assert [str(step) for step in Step] == ["whole", "collect", "rewrite"]
