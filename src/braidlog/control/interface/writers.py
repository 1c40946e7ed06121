"""Writers that are not agents: jobs that upload objects by themselves, and have all of them sequenced at once."""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.log import CommitObject, ObjectVerdict


class LeaseWriteEpoch(Message, frozen=True):
    """Begin to write, or go on: objects that are named under the lease can be committed as long as it is renewed."""

    lease_id: str
    """What is written together has one lease, however many processes write it."""


class WriteLease(Message, frozen=True):
    write_epoch: int
    """Objects that are named from now on carry this epoch."""
    expires_in_ms: int
    """Ask again well before."""
    store_url: str
    """Where the control plane keeps the objects, without credentials."""


class CommitObjects(Message, frozen=True):
    """Sequence all of these objects in one transaction, or none. Idempotent by writer and batch.

    Batch numbers of a writer only grow. A batch that is committed again gets the answer of the first time, whatever
    objects come with it: those are left to the sweeper.
    """

    writer_id: str
    batch_id: int
    objects: list[CommitObject]
    lease_id: str = ""
    """Given back with the commit."""


class CommittedObjects(Message, frozen=True):
    """An `error_code` other than 0 (Kafka's) refuses all objects: nothing was written."""

    error_code: int
    verdicts: list[ObjectVerdict]
    """By object. For a repeated batch: of the objects that were sequenced then."""
    repeated: bool = False
    error_message: str = ""


class WriterPlane(Protocol):
    async def lease_write_epoch(self, request: LeaseWriteEpoch, *, timeout_s: float | None = None) -> WriteLease: ...
    async def commit_objects(self, request: CommitObjects, *, timeout_s: float | None = None) -> CommittedObjects: ...
