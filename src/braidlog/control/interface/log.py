"""The sequencer and the extent index: objects in, extents out."""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.feed import IndexedExtent, PartitionBounds, StoredObject


class CommitObject(Message, frozen=True):
    """Sequence an uploaded object. Idempotent by the nonce in its footer; of journals also by its place in them."""

    key: str
    size: int
    footer: bytes
    """The footer's msgpack bytes, as they stand in the object (no trailer)."""
    replayed: bool = False
    """A replay has found it in a journal: what agents write now goes first."""


class BatchVerdict(Message, frozen=True, gc=False):
    """What became of a batch: appended at `base_offset`, a duplicate of one already there, or refused.

    A journaled batch may also be held until what comes before it is there, or is given up. The offset of its duplicates
    may be -1.
    """

    error_code: int
    base_offset: int
    duplicate: bool = False
    held: bool = False


class ExtentVerdict(Message, frozen=True):
    log_start_offset: int
    verdicts: list[BatchVerdict]


class ObjectVerdict(Message, frozen=True):
    """By extent, in the footer's order. An `error_code` other than 0 refuses the object as a whole (a stale epoch).

    A journaled file is never refused. One that was sequenced so long ago that no more is known has no extents here.
    """

    error_code: int
    extents: list[ExtentVerdict]
    error_message: str = ""


class FindExtents(Message, frozen=True):
    """The extents that hold `offset` and what follows, at least one, up to about `bytes_max`."""

    partition_id: int
    offset: int
    bytes_max: int
    extents_max: int = 1000


class FoundExtents(Message, frozen=True):
    bounds: PartitionBounds
    """Of the same moment as the extents."""
    extents: list[IndexedExtent]
    objects: list[StoredObject]
    known: bool = True
    """False: there is no such partition (any more)."""


class FindTimestamp(Message, frozen=True):
    """The first extent that may hold a record with this timestamp or a later one; with -1, the one with the highest."""

    partition_id: int
    timestamp_ms: int
    from_offset: int = 0
    """Extents that end at or below it are passed over."""


class DeleteRecords(Message, frozen=True):
    partition_id: int
    before_offset: int
    """-1: the high watermark."""


class DeletedRecords(Message, frozen=True):
    error_code: int
    log_start_offset: int


class BoundsRequest(Message, frozen=True):
    """The bounds as they are now, not as the feed last told: what ListOffsets and external consistency need."""

    partition_ids: list[int]


class BoundsAnswer(Message, frozen=True):
    """In the order asked for; a partition that is gone is missing."""

    bounds: list[PartitionBounds]


class LogPlane(Protocol):
    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict: ...
    async def find_extents(self, request: FindExtents, *, timeout_s: float | None = None) -> FoundExtents: ...
    async def find_timestamp(self, request: FindTimestamp, *, timeout_s: float | None = None) -> FoundExtents: ...
    async def current_bounds(self, request: BoundsRequest, *, timeout_s: float | None = None) -> BoundsAnswer: ...
    async def delete_records(self, request: DeleteRecords, *, timeout_s: float | None = None) -> DeletedRecords: ...
