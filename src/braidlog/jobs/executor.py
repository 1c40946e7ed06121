"""Executes parts of jobs, wherever there is an event loop and a store.

That may be a worker, a Spark task or the simulator.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from braidlog.control.interface import COMPACT, MERGE, JobProgress, TakenJob
from braidlog.jobs.input import JobInput
from braidlog.jobs.merging import merge
from braidlog.jobs.output import Completion, JobOutput
from braidlog.jobs.parts import Part, PartResult, Step, size_bytes
from braidlog.objects.layout import COMPACTED, MERGED
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy


class UnknownJob(BraidError):
    """The job is of a kind that this release does not know."""

    remedy = Remedy.GIVE_UP


NO_PROGRESS = JobProgress()


@dataclass(slots=True, eq=False)
class RunningJob:
    """A job of a round. Cancel its completion to give it up."""

    job: TakenJob
    completion: "asyncio.Future[Completion]"
    progress: JobProgress = NO_PROGRESS

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.job.task.partitions)


class Executor(Protocol):
    def start(self, jobs: Sequence[TakenJob]) -> Sequence[RunningJob]:
        """Start the work of a round.

        Each job ends by itself. Its result is uploaded then, and not visible yet.
        """
        ...


async def run_part(part: Part, store: Store, clock: Clock, entropy: Entropy) -> PartResult:
    """Do the work of one task.

    Every attempt chooses new object names, so a second one does no harm.
    """
    task = part.task
    source = JobInput(store, task)
    kind = COMPACTED if task.kind == COMPACT else MERGED
    output = JobOutput(store, clock, entropy, write_epoch=part.write_epoch, target_bytes=task.target_bytes, kind=kind)
    if task.kind == MERGE:
        await merge(task, source, output)
    elif task.kind == COMPACT:
        # Imported here, because it needs numpy and a compiler, and a worker that only merges does not.
        from braidlog.jobs import compacting, stored_keys

        limits, extents = compacting.compaction_limits(task), compacting.PartitionInput(source, task)
        if part.step is Step.COLLECT:
            keys = await compacting.collect_keys(extents, seed=part.seed, limits=limits)
            return PartResult(keys=await stored_keys.store_keys(part, keys, store, entropy))
        if part.step is Step.REWRITE:
            keys = await stored_keys.read_keys(part, compacting.compaction_rules(extents.terms), limits, store)
        else:
            keys = await compacting.collect_keys(extents, seed=part.seed, limits=limits)
        await compacting.rewrite(extents, output, keys, limits, ends_log=part.ends_log)
    else:
        raise UnknownJob(
            f"the kind of job {task.kind!r} is unknown", help="Run the same release of worker and control plane."
        )
    done = output.completion
    return PartResult(done.objects, done.replacements, done.due_ms, done.clean_end_offset)
