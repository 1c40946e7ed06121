"""Records what clients did and saw, in the order of completion.

Histories come from simulated or from real runs. An operation ended `ok`, or it `failed` and definitely did not happen,
or its outcome is `unknown`: it may have happened, or may still happen later. The checker depends on this distinction.
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
    """One record that a producer sent, and the final answer."""

    topic: str
    partition: int
    value: str
    """Unique within the run."""
    order: int
    """Its number among the records that this client sent to this partition."""
    producer: str
    """Its producer id; empty without idempotence. Records of one producer id keep their order."""
    retried: bool
    """Sent more than once, so without idempotence it may be in the log more than once."""
    outcome: Outcome
    offset: int = -1
    """-1: unknown."""
    error: str = ""
    lazy: bool | msgspec.UnsetType = msgspec.UNSET
    """Acknowledged before it had an offset."""
    connection: str | msgspec.UnsetType = msgspec.UNSET
    """The connection of its answer; only for journaled topics, where it matters."""


class Poll(Operation, tag="poll", frozen=True, kw_only=True):
    """The result of one fetch, for one partition."""

    topic: str
    partition: int
    fetch_offset: int
    records: list[tuple[int, str]]
    log_start_offset: int
    is_reset: bool = False
    """The consumer moved here on purpose (a start, a committed offset, a log start that moved), so the poll need not
    continue where the last one ended."""


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
    """A member of a group was given partitions in a generation."""

    group: str
    generation: int
    partitions: list[tuple[str, int]]


class Owned(Operation, tag="owned", frozen=True, kw_only=True):
    """A time span in which a member of a group may believe that it owns a partition.

    The coordinator assigned it, the member has not given it up, and its session has not expired.
    """

    group: str
    topic: str
    partition: int


ALL_IS_WELL = "all is well again"
"""The event after which no more faults happen."""


class Event(Operation, tag="event", frozen=True, kw_only=True):
    """A fault: a kill, a partition, a storm. Only stories use it."""

    what: str


class Compacted(Operation, tag="compacted", frozen=True, kw_only=True):
    """A compacted topic: only the newest record of each key must stay.

    Its values are `key=value`, or `key=!id` for a tombstone, which may itself be removed after a while.
    """

    topic: str
    delete_retention_s: float


class Journaled(Operation, tag="journaled", frozen=True, kw_only=True):
    """A topic whose records may be acknowledged before they are sequenced.

    Only idempotent producers keep their order there.
    """

    topic: str
    keeps_order: bool = True
    """False: gaps are given up so soon that even idempotent producers may find their records out of order."""


class FinalRead(Operation, tag="final-read", frozen=True, kw_only=True, omit_defaults=True):
    """A partition's whole log, read at the end, after all faults."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    records: list[tuple[int, str]]
    markers: list[int] = []
    """Offsets of transaction markers."""


class Transaction(Operation, tag="transaction", frozen=True, kw_only=True):
    """A transaction, and what its producer knows of its end.

    It is also `aborted` if its producer never asked to commit it, and `unknown` if a commit was not answered.
    """

    number: int
    """Its number among the transactions of this client."""
    values: list[tuple[str, int, str]]
    """Topic, partition and value of every record that was sent in it, acknowledged or not."""
    outcome: Literal["committed", "aborted", "unknown"]
    commit_invoked_s: float | None
    """When the client first asked to commit it."""
    group: str = ""
    offset: int = -1
    """The offset that it commits for `group`; -1: none. Later transactions commit higher offsets."""


class CommittedPoll(Operation, tag="committed-poll", frozen=True, kw_only=True):
    """The result of one fetch of committed data, without aborted records."""

    topic: str
    partition: int
    fetch_offset: int
    next_offset: int
    records: list[tuple[int, str]]


class FinalCommitted(Operation, tag="final-committed", frozen=True, kw_only=True):
    """All committed data of a partition, read at the end, after all faults."""

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
        """Encode the history as JSON lines. The same run gives the same bytes."""
        return _encoder.encode_lines(self.operations)

    @classmethod
    def from_jsonl(cls, data: bytes) -> "History":
        return cls(_decoder.decode_lines(data))

    def digest(self) -> str:
        return hashlib.sha256(self.to_jsonl()).hexdigest()

    def __len__(self) -> int:
        return len(self.operations)
