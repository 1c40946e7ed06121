"""Runs the jobs of a round together, as parts whose results it joins.

An engine runs the parts, in the worker's process or as the tasks of a Spark stage. A job ends with its own last part,
whatever becomes of the others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from braidlog.control.interface import JobProgress, TakenJob
from braidlog.jobs.executor import RunningJob, run_part
from braidlog.jobs.output import Completion
from braidlog.jobs.parts import (
    PART_BYTES,
    SEED_BYTES,
    Part,
    PartResult,
    Step,
    first_parts,
    has_two_steps,
    join,
    rewriting_parts,
)
from braidlog.objects.store import Store, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy

LOCAL = "local"

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Stage:
    """Parts that run together.

    `label` may become known only when the first of them ends.
    """

    label: str
    results: "list[asyncio.Future[PartResult]]"
    """In the order of the parts."""


class Engine(Protocol):
    async def start(self, parts: Sequence[Part]) -> Stage:
        """Start these parts, the largest of which come first."""
        ...


class LocalEngine:
    """Runs parts in this process, on this event loop, a few at a time."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy, *, parts_at_once: int = 1) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._slots = asyncio.Semaphore(parts_at_once)
        self.bytes_done = 0

    async def start(self, parts: Sequence[Part]) -> Stage:
        return Stage(LOCAL, [asyncio.ensure_future(self._run(part)) for part in parts])

    async def _run(self, part: Part) -> PartResult:
        async with self._slots:
            entropy = self._entropy.fork(f"job/{part.job_id}/{part.token.hex()}/{part.step}/{part.number}")
            result = await run_part(part, self._store, self._clock, entropy)
            self.bytes_done += part.size_bytes
            return result


class RoundExecutor:
    """Makes one stage of all jobs of a round, the largest parts first.

    A compaction with a second step makes another stage of that.
    """

    def __init__(self, engine: Engine, store: Store, entropy: Entropy, *, part_bytes: int = PART_BYTES) -> None:
        self._engine = engine
        self._store = store
        self._entropy = entropy
        self._part_bytes = part_bytes

    def start(self, jobs: Sequence[TakenJob]) -> Sequence[RunningJob]:
        loop = asyncio.get_running_loop()
        plans = [(job, first_parts(job, self._part_bytes, seed=self._entropy.token(SEED_BYTES))) for job in jobs]
        ordered = largest_first([part for _, parts in plans for part in parts])
        starting = loop.create_task(self._engine.start(ordered))
        places = {(part.job_id, part.number): place for place, part in enumerate(ordered)}
        running: list[RunningJob] = []
        for job, parts in plans:
            its_places = [places[part.job_id, part.number] for part in parts]
            each = RunningJob(job, loop.create_future())
            each.completion = loop.create_task(self._run(each, parts, its_places, starting))
            running.append(each)
        return running

    async def _run(
        self, running: RunningJob, parts: list[Part], places: list[int], starting: "asyncio.Task[Stage]"
    ) -> Completion:
        job = running.job
        results = await self._results(running, await asyncio.shield(starting), parts, places)
        if not has_two_steps(job, self._part_bytes):
            return join(job, results)
        keys = [result.keys for result in results if result.keys is not None]
        try:
            parts = largest_first(rewriting_parts(job, self._part_bytes, parts, keys))
            stage = await self._engine.start(parts)
            results = await self._results(running, stage, parts, list(range(len(parts))))
            in_order = sorted(zip(parts, results, strict=True), key=lambda each: each[0].number)
            return join(job, [result for _, result in in_order])
        finally:
            await self._delete([each.object_key for each in keys])

    async def _results(
        self, running: RunningJob, stage: Stage, parts: list[Part], places: list[int]
    ) -> list[PartResult]:
        """Wait for the parts of a job, and keep its progress."""
        futures = [stage.results[place] for place in places]
        tasks_before, done_before = running.progress.tasks, running.progress.tasks_done
        bytes_before = running.progress.bytes_done

        def note(_: object = None) -> None:
            done = [part for part, future in zip(parts, futures, strict=True) if future.done()]
            running.progress = JobProgress(
                stage.label,
                min(places, default=-1),
                tasks_before + len(parts),
                done_before + len(done),
                bytes_before + sum(part.size_bytes for part in done if part.step is not Step.COLLECT),
            )

        note()
        for future in futures:
            future.add_done_callback(note)
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:
                future.cancel()
            note()

    async def _delete(self, object_keys: list[str]) -> None:
        try:
            await self._store.delete(object_keys)
        except StoreError as error:
            _log.info("collected keys are left to the sweeper", error=str(error))


def largest_first(parts: Sequence[Part]) -> list[Part]:
    """Order parts so that the last ones to end are small.

    Then cores are idle for a short time only.
    """
    return sorted(parts, key=lambda part: (-part.size_bytes, part.job_id, part.number))
