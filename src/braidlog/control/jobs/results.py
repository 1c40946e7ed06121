"""The ends of jobs: results, failures and lost workers.

Results change the index here, and nowhere else.
"""

from collections.abc import Mapping
from typing import Protocol

import msgspec
import structlog

from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    DONE,
    FAILED,
    WAITING,
    BoundsChanged,
    CompleteJob,
    ExtentsReplaced,
    FailJob,
    FeedEvent,
    JobTask,
    JobVerdict,
)
from braidlog.control.jobs.board import JobBoard, OpenJob, prune
from braidlog.control.jobs.swap import (
    INDEX_CHANGED,
    LEASE_LOST,
    STALE_EPOCH,
    Swap,
    SwapRefused,
    check_completion,
    write_compaction,
    write_swap,
)
from braidlog.control.log.write_epochs import WriteEpochs
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import Transaction

ATTEMPTS_MAX = 5
"""A job is given up after so many workers have failed at it. Its work will be planned again."""

_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_replace = msgspec.structs.replace


class Finisher(Protocol):
    """Finishes jobs that rewrite no extents. Called with the state lock held."""

    def finish(self, task: JobTask, request: CompleteJob) -> "Finish":
        """Return the change that a result makes.

        Raises `SwapRefused` for an invalid result.
        """
        ...

    def given_up(self, job_id: int, task: JobTask) -> None:
        """Note that the job failed for good. It is off the board."""
        ...


class Finish(Protocol):
    def write(self, tx: Transaction) -> None: ...
    async def apply(self) -> None:
        """Make the change visible: it is durable, and the job is off the board."""
        ...


class JobResults:
    """Takes finished and failed jobs off the board.

    `finishers` are for the kinds that rewrite no extents.
    """

    def __init__(
        self,
        foundation: Foundation,
        board: JobBoard,
        catalog: Catalog,
        epochs: WriteEpochs,
        finishers: Mapping[str, Finisher],
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._feed = foundation.feed
        self._clock = foundation.clock
        self._board = board
        self._catalog = catalog
        self._epochs = epochs
        self._finishers = finishers
        self._object_numbers = NumberBlocks(foundation.metadata, "object_number", 1_000)

    async def complete(self, request: CompleteJob) -> JobVerdict:
        async with self._state_lock:
            job = self._board.leased(request.job_id, request.token)
            if job is None:
                return await self._answer_late(request)
            try:
                finisher = self._finishers.get(job.task.kind)
                if finisher is not None:
                    await self._finish(job, finisher.finish(job.task, request))
                    return JobVerdict(True)
                swap = check_completion(job.task, request, self._epochs.floor)
                await self._swap(job, swap, request)
            except SwapRefused as refused:
                _log.warning("a job's result was refused", job=job.job_id, kind=job.task.kind, reason=str(refused))
                await self._give_back(job, str(refused), is_over=True)
                return JobVerdict(False, str(refused))
            return JobVerdict(True)

    async def _finish(self, job: OpenJob, finish: Finish) -> None:
        """Finish a job that rewrites nothing.

        It leaves no listing: there is one every few seconds.
        """

        def write(tx: Transaction) -> None:
            finish.write(tx)
            tx.execute("DELETE FROM jobs WHERE job_id = ?", (job.job_id,))

        await self._metadata.plan(write)
        del self._board.open[job.job_id]
        await finish.apply()

    async def _swap(self, job: OpenJob, swap: Swap, request: CompleteJob) -> None:
        await self._object_numbers.reserve(len(swap.objects))
        numbers = [self._object_numbers.take() for _ in swap.objects]
        now_ms = self._clock.wall_ms()
        listing = _replace(
            job.listing,
            state=DONE,
            finished_ms=now_ms,
            bytes_out=swap.bytes_out,
            extents_out=swap.extents_out,
            progress=request.progress or job.listing.progress,
        )

        def write(tx: Transaction) -> None:
            write_swap(tx, swap, numbers, now_ms)
            write_compaction(tx, job.task, request)
            tx.execute(
                "UPDATE jobs SET state = ?, task = NULL, listing = ? WHERE job_id = ?",
                (DONE, _encode(listing), job.job_id),
            )
            prune(tx)

        await self._metadata.plan(write)
        self._board.close(job, listing)
        self._publish(swap)

    def _publish(self, swap: Swap) -> None:
        events: list[FeedEvent] = []
        for partition in swap.partitions:
            state = self._catalog.partitions.get(partition.partition_id)
            if state is not None:
                state.size_bytes += partition.growth_bytes
                state.discard_plan()
                events.append(ExtentsReplaced(partition.partition_id, partition.end_offset))
                events.append(BoundsChanged(state.bounds))
        self._feed.publish(events)

    async def _answer_late(self, request: CompleteJob) -> JobVerdict:
        """Answer a completion without a lease.

        Accept it if it was made before and its answer got lost, else refuse it.
        """
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT state, token FROM jobs WHERE job_id = ?", (request.job_id,))
        )
        if rows and rows[0][0] == DONE and rows[0][1] is not None and bytes(rows[0][1]) == request.token:
            return JobVerdict(True)
        return JobVerdict(False, f"{LEASE_LOST}: job {request.job_id} is no longer leased under this token")

    async def fail(self, request: FailJob) -> None:
        async with self._state_lock:
            job = self._board.leased(request.job_id, request.token)
            if job is not None:
                await self._give_back(job, request.error)

    async def _give_back(self, job: OpenJob, error: str, *, is_over: bool = False) -> None:
        """Offer the job to another worker.

        Give it up after too many attempts, or if the index has changed.
        """
        is_over = is_over or job.listing.attempts >= ATTEMPTS_MAX
        state = FAILED if is_over else WAITING
        finished_ms = self._clock.wall_ms() if is_over else -1
        listing = _replace(job.listing, state=state, detail=error, finished_ms=finished_ms)

        def write(tx: Transaction) -> None:
            tx.execute(
                "UPDATE jobs SET state = ?, token = NULL, listing = ? WHERE job_id = ?",
                (state, _encode(listing), job.job_id),
            )
            if is_over:
                tx.execute("UPDATE jobs SET task = NULL WHERE job_id = ?", (job.job_id,))
                prune(tx)

        await self._metadata.plan(write)
        job.listing, job.token = listing, b""
        if is_over:
            self._board.close(job, listing)
            if (finisher := self._finishers.get(job.task.kind)) is not None:
                finisher.given_up(job.job_id, job.task)
            if not error.startswith((INDEX_CHANGED, STALE_EPOCH)):
                self._board.pause_planning(job)
        else:
            self._board.offer()

    async def expire_once(self) -> int:
        """Take jobs back from workers that sent no heartbeat for the time of a lease.

        Returns how many.
        """
        async with self._state_lock:
            now_s = self._clock.monotonic_s()
            lost = [job for job in self._board.open.values() if job.token and job.deadline_s <= now_s]
            for job in lost:
                _log.warning("a worker was lost", job=job.job_id, kind=job.task.kind, worker=job.listing.worker)
                await self._give_back(job, f"worker {job.listing.worker} was lost")
            return len(lost)
