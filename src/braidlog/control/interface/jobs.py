"""Jobs that rewrite what is stored: planned by the control plane, leased to workers, finished by an atomic swap."""

from typing import Protocol

import msgspec

from braidlog.control.interface.agents import Done
from braidlog.control.interface.base import Message
from braidlog.control.interface.feed import AbortedRange, IndexedExtent, StoredObject
from braidlog.control.interface.journals import ReplayDone, ReplayTask, ScanDone, ScanTask

MERGE = "merge"
"""Many small extents become few large ones; their bytes stay as they are."""
COMPACT = "compact"
"""Of each key only the newest record stays."""
EXPIRE = "expire"
"""Retention and sweeping. The control plane does it by itself: it moves no data."""

SCAN = "scan"
"""Which journals are there. Agents do it, as they do replays."""
REPLAY = "replay"
"""What is not sequenced of one journal is."""

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


class JobPartition(Message, frozen=True):
    """What a job is about, of one partition: a run of neighbouring extents, in the order of their offsets."""

    partition_id: int
    topic_id: bytes
    index: int
    generation: int
    """Of the partition's index when the job was planned. A swap that meets another one changes nothing."""
    extents: list[IndexedExtent]


class CompactionTerms(Message, frozen=True):
    """What the control plane has decided about a compaction. Offsets are exclusive bounds."""

    clean_end_offset: int
    """All below was compacted before: no key is there twice."""
    log_start_offset: int
    """What lies below is deleted, and needs not be kept."""
    tombstones_end_offset: int
    """Tombstones at or above it stay, whatever their age."""
    delete_retention_ms: int
    now_ms: int
    aborted: list[AbortedRange] = msgspec.field(default_factory=list)
    """Transactions whose records are not to be seen, and can go at once."""


class JobTask(Message, frozen=True):
    """Everything a worker must know to do the job; the objects lie in the store."""

    kind: str
    partitions: list[JobPartition]
    objects: list[StoredObject]
    target_bytes: int
    """How large an object should become."""
    compaction: CompactionTerms | None = None
    scan: ScanTask | None = None
    replay: ReplayTask | None = None


class TakeJob(Message, frozen=True):
    worker: str
    """A name for people; the lease is what counts."""
    kinds: list[str]
    wait_ms: int = 0
    """How long to wait for a job where there is none."""


class TakenJob(Message, frozen=True):
    """`job_id` 0: there is nothing to do now."""

    job_id: int
    token: bytes
    """Proves the lease. Whoever takes the job over gets another one."""
    write_epoch: int
    """For the names of objects; the lease keeps it from being swept."""
    lease_ms: int
    """The lease ends so long after the last heartbeat."""
    task: JobTask | None = None


class HeartbeatJob(Message, frozen=True):
    job_id: int
    token: bytes


class JobHeartbeat(Message, frozen=True):
    held: bool
    """False: the job is somebody else's by now, or is no more. Give it up."""


class NewObject(Message, frozen=True):
    """An object that a worker has uploaded. Each of its extents takes the place of older ones."""

    key: str
    size: int
    footer: bytes


class NewExtent(Message, frozen=True, gc=False):
    """Offsets [base_offset, end_offset), gaps included, are in the extent of this partition in that object."""

    base_offset: int
    end_offset: int
    object_index: int
    """In the request's list of objects."""


class Replacement(Message, frozen=True):
    """Whole extents of the job, all that lie in [base_offset, end_offset), give way to these, which cover the same."""

    partition_id: int
    base_offset: int
    end_offset: int
    extents: list[NewExtent]


class CompleteJob(Message, frozen=True):
    """All replacements happen at once, or none. Idempotent by job and token."""

    job_id: int
    token: bytes
    objects: list[NewObject]
    replacements: list[Replacement]
    due_ms: int = -1
    """When the partition should be compacted again, however little of it is dirty then: tombstones that stayed may go,
    or more keys remain than there was room for. -1: never."""
    clean_end_offset: int = -1
    """How far the partition is compacted now; -1: to the end of the job's extents."""
    scan: ScanDone | None = None
    replay: ReplayDone | None = None


class JobVerdict(Message, frozen=True):
    """Not accepted: nothing was changed, and what was uploaded is left to the sweeper."""

    accepted: bool
    reason: str = ""
    """lease-lost, index-changed, stale-epoch, or invalid: and what about it."""


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


class JobListings(Message, frozen=True):
    """Open jobs in the order in which they are given out, then finished ones, the newest first."""

    jobs: list[JobListing]


class RequestCompaction(Message, frozen=True):
    """Compact a topic now, however little of it is dirty."""

    topic: str


class CompactionRequested(Message, frozen=True):
    """`error_code` is Kafka's: 3 for an unknown topic, 44 where its cleanup policy does not compact."""

    error_code: int
    job_ids: list[int]
    """The jobs that will do it, those that were planned already included."""
    error_message: str = ""
    busy_partitions: int = 0
    """Of which something else must be done first: they follow as soon as it is, or when they are asked for again."""


class JobPlane(Protocol):
    async def take_job(self, request: TakeJob, *, timeout_s: float | None = None) -> TakenJob: ...
    async def heartbeat_job(self, request: HeartbeatJob, *, timeout_s: float | None = None) -> JobHeartbeat: ...
    async def complete_job(self, request: CompleteJob, *, timeout_s: float | None = None) -> JobVerdict: ...
    async def fail_job(self, request: FailJob, *, timeout_s: float | None = None) -> Done: ...
    async def list_jobs(self, request: ListJobs, *, timeout_s: float | None = None) -> JobListings: ...
    async def request_compaction(
        self, request: RequestCompaction, *, timeout_s: float | None = None
    ) -> CompactionRequested: ...
