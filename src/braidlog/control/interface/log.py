"""The sequencer and the extent index: objects in, extents out."""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.feed import IndexedExtent, PartitionBounds, StoredObject


class CommitObject(Message, frozen=True):
    """Sequence an uploaded object.

    Idempotent by the nonce in its footer; for journal files also by their slot.
    """

    key: str
    size: int
    footer: bytes
    """The footer's msgpack bytes as they are in the object, without the trailer."""
    replayed: bool = False
    """Whether a replay has found it in a journal. Live writes go first."""


class BatchVerdict(Message, frozen=True, gc=False):
    """The verdict on a batch: appended, a duplicate, or refused.

    An appended batch is at `base_offset`; a duplicate repeats one that is already there.

    A journaled batch may also be held until the batches before it arrive or are given up. The offset of a journaled
    duplicate may be -1: unknown.
    """

    error_code: int
    base_offset: int
    duplicate: bool = False
    held: bool = False


class ExtentVerdict(Message, frozen=True):
    log_start_offset: int
    verdicts: list[BatchVerdict]


class ObjectVerdict(Message, frozen=True):
    """The verdicts on an object, by extent, in the footer's order.

    An `error_code` other than 0 refuses the whole object (a stale epoch). A journal file is never refused. If it was
    sequenced so long ago that its verdicts are forgotten, it has no extents here.
    """

    error_code: int
    extents: list[ExtentVerdict]
    error_message: str = ""


class FindExtents(Message, frozen=True):
    """Ask for the extents from `offset` on, at least one, up to about `bytes_max`."""

    partition_id: int
    offset: int
    bytes_max: int
    extents_max: int = 1000


class FoundExtents(Message, frozen=True):
    bounds: PartitionBounds
    """The bounds at the same moment as the extents."""
    extents: list[IndexedExtent]
    objects: list[StoredObject]
    known: bool = True
    """Whether the partition exists."""


class FindTimestamp(Message, frozen=True):
    """Ask for the first extent that may hold this timestamp or a later one.

    With -1, ask for the extent with the highest timestamp.
    """

    partition_id: int
    timestamp_ms: int
    from_offset: int = 0
    """Skip extents that end at or below it."""


class DeleteRecords(Message, frozen=True):
    partition_id: int
    before_offset: int
    """Delete records below this offset; -1: all below the high watermark."""


class DeletedRecords(Message, frozen=True):
    error_code: int
    log_start_offset: int


class BoundsRequest(Message, frozen=True):
    """Ask for the current bounds, not those of the feed.

    ListOffsets and external consistency need them.
    """

    partition_ids: list[int]


class BoundsAnswer(Message, frozen=True):
    """The bounds in the order of the request.

    Partitions that do not exist are left out.
    """

    bounds: list[PartitionBounds]


class LogPlane(Protocol):
    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict: ...
    async def find_extents(self, request: FindExtents, *, timeout_s: float | None = None) -> FoundExtents: ...
    async def find_timestamp(self, request: FindTimestamp, *, timeout_s: float | None = None) -> FoundExtents: ...
    async def current_bounds(self, request: BoundsRequest, *, timeout_s: float | None = None) -> BoundsAnswer: ...
    async def delete_records(self, request: DeleteRecords, *, timeout_s: float | None = None) -> DeletedRecords: ...
