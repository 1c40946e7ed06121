"""A worker takes rounds of jobs, does them, and reports the results.

Each job has a lease of its own, and is reported as soon as it ends. Heartbeats for all of them run beside the work. If
the worker dies, other workers get its jobs when their leases end, and the sweeper deletes what was uploaded. If the
worker was only paused, the control plane refuses its results.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from braidlog.control.interface import (
    CompleteJob,
    ControlPlane,
    FailJob,
    HeartbeatJobs,
    JobLease,
    JobVerdict,
    TakeJobs,
    TakenJob,
)
from braidlog.jobs.executor import Executor, RunningJob
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
REPORTS_AT_ONCE_MAX = 16

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    done: int
    refused: int
    """Results that came too late, or after the index had changed."""
    failed: int
    bytes_done: int
    """Bytes that the jobs that are over have read."""


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """How much a worker takes at once."""

    jobs_max: int = 1
    bytes_max: int = 0
    """The first job of a round may be larger."""
    at_once: int = 1
    """How many rounds run at the same time: while one waits for its last job, another one is taken."""


ONE_JOB = RoundLimits()


class Worker:
    """Takes jobs of some kinds and runs them, a round at a time."""

    def __init__(
        self,
        control: ControlPlane,
        executor: Executor,
        clock: Clock,
        entropy: Entropy,
        *,
        name: str,
        kinds: Sequence[str],
        limits: RoundLimits = ONE_JOB,
    ) -> None:
        self._control = control
        self._executor = executor
        self._clock = clock
        self._entropy = entropy
        self._name = name
        self._kinds = list(kinds)
        self._limits = limits
        self._reports = asyncio.Semaphore(REPORTS_AT_ONCE_MAX)
        self._done = self._refused = self._failed = self._bytes_done = 0
        self._open: dict[bytes, RunningJob] = {}

    @property
    def running(self) -> int:
        """The number of jobs that run now."""
        return len(self._open)

    @property
    def open_jobs(self) -> list[RunningJob]:
        return list(self._open.values())

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(self._done, self._refused, self._failed, self._bytes_done)

    async def run(self) -> None:
        """Work for ever. When it is cancelled, it gives its jobs back."""
        await asyncio.gather(*(self._run_slot() for _ in range(self._limits.at_once)))

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
        """Take one round and finish it. Returns False if there was no job."""
        request = TakeJobs(self._name, self._kinds, wait_ms, self._limits.jobs_max, self._limits.bytes_max)
        taken = (await self._control.take_jobs(request, timeout_s=wait_ms / 1000 + CALL_TIMEOUT_S)).jobs
        if not taken:
            return False
        running = list(self._executor.start(taken))
        leases = {each.job.job_id: each for each in running}
        self._open.update({each.job.token: each for each in running})
        heartbeats = asyncio.ensure_future(self._renew(leases))
        ends = [asyncio.ensure_future(self._finish(each, leases)) for each in running]
        try:
            await asyncio.gather(*ends)
        finally:
            # If the worker is stopped, each of them gives its job back.
            for end in ends:
                end.cancel()
            heartbeats.cancel()
            await asyncio.gather(*ends, heartbeats, return_exceptions=True)
        return True

    async def _finish(self, running: RunningJob, leases: dict[int, RunningJob]) -> None:
        """Wait for one job of a round, and report it."""
        job = running.job
        log = _log.bind(job=job.job_id, kind=job.task.kind)
        try:
            await asyncio.wait({running.completion})
            if running.completion.cancelled():
                log.warning("the job's lease was lost")
                self._refused += 1
                return
            completion = running.completion.result()
            async with self._reports:
                verdict = await self._report(running, completion)
        except asyncio.CancelledError:
            await self._give_back(job, "the worker was stopped")
            raise
        except Exception as error:
            self._failed += 1
            log.error("the job failed", error=str(error), exc_info=None if isinstance(error, BraidError) else error)
            await self._give_back(job, f"{type(error).__name__}: {error}")
            return
        finally:
            leases.pop(job.job_id, None)
            self._open.pop(job.token, None)
            self._bytes_done += running.size_bytes
            running.completion.cancel()
            await asyncio.wait({running.completion})
        if verdict.accepted:
            self._done += 1
            log.info("job done", objects=len(completion.objects), replacements=len(completion.replacements))
        else:
            self._refused += 1
            log.warning("the job's result was refused", reason=verdict.reason)

    async def _renew(self, leases: dict[int, RunningJob]) -> None:
        """Send heartbeats for all jobs of a round, and give up those whose lease is lost.

        A missing answer proves nothing: the control plane may come back in time.
        """
        pause_s = min(each.job.lease_ms for each in leases.values()) / 1000 / 4
        while True:
            await self._clock.sleep(pause_s)
            request = HeartbeatJobs(
                [JobLease(each.job.job_id, each.job.token, each.progress) for each in leases.values()]
            )
            try:
                answer = await self._control.heartbeat_jobs(request, timeout_s=pause_s)
            except BraidError as error:
                _log.warning("a heartbeat was not answered", jobs=len(request.leases), error=str(error))
                continue
            for job_id in answer.lost:
                lost = leases.pop(job_id, None)
                if lost is not None:
                    lost.completion.cancel()

    async def _report(self, running: RunningJob, completion: Completion) -> JobVerdict:
        """Report a result, again and again if no answer comes.

        The control plane makes the swap only once.
        """
        job = running.job
        request = CompleteJob(
            job.job_id,
            job.token,
            completion.objects,
            completion.replacements,
            completion.due_ms,
            completion.clean_end_offset,
            completion.scan,
            completion.replay,
            running.progress,
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
