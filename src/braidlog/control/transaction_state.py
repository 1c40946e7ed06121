"""A transactional id and its transaction: what it may do next. Pure: nothing here is written or timed."""

from dataclasses import dataclass, field
from enum import StrEnum

from braidlog.control.error_codes import ErrorCode
from braidlog.control.group_store import OffsetKey, StoredOffset
from braidlog.control.interface import TransactionOwner
from braidlog.control.producers import PRODUCER_EPOCH_MAX

EPOCH_LAST = PRODUCER_EPOCH_MAX - 1
"""The last epoch that a producer is given. The one after it is left for the marker that fences it off."""


class TransactionState(StrEnum):
    """Kafka's names. There is no Prepare: decision and markers are one."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


@dataclass(slots=True, eq=False)
class Transactional:
    """One transactional id. What is ongoing belongs to `producer_id` in `epoch`, and to nobody else."""

    transactional_id: str
    producer_id: int
    epoch: int
    last_epoch: int
    """Before the last bump that its producer asked for; -1: none."""
    previous_producer_id: int
    timeout_ms: int
    state: TransactionState
    started_ms: int
    updated_ms: int
    partitions: dict[int, int] = field(default_factory=dict)
    """By partition id, where the transaction begins there; -1: it has written nothing there yet."""
    offsets: dict[str, dict[OffsetKey, StoredOffset]] = field(default_factory=dict)
    """By group, what will be committed with it."""

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
        """0 where this producer may go on with the transaction."""
        if owner.producer_id != self.producer_id:
            return int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return 0 if owner.producer_epoch == self.epoch else int(ErrorCode.PRODUCER_FENCED)

    def is_predecessor(self, producer_id: int, epoch: int) -> bool:
        """Whether who had this identity asked for the current one, and has not used it: the answer was lost."""
        if self.is_ongoing or epoch != self.last_epoch or epoch < 0:
            return False
        return producer_id == self.producer_id or (producer_id == self.previous_producer_id and epoch >= EPOCH_LAST)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a transaction ends: the epoch that its markers carry, and the identity that follows."""

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
