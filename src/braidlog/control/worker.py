"""A worker: takes jobs, does them, and reports them, for as long as it is let.

Its heartbeats run beside the work. Wherever it dies, the job goes to the next worker when the lease is over, and what
it had uploaded is an orphan for the sweeper. If it was only asleep, it finds on waking that nobody takes its result.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from braidlog.control.executor import Executor
from braidlog.control.interface import (
    CompleteJob,
    ControlPlane,
    FailJob,
    HeartbeatJob,
    JobVerdict,
    TakeJob,
    TakenJob,
)
from braidlog.control.job_output import Completion
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError

CALL_TIMEOUT_S = 15.0
TAKE_WAIT_MS = 10_000
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.2, 10.0
REPORT_TRIES_MAX = 10

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    done: int
    refused: int
    """Results that came too late, or that the index had moved on from."""
    failed: int


class Worker:
    def __init__(
        self,
        control: ControlPlane,
        executor: Executor,
        clock: Clock,
        entropy: Entropy,
        *,
        name: str,
        kinds: Sequence[str],
        jobs_at_once: int = 1,
    ) -> None:
        self._control = control
        self._executor = executor
        self._clock = clock
        self._entropy = entropy
        self._name = name
        self._kinds = list(kinds)
        self._jobs_at_once = jobs_at_once
        self._done = self._refused = self._failed = 0
        self.running = 0
        """Jobs that are being worked on now."""

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(self._done, self._refused, self._failed)

    async def run(self) -> None:
        """Work for ever. Cancelled, it gives back what it has."""
        await asyncio.gather(*(self._run_slot() for _ in range(self._jobs_at_once)))

    async def _run_slot(self) -> None:
        backoff_s = BACKOFF_S_MIN
        while True:
            try:
                await self.run_once(wait_ms=TAKE_WAIT_MS)
                backoff_s = BACKOFF_S_MIN
                continue
            except BraidError as error:
                _log.warning("no job could be taken", error=str(error), help=error.help, retry_within_s=backoff_s)
            except Exception as error:  # noqa: BLE001 - jobs that nobody takes would be missed much later
                _log.error("no job could be taken, in an unforeseen way", exc_info=error, retry_within_s=backoff_s)
            await self._clock.sleep(self._entropy.uniform(0.0, backoff_s))
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def run_once(self, *, wait_ms: int = 0) -> bool:
        """Take one job and see it through. False if there was none."""
        job = await self._control.take_job(
            TakeJob(self._name, self._kinds, wait_ms), timeout_s=wait_ms / 1000 + CALL_TIMEOUT_S
        )
        if job.job_id == 0 or job.task is None:
            return False
        self.running += 1
        try:
            await self._do(job)
        finally:
            self.running -= 1
        return True

    async def _do(self, job: TakenJob) -> None:
        assert job.task is not None
        log = _log.bind(job=job.job_id, kind=job.task.kind)
        work = asyncio.ensure_future(self._executor.run(job))
        beating = asyncio.ensure_future(self._beat(job))
        try:
            await asyncio.wait({work, beating}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("the job was lost to somebody else")
                self._refused += 1
                return
            completion = work.result()
            verdict = await self._report(job, completion)
        except asyncio.CancelledError:
            await self._give_back(job, "the worker was stopped")
            raise
        except Exception as error:
            self._failed += 1
            log.error("the job failed", error=str(error), exc_info=None if isinstance(error, BraidError) else error)
            await self._give_back(job, f"{type(error).__name__}: {error}")
            return
        finally:
            for task in (work, beating):
                task.cancel()
            await asyncio.gather(work, beating, return_exceptions=True)
        if verdict.accepted:
            self._done += 1
            log.info("job done", objects=len(completion.objects), replacements=len(completion.replacements))
        else:
            self._refused += 1
            log.warning("the job's result was refused", reason=verdict.reason)

    async def _beat(self, job: TakenJob) -> None:
        """Return when the lease is somebody else's. No answer proves nothing: the control plane may be back in time."""
        pause_s = job.lease_ms / 1000 / 4
        while True:
            await self._clock.sleep(pause_s)
            try:
                answer = await self._control.heartbeat_job(HeartbeatJob(job.job_id, job.token), timeout_s=pause_s)
            except BraidError as error:
                _log.warning("a heartbeat was not answered", job=job.job_id, error=str(error))
                continue
            if not answer.held:
                return

    async def _report(self, job: TakenJob, completion: Completion) -> JobVerdict:
        """Repeated where no answer comes: the control plane makes the swap once, and then says so."""
        request = CompleteJob(
            job.job_id,
            job.token,
            completion.objects,
            completion.replacements,
            completion.due_ms,
            completion.clean_end_offset,
            completion.scan,
            completion.replay,
        )
        backoff_s = BACKOFF_S_MIN
        for _ in range(REPORT_TRIES_MAX - 1):
            try:
                return await self._control.complete_job(request, timeout_s=CALL_TIMEOUT_S)
            except BraidError as error:
                _log.warning("a result was not answered", job=job.job_id, error=str(error))
                await self._clock.sleep(self._entropy.uniform(0.5, 1.0) * backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
        return await self._control.complete_job(request, timeout_s=CALL_TIMEOUT_S)

    async def _give_back(self, job: TakenJob, error: str) -> None:
        """So that another worker need not wait for the lease to end. Where it cannot be told, the lease will."""
        try:
            await self._control.fail_job(FailJob(job.job_id, job.token, error), timeout_s=CALL_TIMEOUT_S)
        except BraidError as problem:
            _log.warning("a job could not be given back", job=job.job_id, error=str(problem))
