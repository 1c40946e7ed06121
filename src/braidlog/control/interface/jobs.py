"""Jobs that rewrite stored data.

The control plane plans them, workers lease them, and an atomic swap finishes them.
"""

from typing import Protocol

import msgspec

from braidlog.control.interface.agents import Done
from braidlog.control.interface.base import Message
from braidlog.control.interface.feed import AbortedRange, IndexedExtent, StoredObject
from braidlog.control.interface.journals import ReplayDone, ReplayTask, ScanDone, ScanTask

MERGE = "merge"
"""Merge many small extents into few large ones. The bytes of batches stay as they are."""
COMPACT = "compact"
"""Keep only the newest record of each key."""
EXPIRE = "expire"
"""Retention and sweeping. The control plane does these by itself, because they move no data."""

SCAN = "scan"
"""Find the journals. Agents do it, as they do replays."""
REPLAY = "replay"
"""Sequence the unsequenced files of one journal sequence."""

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


class JobPartition(Message, frozen=True):
    """The part of a job in one partition: runs of neighbouring extents, in order."""

    partition_id: int
    topic_id: bytes
    index: int
    generation: int
    """The generation of the partition's index when the job was planned. A swap that meets another one changes
    nothing."""
    extents: list[IndexedExtent]
    run_starts: list[int] = msgspec.field(default_factory=list)
    """The offsets at which a run of extents begins that is merged by itself, if there are several."""


class CompactionTerms(Message, frozen=True):
    """The terms of a compaction, decided by the control plane.

    Offsets are exclusive bounds.
    """

    clean_end_offset: int
    """Everything below was compacted before: no key is there twice."""
    log_start_offset: int
    """Records below it are deleted, and need not be kept."""
    tombstones_end_offset: int
    """Tombstones at or above it stay, whatever their age."""
    delete_retention_ms: int
    now_ms: int
    aborted: list[AbortedRange] = msgspec.field(default_factory=list)
    """Aborted transactions: their records can go at once."""


class JobTask(Message, frozen=True):
    """Everything that a worker must know to do the job. The objects are in the store."""

    kind: str
    partitions: list[JobPartition]
    objects: list[StoredObject]
    target_bytes: int
    """The intended size of new objects."""
    compaction: CompactionTerms | None = None
    scan: ScanTask | None = None
    replay: ReplayTask | None = None


class TakeJobs(Message, frozen=True):
    """Take a round of jobs. The first one may be larger than `bytes_max`."""

    worker: str
    """A name for people; the lease is what counts."""
    kinds: list[str]
    wait_ms: int = 0
    """How long to wait if there is no job."""
    jobs_max: int = 1
    bytes_max: int = 0
    """Take no further job if the round's extents would have more bytes."""


class TakenJob(Message, frozen=True):
    """A leased job."""

    job_id: int
    token: bytes
    """Proves the lease. The next worker gets another token."""
    write_epoch: int
    """The write epoch for the keys of new objects. The lease keeps them from being swept."""
    lease_ms: int
    """How long the lease lasts after the last heartbeat."""
    task: JobTask


class TakenJobs(Message, frozen=True):
    """A round, or nothing. Each of its jobs has a lease of its own."""

    jobs: list[TakenJob]


class JobProgress(Message, frozen=True):
    """How far a job has come, for people."""

    stage: str = ""
    """Where its tasks run: `local`, or `spark` with the number of the stage."""
    task: int = -1
    """The number of its first task in the stage; -1: not known."""
    tasks: int = 0
    tasks_done: int = 0
    bytes_done: int = 0
    """Bytes of the extents that finished tasks have read."""


class JobLease(Message, frozen=True):
    job_id: int
    token: bytes
    progress: JobProgress | None = None


class HeartbeatJobs(Message, frozen=True):
    """Renew the leases of a round."""

    leases: list[JobLease]


class JobHeartbeats(Message, frozen=True):
    lost: list[int]
    """Jobs that belong to another worker, or are gone. Give them up."""


class NewObject(Message, frozen=True):
    """An object that a worker has uploaded. Each of its extents replaces older ones."""

    key: str
    size: int
    footer: bytes


class NewExtent(Message, frozen=True, gc=False):
    """An extent of an object that holds the offsets [base_offset, end_offset).

    Gaps are included.
    """

    base_offset: int
    end_offset: int
    object_index: int
    """The object's place in the request's list."""


class Replacement(Message, frozen=True):
    """Replace all extents of the job in [base_offset, end_offset) by these.

    The new extents cover the same offsets.
    """

    partition_id: int
    base_offset: int
    end_offset: int
    extents: list[NewExtent]


class CompleteJob(Message, frozen=True):
    """Finish a job. All replacements happen at once, or none.

    Idempotent by job and token.
    """

    job_id: int
    token: bytes
    objects: list[NewObject]
    replacements: list[Replacement]
    due_ms: int = -1
    """When to compact the partition again, however little of it is dirty: tombstones that stayed may go then, or there
    were more keys than memory. -1: never."""
    clean_end_offset: int = -1
    """The offset up to which the partition is compacted now; -1: the end of the job's extents."""
    scan: ScanDone | None = None
    replay: ReplayDone | None = None
    progress: JobProgress | None = None


class JobVerdict(Message, frozen=True):
    """The verdict on a result.

    If it is not accepted, nothing was changed, and the sweeper deletes the uploads.
    """

    accepted: bool
    reason: str = ""
    """lease-lost, index-changed, stale-epoch or invalid, with details."""


class FailJob(Message, frozen=True):
    job_id: int
    token: bytes
    error: str


class ListJobs(Message, frozen=True):
    """Empty lists match everything."""

    kinds: list[str] = msgspec.field(default_factory=list)
    states: list[str] = msgspec.field(default_factory=list)


class JobListing(Message, frozen=True):
    job_id: int
    kind: str
    state: str
    subject: str
    """The topics and partitions, for people."""
    bytes_in: int
    extents_in: int
    created_ms: int
    attempts: int = 0
    worker: str = ""
    started_ms: int = -1
    finished_ms: int = -1
    bytes_out: int = 0
    extents_out: int = 0
    detail: str = ""
    """What went wrong last, or what was done."""
    progress: JobProgress = JobProgress()


class JobListings(Message, frozen=True):
    """Open jobs in the order of handing out, then finished ones, the newest first."""

    jobs: list[JobListing]


class RequestCompaction(Message, frozen=True):
    """Compact a topic now, however little of it is dirty."""

    topic: str


class CompactionRequested(Message, frozen=True):
    """The answer to a request for compaction.

    `error_code` is Kafka's: 3: unknown topic; 44: its policy does not compact.
    """

    error_code: int
    job_ids: list[int]
    """The jobs that will do it, including those that were planned before."""
    error_message: str = ""
    busy_partitions: int = 0
    """How many partitions are busy with another job. They are compacted after it, or with the next request."""


class JobPlane(Protocol):
    async def take_jobs(self, request: TakeJobs, *, timeout_s: float | None = None) -> TakenJobs: ...
    async def heartbeat_jobs(self, request: HeartbeatJobs, *, timeout_s: float | None = None) -> JobHeartbeats: ...
    async def complete_job(self, request: CompleteJob, *, timeout_s: float | None = None) -> JobVerdict: ...
    async def fail_job(self, request: FailJob, *, timeout_s: float | None = None) -> Done: ...
    async def list_jobs(self, request: ListJobs, *, timeout_s: float | None = None) -> JobListings: ...
    async def request_compaction(
        self, request: RequestCompaction, *, timeout_s: float | None = None
    ) -> CompactionRequested: ...
