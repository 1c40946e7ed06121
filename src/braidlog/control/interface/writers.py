"""Writers that are not agents: jobs that upload objects by themselves.

A job has all its objects sequenced at once.
"""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.log import CommitObject, ObjectVerdict


class LeaseWriteEpoch(Message, frozen=True):
    """Begin or continue to write.

    Objects named under the lease can be committed as long as it is renewed.
    """

    lease_id: str
    """The lease: one for everything that is written together, by however many processes."""


class WriteLease(Message, frozen=True):
    write_epoch: int
    """The write epoch for the keys of new objects."""
    expires_in_ms: int
    """How long the lease lasts. Renew it well before."""
    store_url: str
    """The URL of the object store, without credentials."""


class CommitObjects(Message, frozen=True):
    """Sequence all of these objects in one transaction, or none.

    Idempotent by writer and batch. The batch numbers of a writer only grow. A batch that is committed again gets the
    answer of the first time, whichever objects come with it: those are left to the sweeper.
    """

    writer_id: str
    batch_id: int
    objects: list[CommitObject]
    lease_id: str = ""
    """The lease to give back with the commit; empty: none."""


class CommittedObjects(Message, frozen=True):
    """The answer.

    An `error_code` other than 0 (Kafka's) refuses all objects: nothing was written.
    """

    error_code: int
    verdicts: list[ObjectVerdict]
    """The verdict on each object. For a repeated batch: on the objects that were sequenced the first time."""
    repeated: bool = False
    error_message: str = ""


class WriterPlane(Protocol):
    async def lease_write_epoch(self, request: LeaseWriteEpoch, *, timeout_s: float | None = None) -> WriteLease: ...
    async def commit_objects(self, request: CommitObjects, *, timeout_s: float | None = None) -> CommittedObjects: ...
