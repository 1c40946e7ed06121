"""Executes jobs wherever there is an event loop and a store: in a worker, in a Spark task, in the simulator."""

from typing import Protocol

from braidlog.control.interface import COMPACT, MERGE, JobTask, TakenJob
from braidlog.control.job_input import JobInput
from braidlog.control.job_output import Completion, JobOutput
from braidlog.control.merging import merge
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy


class UnknownJob(BraidError):
    """A kind of job that this release does not know."""

    remedy = Remedy.GIVE_UP


class Executor(Protocol):
    async def run(self, job: TakenJob) -> Completion:
        """Do the work and upload its result. Nothing is visible of it yet."""
        ...


async def run_task(task: JobTask, store: Store, clock: Clock, entropy: Entropy, *, write_epoch: int) -> Completion:
    source = JobInput(store, task)
    output = JobOutput(store, clock, entropy, write_epoch=write_epoch, target_bytes=task.target_bytes)
    if task.kind == MERGE:
        await merge(task, source, output)
    elif task.kind == COMPACT:
        # Needs numpy and a compiler, which a worker that only merges does without.
        from braidlog.control.compacting import SEED_BYTES, compact

        await compact(task, source, output, seed=entropy.token(SEED_BYTES))
    else:
        raise UnknownJob(f"a job of kind {task.kind!r}", help="Do worker and control plane run the same release?")
    return output.completion


class InProcessExecutor:
    """In this process, on this event loop."""

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
