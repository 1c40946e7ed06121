"""Decides which batches, records and tombstones of a compacted partition may go.

These are the rules of Kafka's cleaner, for one pass over the offsets up to an end:

- Only the latest record of each key stays. A record without a key goes, because no later record could ever replace it.
- A tombstone that is the latest of its key stays until its batch's *delete horizon*. The first pass that meets it sets
  the horizon to `delete.retention.ms` from then. So a reader that is away for less than that sees the deletion.
- Markers of transactions stay. Records of aborted transactions go at once, and are ignored.
- An empty batch stays if it has the last sequence number, or the only marker, of a producer that is still active.
- Offsets never change: a batch keeps its base offset and its last offset delta, and has gaps where records were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from braidlog.records.aborted import AbortedTransaction, AbortedTransactions
from braidlog.records.batch import CONTROL_BIT, DELETE_HORIZON_BIT, TRANSACTIONAL_BIT

OFFSET_MAX = (1 << 63) - 1


class LastBatch(NamedTuple):
    """The state to keep of an active producer.

    It is where its last data ends, or its epoch if it has none.
    """

    last_offset: int | None
    producer_epoch: int


class Treatment(IntEnum):
    """How the records of a batch are treated."""

    BY_KEY = 0
    KEEP = 1
    DISCARD = 2


_BY_KEY, _KEEP, _DISCARD = Treatment


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of one pass.

    The control plane sets them, so that a pass can be repeated exactly.
    """

    now_ms: int
    delete_retention_ms: int
    log_start_offset: int = 0
    """Records below it are already deleted."""
    tombstones_end_offset: int = OFFSET_MAX
    """Tombstones at or above it stay, however old: no pass has compacted the partition that far yet."""
    aborted: Sequence[AbortedTransaction] = ()
    last_batches: Mapping[int, LastBatch] = field(default_factory=dict)
    """The last batch of each active producer, by producer id."""

    @property
    def delete_horizon_ms(self) -> int:
        """The delete horizon of tombstones that this pass is the first to meet."""
        return self.now_ms + self.delete_retention_ms


class Judge:
    """Applies the rules to batches, by their headers."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._aborted = AbortedTransactions(rules.aborted)

    def treatment(self, attributes: int, producer_id: int, base_offset: int, end_offset: int) -> Treatment:
        if attributes & CONTROL_BIT:
            return _KEEP
        if end_offset <= self._rules.log_start_offset:
            return _DISCARD
        if attributes & TRANSACTIONAL_BIT and self._aborted.holds(producer_id, base_offset):
            return _DISCARD
        return _BY_KEY

    def tombstones_may_go(self, attributes: int, timestamp_ms_base: int, end_offset: int) -> bool:
        """Return whether the delete horizon has passed, so that tombstones may go.

        An earlier pass must have compacted the partition that far.

        A bit of the attributes says whether the base timestamp is a delete horizon.
        """
        return (
            attributes & DELETE_HORIZON_BIT != 0
            and timestamp_ms_base <= self._rules.now_ms
            and end_offset <= self._rules.tombstones_end_offset
        )

    def stays_empty(self, attributes: int, producer_id: int, producer_epoch: int, last_offset: int) -> bool:
        """Return whether an empty batch must stay, for its producer's state.

        The state is in its header.
        """
        last = self._rules.last_batches.get(producer_id) if producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset is not None:
            return last_offset == last.last_offset
        return attributes & CONTROL_BIT != 0 and producer_epoch == last.producer_epoch
