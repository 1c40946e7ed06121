"""The job board: which jobs are open, who holds each, and the one way in which a finished job changes the index."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from braidlog.control.catalog import Catalog
from braidlog.control.counters import NumberBlocks
from braidlog.control.epochs import WriteEpochs
from braidlog.control.feed import Feed
from braidlog.control.interface import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    BoundsChanged,
    CompleteJob,
    ExtentsReplaced,
    FailJob,
    FeedEvent,
    HeartbeatJob,
    JobHeartbeat,
    JobListing,
    JobListings,
    JobTask,
    JobVerdict,
    ListJobs,
    TakeJob,
    TakenJob,
)
from braidlog.control.metadata import MetadataStore, Row, Transaction
from braidlog.control.swap import (
    INDEX_CHANGED,
    LEASE_LOST,
    STALE_EPOCH,
    Swap,
    SwapRefused,
    check_completion,
    write_compaction,
    write_swap,
)
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy

OPEN_JOBS_MAX = 10_000
ATTEMPTS_MAX = 5
"""A job that so many workers could not finish is given up; what it was about will be planned anew."""
HELD_BACK_S = 300.0
"""How long nothing is planned for the partitions of a job that was given up."""
FINISHED_KEPT = 200
LEASE_LIFE_S_MAX = 24 * 3600.0
"""However alive its worker is: what it has uploaded keeps the sweeper from its work."""
TAKE_WAIT_MS_MAX = 30_000
TOKEN_BYTES = 16

_NOTHING = TakenJob(0, b"", 0, 0)
_log = structlog.get_logger(__name__)
_encode = msgspec.msgpack.Encoder().encode
_decode_task = msgspec.msgpack.Decoder(JobTask).decode
_decode_listing = msgspec.msgpack.Decoder(JobListing).decode
_replace = msgspec.structs.replace


class Finisher(Protocol):
    """What the end of a job changes, for kinds of jobs that rewrite no extents. Called by who holds the turn."""

    def finish(self, task: JobTask, request: CompleteJob) -> "Finish":
        """Raises `SwapRefused` for a result that is none."""
        ...


class Finish(Protocol):
    def write(self, tx: Transaction) -> None: ...
    async def apply(self) -> None:
        """It is durable, and the job is off the board."""
        ...


@dataclass(slots=True, eq=False)
class _OpenJob:
    task: JobTask
    listing: JobListing
    token: bytes = b""
    """Of the current lease; empty: nobody has it."""
    write_epoch: int = 0
    deadline_s: float = 0.0
    taken_s: float = 0.0

    @property
    def job_id(self) -> int:
        return self.listing.job_id


class JobBoard:
    """Jobs and leases are durable; deadlines live in memory, so a restarted control plane grants each lease once more.

    Whoever holds a lease proves it by its token. A job whose worker is lost goes to the next one under a new token, and
    the floor of write epochs stays below what a holder may still bring.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        turn: asyncio.Lock,
        catalog: Catalog,
        epochs: WriteEpochs,
        feed: Feed,
        clock: Clock,
        entropy: Entropy,
        lease_s: float,
    ) -> None:
        self._metadata = metadata
        self._turn = turn
        self._catalog = catalog
        self._epochs = epochs
        self._feed = feed
        self._clock = clock
        self._entropy = entropy
        self._lease_s = lease_s
        self._job_numbers = NumberBlocks(metadata, "job_id", 1_000)
        self._object_numbers = NumberBlocks(metadata, "object_number", 1_000)
        self._open: dict[int, _OpenJob] = {}
        """By id, in the order in which they are given out."""
        self._partitions: dict[int, int] = {}
        """Of open jobs, with the job's id."""
        self._held_back: dict[int, float] = {}
        """Partitions of jobs that failed, and until when nothing is planned for them."""
        self._finished: list[JobListing] = []
        """The newest last."""
        self._waiters: dict[asyncio.Future[None], None] = {}
        self.finishers: dict[str, Finisher] = {}
        """By kind of job."""

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT state, task, token, write_epoch, listing FROM jobs ORDER BY job_id")
        )
        now_s = self._clock.monotonic_s()
        for state, task, token, write_epoch, listing in rows:
            if state in (WAITING, RUNNING):
                job = _OpenJob(_decode_task(task), _decode_listing(listing))
                if state == RUNNING:
                    job.token, job.write_epoch = bytes(token), write_epoch
                    job.taken_s, job.deadline_s = now_s, now_s + self._lease_s
                self._put(job)
            else:
                self._finished.append(_decode_listing(listing))

    # ── what planners ask ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def busy_partitions(self) -> Mapping[int, int]:
        """Partitions that an open job is about, and which: each is in one job at the most."""
        return self._partitions

    @property
    def has_open(self) -> bool:
        """Whether there is anything to rewrite."""
        return any(job.task.kind not in self.finishers for job in self._open.values())

    def of_kind(self, kind: str, job_ids: Iterable[int]) -> list[int]:
        return [job_id for job_id in job_ids if self._open[job_id].task.kind == kind]

    def open_of_kind(self, kind: str) -> list[tuple[int, JobTask]]:
        return [(job_id, job.task) for job_id, job in self._open.items() if job.task.kind == kind]

    def is_open(self, job_id: int) -> bool:
        return job_id in self._open

    def may_plan(self, partition_id: int) -> bool:
        """Whether the partition is in no job, and no job about it has failed just now."""
        held_back_s = self._held_back.get(partition_id)
        if held_back_s is not None:
            if held_back_s > self._clock.monotonic_s():
                return False
            del self._held_back[partition_id]
        return partition_id not in self._partitions

    @property
    def room(self) -> int:
        return OPEN_JOBS_MAX - len(self._open)

    def lowest_epoch_held(self) -> int | None:
        """Objects of this write epoch and later ones may still be brought by holders of leases."""
        held = [job for job in self._open.values() if job.token and job.task.kind not in self.finishers]
        return min((job.write_epoch for job in held), default=None)

    async def add(self, planned: Iterable[tuple[JobTask, str]]) -> list[int]:
        """Put jobs on the board, each with its subject for people. Called by who holds the turn. Returns their ids.

        What is about a partition that is in another job by now is passed over.
        """
        tasks = [
            (task, subject)
            for task, subject in planned
            if all(partition.partition_id not in self._partitions for partition in task.partitions)
        ][: self.room]
        if not tasks:
            return []
        await self._job_numbers.reserve(len(tasks))
        now_ms = self._clock.wall_ms()
        jobs: list[_OpenJob] = []
        for task, subject in tasks:
            extents = [extent for partition in task.partitions for extent in partition.extents]
            size_bytes = sum(extent.length for extent in extents)
            listing = JobListing(
                self._job_numbers.take(), task.kind, WAITING, subject, size_bytes, len(extents), now_ms
            )
            jobs.append(_OpenJob(task, listing))
        rows: list[Row] = [(job.job_id, WAITING, _encode(job.task), 0, _encode(job.listing)) for job in jobs]
        await self._metadata.transact(
            lambda tx: tx.executemany(
                "INSERT INTO jobs (job_id, state, task, write_epoch, listing) VALUES (?, ?, ?, ?, ?)", rows
            )
        )
        for job in jobs:
            self._put(job)
        self._wake()
        return [job.job_id for job in jobs]

    async def note_done(self, kind: str, subject: str, extents_in: int, detail: str) -> None:
        """Write down what the control plane has done by itself, for whoever lists jobs."""
        async with self._turn:
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
                _prune(tx)

            await self._metadata.transact(write)
            self._remember(listing)

    # ── what workers ask ──────────────────────────────────────────────────────────────────────────────────────────

    async def take(self, request: TakeJob) -> TakenJob:
        taken = await self._take_now(request)
        wait_ms = min(request.wait_ms, TAKE_WAIT_MS_MAX)
        if taken.job_id or wait_ms <= 0:
            return taken
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await waiter
        except TimeoutError:
            return taken
        finally:
            self._waiters.pop(waiter, None)
        return await self._take_now(request)

    async def _take_now(self, request: TakeJob) -> TakenJob:
        async with self._turn:
            job = next((job for job in self._open.values() if not job.token and job.task.kind in request.kinds), None)
            if job is None:
                return _NOTHING
            token = self._entropy.token(TOKEN_BYTES)
            epoch = self._epochs.current
            listing = _replace(
                job.listing,
                state=RUNNING,
                worker=request.worker,
                attempts=job.listing.attempts + 1,
                started_ms=self._clock.wall_ms(),
            )
            row = (RUNNING, token, epoch, _encode(listing), job.job_id)
            await self._metadata.transact(
                lambda tx: tx.execute(
                    "UPDATE jobs SET state = ?, token = ?, write_epoch = ?, listing = ? WHERE job_id = ?", row
                )
            )
            job.token, job.write_epoch, job.listing = token, epoch, listing
            job.taken_s = self._clock.monotonic_s()
            job.deadline_s = job.taken_s + self._lease_s
            return TakenJob(job.job_id, token, epoch, int(self._lease_s * 1000), job.task)

    def heartbeat(self, request: HeartbeatJob) -> JobHeartbeat:
        job = self._held(request.job_id, request.token)
        now_s = self._clock.monotonic_s()
        if job is None or now_s - job.taken_s > LEASE_LIFE_S_MAX:
            return JobHeartbeat(False)
        job.deadline_s = now_s + self._lease_s
        return JobHeartbeat(True)

    def _held(self, job_id: int, token: bytes) -> _OpenJob | None:
        """The job, if this token is its current lease's and the lease has not run out."""
        job = self._open.get(job_id)
        if job is None or not job.token or job.token != token or job.deadline_s <= self._clock.monotonic_s():
            return None
        return job

    async def complete(self, request: CompleteJob) -> JobVerdict:
        async with self._turn:
            job = self._held(request.job_id, request.token)
            if job is None:
                return await self._answer_late(request)
            try:
                finisher = self.finishers.get(job.task.kind)
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

    async def _finish(self, job: _OpenJob, finish: Finish) -> None:
        """Nothing of such a job is kept: there is one every few seconds, and its effect is seen elsewhere."""

        def write(tx: Transaction) -> None:
            finish.write(tx)
            tx.execute("DELETE FROM jobs WHERE job_id = ?", (job.job_id,))

        await self._metadata.transact(write)
        del self._open[job.job_id]
        await finish.apply()

    async def _swap(self, job: _OpenJob, swap: Swap, request: CompleteJob) -> None:
        await self._object_numbers.reserve(len(swap.objects))
        numbers = [self._object_numbers.take() for _ in swap.objects]
        now_ms = self._clock.wall_ms()
        listing = _replace(
            job.listing, state=DONE, finished_ms=now_ms, bytes_out=swap.bytes_out, extents_out=swap.extents_out
        )

        def write(tx: Transaction) -> None:
            write_swap(tx, swap, numbers, now_ms)
            write_compaction(tx, job.task, request)
            tx.execute(
                "UPDATE jobs SET state = ?, task = NULL, listing = ? WHERE job_id = ?",
                (DONE, _encode(listing), job.job_id),
            )
            _prune(tx)

        await self._metadata.transact(write)
        self._close(job, listing)
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
        """A completion that was made already, and whose answer got lost, is told so. Any other one came too late."""
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT state, token FROM jobs WHERE job_id = ?", (request.job_id,))
        )
        if rows and rows[0][0] == DONE and rows[0][1] is not None and bytes(rows[0][1]) == request.token:
            return JobVerdict(True)
        return JobVerdict(False, f"{LEASE_LOST}: job {request.job_id} is not held under this token any more")

    async def fail(self, request: FailJob) -> None:
        async with self._turn:
            job = self._held(request.job_id, request.token)
            if job is not None:
                await self._give_back(job, request.error)

    async def _give_back(self, job: _OpenJob, error: str, *, is_over: bool = False) -> None:
        """The job waits for another worker, or is given up: after too many, or where the index is not what it was."""
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
                _prune(tx)

        await self._metadata.transact(write)
        job.listing, job.token = listing, b""
        if is_over:
            self._close(job, listing)
            held_back_s = self._clock.monotonic_s() + HELD_BACK_S
            if not error.startswith((INDEX_CHANGED, STALE_EPOCH)):
                self._held_back.update({partition.partition_id: held_back_s for partition in job.task.partitions})
        else:
            self._wake()

    async def expire_once(self) -> int:
        """Take jobs back from workers that were not heard of for as long as a lease lasts. Returns how many."""
        async with self._turn:
            now_s = self._clock.monotonic_s()
            lost = [job for job in self._open.values() if job.token and job.deadline_s <= now_s]
            for job in lost:
                _log.warning("a worker was lost", job=job.job_id, kind=job.task.kind, worker=job.listing.worker)
                await self._give_back(job, f"worker {job.listing.worker} was lost")
            return len(lost)

    # ── for people ────────────────────────────────────────────────────────────────────────────────────────────────

    def list(self, request: ListJobs) -> JobListings:
        listings = [job.listing for job in self._open.values()] + self._finished[::-1]
        return JobListings(
            [
                each
                for each in listings
                if (not request.kinds or each.kind in request.kinds)
                and (not request.states or each.state in request.states)
            ]
        )

    def _put(self, job: _OpenJob) -> None:
        self._open[job.job_id] = job
        self._partitions.update({partition.partition_id: job.job_id for partition in job.task.partitions})

    def _close(self, job: _OpenJob, listing: JobListing) -> None:
        del self._open[job.job_id]
        for partition in job.task.partitions:
            del self._partitions[partition.partition_id]
        self._remember(listing)

    def _remember(self, listing: JobListing) -> None:
        self._finished.append(listing)
        del self._finished[:-FINISHED_KEPT]

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _prune(tx: Transaction) -> None:
    """Only the newest of what is over is kept, for people to look at and for answers that got lost."""
    tx.execute(
        "DELETE FROM jobs WHERE state IN (?, ?) AND job_id NOT IN"
        " (SELECT job_id FROM jobs WHERE state IN (?, ?) ORDER BY job_id DESC LIMIT ?)",
        (DONE, FAILED, DONE, FAILED, FINISHED_KEPT),
    )
