"""What clients did and saw, in the order in which they were told. Recorded from simulated or real runs alike.

An operation ended `ok`, it `failed` (it definitely did not happen), or nobody knows: `unknown` may have happened, and
may still happen later. The checker's whole power lies in keeping these apart.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "unknown"]


class Operation(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """Base of all operations. Times are seconds since the run began."""

    client: str
    invoke_s: float
    complete_s: float


class Send(Operation, tag="send", frozen=True, kw_only=True):
    """One record that a producer sent, and what it was told in the end."""

    topic: str
    partition: int
    value: str
    """Unique within the run."""
    order: int
    """Its place among the records that this client sent to this partition."""
    producer: str
    """The producer id it was sent under; empty without idempotence. Order is promised within one."""
    retried: bool
    """Sent more than once: without idempotence it may then be there more than once."""
    outcome: Outcome
    offset: int = -1
    """-1: not told."""
    error: str = ""
    lazy: bool | msgspec.UnsetType = msgspec.UNSET
    """Acknowledged before it had an offset."""
    connection: str | msgspec.UnsetType = msgspec.UNSET
    """The one that its answer came on, where that matters: of topics that are journaled."""


class Poll(Operation, tag="poll", frozen=True, kw_only=True):
    """What one fetch returned of one partition."""

    topic: str
    partition: int
    fetch_offset: int
    records: list[tuple[int, str]]
    log_start_offset: int
    is_reset: bool = False
    """The consumer moved here on purpose (a start, a committed offset, a log start that moved): not from where its last
    poll ended."""


class ListOffset(Operation, tag="list-offset", frozen=True, kw_only=True):
    topic: str
    partition: int
    which: Literal["earliest", "latest"]
    offset: int


class CommitOffset(Operation, tag="commit-offset", frozen=True, kw_only=True):
    group: str
    topic: str
    partition: int
    offset: int
    outcome: Outcome


class FetchOffset(Operation, tag="fetch-offset", frozen=True, kw_only=True):
    group: str
    topic: str
    partition: int
    offset: int
    """-1: the group has none."""


class Assigned(Operation, tag="assigned", frozen=True, kw_only=True):
    """A member of a group got partitions in a generation."""

    group: str
    generation: int
    partitions: list[tuple[str, int]]


class Owned(Operation, tag="owned", frozen=True, kw_only=True):
    """From `invoke_s` to `complete_s` a member of a group had good reason to take a partition for its own: it was told
    so, has not given it up, and was heard of within its session."""

    group: str
    topic: str
    partition: int


ALL_IS_WELL = "all is well again"
"""The event after which nothing is done to the system any more."""


class Event(Operation, tag="event", frozen=True, kw_only=True):
    """Something that was done to the system: a kill, a partition, a storm. For the story."""

    what: str


class Compacted(Operation, tag="compacted", frozen=True, kw_only=True):
    """A topic of which only the newest record per key must stay. Values there are `key=value`, or `key=!id`, which
    deletes the key, and may itself be gone after a while."""

    topic: str
    delete_retention_s: float


class Journaled(Operation, tag="journaled", frozen=True, kw_only=True):
    """A topic whose records may be acknowledged before they are sequenced, so that only idempotent producers are
    promised their order."""

    topic: str
    keeps_order: bool = True
    """False: so little may wait for what comes before it that producers find their records out of order, too."""


class FinalRead(Operation, tag="final-read", frozen=True, kw_only=True, omit_defaults=True):
    """A partition's whole log, read at the end, when everything was well again."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    records: list[tuple[int, str]]
    markers: list[int] = []
    """Offsets that the ends of transactions take."""


class Transaction(Operation, tag="transaction", frozen=True, kw_only=True):
    """A transaction from its first record on, and what its producer knows of its end.

    It is `aborted` also where nobody ever asked to commit it, and `unknown` where that was asked and not answered.
    """

    number: int
    """Among those of this client."""
    values: list[tuple[str, int, str]]
    """Topic, partition and value of every record that was sent in it, acknowledged or not."""
    outcome: Literal["committed", "aborted", "unknown"]
    commit_invoked_s: float | None
    """When its commit was first asked for."""
    group: str = ""
    offset: int = -1
    """What it commits for that group, where it does. Of all transactions of the group, later ones have higher ones."""


class CommittedPoll(Operation, tag="committed-poll", frozen=True, kw_only=True):
    """What one fetch of committed data returned of one partition, after the client has left out what was aborted."""

    topic: str
    partition: int
    fetch_offset: int
    next_offset: int
    records: list[tuple[int, str]]


class FinalCommitted(Operation, tag="final-committed", frozen=True, kw_only=True):
    """All committed data of a partition, read at the end, when everything was well again."""

    topic: str
    partition: int
    high_watermark: int
    stable_offset: int
    records: list[tuple[int, str]]


AnyOperation = (
    Send
    | Poll
    | ListOffset
    | CommitOffset
    | FetchOffset
    | Assigned
    | Owned
    | Event
    | Compacted
    | Journaled
    | FinalRead
    | Transaction
    | CommittedPoll
    | FinalCommitted
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyOperation)


class History:
    """Operations in the order of their completion."""

    def __init__(self, operations: Iterable[AnyOperation] = ()) -> None:
        self.operations: list[AnyOperation] = list(operations)

    def record(self, operation: AnyOperation) -> None:
        self.operations.append(operation)

    def to_jsonl(self) -> bytes:
        """The same run gives the same bytes."""
        return _encoder.encode_lines(self.operations)

    @classmethod
    def from_jsonl(cls, data: bytes) -> "History":
        return cls(_decoder.decode_lines(data))

    def digest(self) -> str:
        return hashlib.sha256(self.to_jsonl()).hexdigest()

    def __len__(self) -> int:
        return len(self.operations)
