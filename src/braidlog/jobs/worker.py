"""A worker takes jobs from the control plane, does them, and reports the results.

Its heartbeats run beside the work. If the worker dies, another worker gets the job when the lease ends, and the sweeper
deletes what was uploaded. If the worker was only paused, the control plane refuses its result.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from braidlog.control.interface import (
    CompleteJob,
    ControlPlane,
    FailJob,
    HeartbeatJob,
    JobVerdict,
    TakeJob,
    TakenJob,
)
from braidlog.jobs.executor import Executor
from braidlog.jobs.output import Completion
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError

CALL_TIMEOUT_S = 15.0
TAKE_WAIT_MS = 10_000
TAKE_BACKOFF = Backoff(first_s=0.2, max_s=10.0)
REPORT_BACKOFF = Backoff(first_s=0.2, max_s=10.0, share_min=0.5)
REPORT_TRIES_MAX = 10

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    done: int
    refused: int
    """Results that came too late, or after the index had changed."""
    failed: int


class Worker:
    """Takes jobs of some kinds and runs them, several at a time."""

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
        """The number of jobs that run now."""

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(self._done, self._refused, self._failed)

    async def run(self) -> None:
        """Work for ever. When it is cancelled, it gives its jobs back."""
        await asyncio.gather(*(self._run_slot() for _ in range(self._jobs_at_once)))

    async def _run_slot(self) -> None:
        failures = 0
        while True:
            try:
                await self.run_once(wait_ms=TAKE_WAIT_MS)
                failures = 0
                continue
            except BraidError as error:
                _log.warning(
                    "no job could be taken",
                    error=str(error),
                    help=error.help,
                    retry_within_s=TAKE_BACKOFF.bound_s(failures),
                )
            except Exception as error:  # noqa: BLE001 - a worker that stops would be noticed much later
                _log.error(
                    "no job could be taken, because of an unexpected error",
                    exc_info=error,
                    retry_within_s=TAKE_BACKOFF.bound_s(failures),
                )
            await self._clock.sleep(TAKE_BACKOFF.pause_s(failures, self._entropy))
            failures += 1

    async def run_once(self, *, wait_ms: int = 0) -> bool:
        """Take one job and finish it. Returns False if there was none."""
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
        heartbeats = asyncio.ensure_future(self._send_heartbeats(job))
        try:
            await asyncio.wait({work, heartbeats}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                log.warning("the job's lease was lost")
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
            for task in (work, heartbeats):
                task.cancel()
            await asyncio.gather(work, heartbeats, return_exceptions=True)
        if verdict.accepted:
            self._done += 1
            log.info("job done", objects=len(completion.objects), replacements=len(completion.replacements))
        else:
            self._refused += 1
            log.warning("the job's result was refused", reason=verdict.reason)

    async def _send_heartbeats(self, job: TakenJob) -> None:
        """Send heartbeats, and return when the lease is lost.

        A missing answer proves nothing: the control plane may come back in time.
        """
        pause_s = job.lease_ms / 1000 / 4
        while True:
            await self._clock.sleep(pause_s)
            try:
                answer = await self._control.heartbeat_job(HeartbeatJob(job.job_id, job.token), timeout_s=pause_s)
            except BraidError as error:
                _log.warning("a heartbeat was not answered", job=job.job_id, error=str(error))
                continue
            if not answer.leased:
                return

    async def _report(self, job: TakenJob, completion: Completion) -> JobVerdict:
        """Report a result, again and again if no answer comes.

        The control plane makes the swap only once.
        """
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
        for failures in range(REPORT_TRIES_MAX - 1):
            try:
                return await self._control.complete_job(request, timeout_s=CALL_TIMEOUT_S)
            except BraidError as error:
                _log.warning("a result was not answered", job=job.job_id, error=str(error))
                await self._clock.sleep(REPORT_BACKOFF.pause_s(failures, self._entropy))
        return await self._control.complete_job(request, timeout_s=CALL_TIMEOUT_S)

    async def _give_back(self, job: TakenJob, error: str) -> None:
        """Give a job back, so that another worker can take it before the lease ends."""
        try:
            await self._control.fail_job(FailJob(job.job_id, job.token, error), timeout_s=CALL_TIMEOUT_S)
        except BraidError as problem:
            _log.warning("a job could not be given back", job=job.job_id, error=str(problem))
