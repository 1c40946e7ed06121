"""The job board: which jobs are open, and who holds the lease of each."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import (
    DONE,
    FAILED,
    REPLAY,
    RUNNING,
    SCAN,
    WAITING,
    HeartbeatJobs,
    JobHeartbeats,
    JobListing,
    JobListings,
    JobProgress,
    JobTask,
    ListJobs,
    TakeJobs,
    TakenJob,
    TakenJobs,
)
from braidlog.control.log.write_epochs import WriteEpochs
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import Row, Transaction
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.waiters import Waiters

OPEN_JOBS_MAX = 10_000
PLANNING_PAUSE_S = 300.0
"""How long to plan nothing for the partitions of a job that was given up."""
FINISHED_KEPT = 200
LEASE_LIFE_S_MAX = 24 * 3600.0
"""The longest lease, however alive its worker: the objects that it has uploaded hold up the sweeper."""
TAKE_WAIT_MS_MAX = 30_000
JOBS_PER_ROUND_MAX = 1_000
EXTENTS_PER_ROUND_MAX = 200_000
"""Bounds the answer that a round is: an extent takes about 50 bytes in it."""
TOKEN_BYTES = 16
JOURNAL_KINDS = frozenset({SCAN, REPLAY})
"""The kinds of jobs that rewrite no extents."""

_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_task = msgspec.msgpack.Decoder(JobTask).decode
_decode_listing = msgspec.msgpack.Decoder(JobListing).decode
_replace = msgspec.structs.replace


@dataclass(slots=True, eq=False)
class OpenJob:
    task: JobTask
    listing: JobListing
    token: bytes = b""
    """The token of the current lease; empty: nobody has the job."""
    write_epoch: int = 0
    deadline_s: float = 0.0
    taken_s: float = 0.0

    @property
    def job_id(self) -> int:
        return self.listing.job_id


class JobBoard:
    """Keeps the open jobs and their leases.

    Jobs and leases are durable; deadlines are in memory, so a restarted control plane grants each lease its full time
    again. A worker proves its lease by a token. A job whose worker is lost goes to the next worker under a new token,
    and the floor of write epochs stays below the epoch of every lease.
    """

    def __init__(
        self, foundation: Foundation, catalog: Catalog, epochs: WriteEpochs, entropy: Entropy, *, lease_s: float
    ) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._epochs = epochs
        self._clock = foundation.clock
        self._entropy = entropy
        self._lease_s = lease_s
        self._job_numbers = NumberBlocks(foundation.metadata, "job_id", 1_000)
        self.open: dict[int, OpenJob] = {}
        """The open jobs by id, in the order in which they are handed out."""
        self._partitions: dict[int, int] = {}
        """The partitions of open jobs, with the id of the job."""
        self._paused: dict[int, float] = {}
        """The partitions of jobs that failed, and until when nothing is planned for them."""
        self._finished: list[JobListing] = []
        """The listings of finished jobs, the newest last."""
        self._waiters = Waiters()

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT state, task, token, write_epoch, listing FROM jobs ORDER BY job_id")
        )
        now_s = self._clock.monotonic_s()
        for state, task, token, write_epoch, listing in rows:
            if state in (WAITING, RUNNING):
                job = OpenJob(_decode_task(task), _decode_listing(listing))
                if state == RUNNING:
                    job.token, job.write_epoch = bytes(token), write_epoch
                    job.taken_s, job.deadline_s = now_s, now_s + self._lease_s
                self.put(job)
            else:
                self._finished.append(_decode_listing(listing))

    # ── what planners ask ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def busy_partitions(self) -> Mapping[int, int]:
        """The partitions of open jobs, with the id of the job.

        A partition is in one job at most.
        """
        return self._partitions

    @property
    def has_open(self) -> bool:
        """Whether a job that rewrites extents is open."""
        return any(job.task.kind not in JOURNAL_KINDS for job in self.open.values())

    async def discard(self, kinds: Collection[str]) -> None:
        """Take all jobs of these kinds off the board, even if they are leased.

        Call with the state lock held.
        """
        discarded = [job.job_id for job in self.open.values() if job.task.kind in kinds]
        if not discarded:
            return
        rows: list[Row] = [(job_id,) for job_id in discarded]
        await self._metadata.plan(lambda tx: tx.executemany("DELETE FROM jobs WHERE job_id = ?", rows))
        for job_id in discarded:
            del self.open[job_id]

    def of_kind(self, kind: str, job_ids: Iterable[int]) -> list[int]:
        return [job_id for job_id in job_ids if self.open[job_id].task.kind == kind]

    def is_open(self, job_id: int) -> bool:
        return job_id in self.open

    def may_plan(self, partition_id: int) -> bool:
        """Whether the partition is in no open job, nor in one that just failed."""
        paused_until_s = self._paused.get(partition_id)
        if paused_until_s is not None:
            if paused_until_s > self._clock.monotonic_s():
                return False
            del self._paused[partition_id]
        return partition_id not in self._partitions

    @property
    def room(self) -> int:
        return OPEN_JOBS_MAX - len(self.open)

    def lowest_leased_epoch(self) -> int | None:
        """Return the lowest write epoch of all leases that rewrite extents.

        Returns None if there is none.
        """
        leased = [job for job in self.open.values() if job.token and job.task.kind not in JOURNAL_KINDS]
        return min((job.write_epoch for job in leased), default=None)

    async def add(self, planned: Iterable[tuple[JobTask, str]]) -> list[int]:
        """Put jobs on the board, each with a subject for people.

        Returns their ids. Call with the state lock held. A job is skipped if one of its partitions is in another job by
        now, or was deleted since the job was planned.
        """
        tasks = [
            (task, subject)
            for task, subject in planned
            if all(self._is_free(partition.partition_id) for partition in task.partitions)
        ][: self.room]
        if not tasks:
            return []
        await self._job_numbers.reserve(len(tasks))
        now_ms = self._clock.wall_ms()
        jobs: list[OpenJob] = []
        for task, subject in tasks:
            extents = [extent for partition in task.partitions for extent in partition.extents]
            size_bytes = sum(extent.length for extent in extents)
            listing = JobListing(
                self._job_numbers.take(), task.kind, WAITING, subject, size_bytes, len(extents), now_ms
            )
            jobs.append(OpenJob(task, listing))
        rows: list[Row] = [(job.job_id, WAITING, _encode(job.task), 0, _encode(job.listing)) for job in jobs]
        await self._metadata.plan(
            lambda tx: tx.executemany(
                "INSERT INTO jobs (job_id, state, task, write_epoch, listing) VALUES (?, ?, ?, ?, ?)", rows
            )
        )
        for job in jobs:
            self.put(job)
        self._waiters.wake_all()
        return [job.job_id for job in jobs]

    def _is_free(self, partition_id: int) -> bool:
        return partition_id in self._catalog.partitions and partition_id not in self._partitions

    async def note_done(self, kind: str, subject: str, extents_in: int, detail: str) -> None:
        """Record work that the control plane has done by itself, for those who list jobs."""
        async with self._state_lock:
            await self._job_numbers.reserve(1)
            now_ms = self._clock.wall_ms()
            listing = JobListing(
                self._job_numbers.take(),
                kind,
                DONE,
                subject,
                0,
                extents_in,
                now_ms,
                worker="control plane",
                started_ms=now_ms,
                finished_ms=now_ms,
                detail=detail,
            )

            def write(tx: Transaction) -> None:
                tx.execute(
                    "INSERT INTO jobs (job_id, state, write_epoch, listing) VALUES (?, ?, 0, ?)",
                    (listing.job_id, DONE, _encode(listing)),
                )
                prune(tx)

            await self._metadata.plan(write)
            self._remember(listing)

    # ── what workers ask ──────────────────────────────────────────────────────────────────────────────────────────

    async def take(self, request: TakeJobs) -> TakenJobs:
        taken = await self._take_now(request)
        wait_ms = min(request.wait_ms, TAKE_WAIT_MS_MAX)
        if taken.jobs or wait_ms <= 0:
            return taken
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self._waiters.wait()
        except TimeoutError:
            return taken
        return await self._take_now(request)

    async def _take_now(self, request: TakeJobs) -> TakenJobs:
        async with self._state_lock:
            chosen = self._chosen(request)
            if not chosen:
                return TakenJobs([])
            epoch, now_ms, now_s = self._epochs.current, self._clock.wall_ms(), self._clock.monotonic_s()
            leases = [
                (
                    job,
                    self._entropy.token(TOKEN_BYTES),
                    _replace(
                        job.listing,
                        state=RUNNING,
                        worker=request.worker,
                        attempts=job.listing.attempts + 1,
                        started_ms=now_ms,
                        progress=JobProgress(),
                    ),
                )
                for job in chosen
            ]
            rows: list[Row] = [(RUNNING, token, epoch, _encode(listing), job.job_id) for job, token, listing in leases]
            await self._metadata.plan(
                lambda tx: tx.executemany(
                    "UPDATE jobs SET state = ?, token = ?, write_epoch = ?, listing = ? WHERE job_id = ?", rows
                )
            )
            for job, token, listing in leases:
                job.token, job.write_epoch, job.listing = token, epoch, listing
                job.taken_s, job.deadline_s = now_s, now_s + self._lease_s
            lease_ms = int(self._lease_s * 1000)
            return TakenJobs([TakenJob(job.job_id, job.token, epoch, lease_ms, job.task) for job in chosen])

    def _chosen(self, request: TakeJobs) -> list[OpenJob]:
        """Choose free jobs for a round, within its limits."""
        free = [job for job in self.open.values() if not job.token and job.task.kind in request.kinds]
        # Scans are short, and find more work: they must not wait for a hundred replays.
        free.sort(key=lambda job: job.task.kind != SCAN)
        chosen: list[OpenJob] = []
        size_bytes = extent_count = 0
        for job in free:
            size_bytes += job.listing.bytes_in
            extent_count += job.listing.extents_in
            is_over = size_bytes > request.bytes_max or extent_count > EXTENTS_PER_ROUND_MAX
            if len(chosen) >= max(1, min(request.jobs_max, JOBS_PER_ROUND_MAX)) or (chosen and is_over):
                break
            chosen.append(job)
        return chosen

    def heartbeat(self, request: HeartbeatJobs) -> JobHeartbeats:
        now_s = self._clock.monotonic_s()
        lost: list[int] = []
        for lease in request.leases:
            job = self.leased(lease.job_id, lease.token)
            if job is None or now_s - job.taken_s > LEASE_LIFE_S_MAX:
                lost.append(lease.job_id)
                continue
            job.deadline_s = now_s + self._lease_s
            if lease.progress is not None:
                job.listing = _replace(job.listing, progress=lease.progress)
        return JobHeartbeats(lost)

    def leased(self, job_id: int, token: bytes) -> OpenJob | None:
        """Return the job if the token is that of its current, unexpired lease."""
        job = self.open.get(job_id)
        if job is None or not job.token or job.token != token or job.deadline_s <= self._clock.monotonic_s():
            return None
        return job

    # ── for people ────────────────────────────────────────────────────────────────────────────────────────────────

    def list(self, request: ListJobs) -> JobListings:
        listings = [job.listing for job in self.open.values()] + self._finished[::-1]
        return JobListings(
            [
                each
                for each in listings
                if (not request.kinds or each.kind in request.kinds)
                and (not request.states or each.state in request.states)
            ]
        )

    def put(self, job: OpenJob) -> None:
        self.open[job.job_id] = job
        self._partitions.update({partition.partition_id: job.job_id for partition in job.task.partitions})

    def pause_planning(self, job: OpenJob) -> None:
        """Plan nothing for the partitions of a failed job, for a while."""
        paused_until_s = self._clock.monotonic_s() + PLANNING_PAUSE_S
        self._paused.update({partition.partition_id: paused_until_s for partition in job.task.partitions})

    def offer(self) -> None:
        """Wake the workers that wait for a job."""
        self._waiters.wake_all()

    def close(self, job: OpenJob, listing: JobListing) -> None:
        del self.open[job.job_id]
        for partition in job.task.partitions:
            del self._partitions[partition.partition_id]
        self._remember(listing)

    def _remember(self, listing: JobListing) -> None:
        self._finished.append(listing)
        del self._finished[:-FINISHED_KEPT]


def prune(tx: Transaction) -> None:
    """Delete all but the newest finished jobs.

    Those are kept for people, and for answers that got lost.
    """
    tx.execute(
        "DELETE FROM jobs WHERE state IN (?, ?) AND job_id NOT IN"
        " (SELECT job_id FROM jobs WHERE state IN (?, ?) ORDER BY job_id DESC LIMIT ?)",
        (DONE, FAILED, DONE, FAILED, FINISHED_KEPT),
    )
