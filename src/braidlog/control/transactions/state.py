"""A transactional id and its transaction. Pure: nothing here is written or timed."""

from dataclasses import dataclass, field
from enum import StrEnum

from kio.schema.errors import ErrorCode

from braidlog.control.groups.store import OffsetKey, StoredOffset
from braidlog.control.interface import TransactionOwner
from braidlog.control.log.producers import PRODUCER_EPOCH_MAX

EPOCH_LAST = PRODUCER_EPOCH_MAX - 1
"""The last epoch that a producer is given. The one after it is reserved for the marker that fences it."""


class TransactionState(StrEnum):
    """The states, by Kafka's names.

    There is no Prepare state: decision and markers are written together.
    """

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


@dataclass(slots=True, eq=False)
class Transactional:
    """One transactional id.

    Its transaction belongs to `producer_id` in `epoch`, and to nobody else.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    last_epoch: int
    """The epoch before the last bump that its producer asked for; -1: none."""
    previous_producer_id: int
    timeout_ms: int
    state: TransactionState
    started_ms: int
    updated_ms: int
    partitions: dict[int, int] = field(default_factory=dict)
    """The first offset of the transaction in each partition; -1: nothing is written there yet."""
    offsets: dict[str, dict[OffsetKey, StoredOffset]] = field(default_factory=dict)
    """The offsets that it will commit, by group."""

    @property
    def is_ongoing(self) -> bool:
        return self.state is TransactionState.ONGOING

    @property
    def deadline_ms(self) -> int:
        return self.started_ms + self.timeout_ms

    def begin(self, now_ms: int) -> None:
        if not self.is_ongoing:
            self.state = TransactionState.ONGOING
            self.started_ms = now_ms
            self.updated_ms = now_ms

    def check_owner(self, owner: TransactionOwner) -> int:
        """Return 0 if this producer may continue the transaction, or else an error code."""
        if owner.producer_id != self.producer_id:
            return int(ErrorCode.invalid_producer_id_mapping)
        return 0 if owner.producer_epoch == self.epoch else int(ErrorCode.producer_fenced)

    def is_predecessor(self, producer_id: int, epoch: int) -> bool:
        """Whether this identity asked for the current one, which is unused.

        Then the answer was lost, and the request is a retry.
        """
        if self.is_ongoing or epoch != self.last_epoch or epoch < 0:
            return False
        return producer_id == self.producer_id or (producer_id == self.previous_producer_id and epoch >= EPOCH_LAST)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a transaction: its markers' epoch, and the identity that follows."""

    transactional: Transactional
    commit: bool
    marker_epoch: int
    producer_id: int
    epoch: int
    last_epoch: int
    timeout_ms: int
    state: TransactionState

    @property
    def previous_producer_id(self) -> int:
        known = self.transactional
        return known.previous_producer_id if self.producer_id == known.producer_id else known.producer_id


def state_after(commit: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
