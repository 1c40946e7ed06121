"""Executes jobs, wherever there is an event loop and a store.

That may be a worker, a Spark task or the simulator.
"""

from typing import Protocol

from braidlog.control.interface import COMPACT, MERGE, JobTask, TakenJob
from braidlog.jobs.input import JobInput
from braidlog.jobs.merging import merge
from braidlog.jobs.output import Completion, JobOutput
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy


class UnknownJob(BraidError):
    """The job is of a kind that this release does not know."""

    remedy = Remedy.GIVE_UP


class Executor(Protocol):
    async def run(self, job: TakenJob) -> Completion:
        """Do the work and upload the result. It is not visible yet."""
        ...


async def run_task(task: JobTask, store: Store, clock: Clock, entropy: Entropy, *, write_epoch: int) -> Completion:
    source = JobInput(store, task)
    output = JobOutput(store, clock, entropy, write_epoch=write_epoch, target_bytes=task.target_bytes)
    if task.kind == MERGE:
        await merge(task, source, output)
    elif task.kind == COMPACT:
        # Imported here, because it needs numpy and a compiler, and a worker that only merges does not.
        from braidlog.jobs.compacting import SEED_BYTES, compact

        await compact(task, source, output, seed=entropy.token(SEED_BYTES))
    else:
        raise UnknownJob(
            f"the kind of job {task.kind!r} is unknown", help="Run the same release of worker and control plane."
        )
    return output.completion


class InProcessExecutor:
    """Runs jobs in this process, on this event loop."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy

    async def run(self, job: TakenJob) -> Completion:
        assert job.task is not None
        return await run_task(
            job.task,
            self._store,
            self._clock,
            self._entropy.fork(f"job/{job.job_id}/{job.token.hex()}"),
            write_epoch=job.write_epoch,
        )
