"""The changes to transactions.

They are planned in memory, written in one transaction, and then applied or discarded.
"""

from collections.abc import Mapping

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.control.groups.store import GroupWrite
from braidlog.control.interface import AbortedRange, IndexedExtent, ObjectSequenced, StoredObject, TransactionsEnded
from braidlog.control.log.recent import RecentExtents, Settling
from braidlog.control.metadata.store import Row, Transaction
from braidlog.control.partitions import PartitionState
from braidlog.control.transactions.state import Ending, Transactional
from braidlog.control.transactions.store import (
    begin_rows,
    forget_contents,
    save_aborted,
    save_partitions,
    save_rows,
)
from braidlog.objects.layout import ADDS_PARTITION_BIT, BatchEntry
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.records.marker import Marker, MarkerType, encode_marker

_INVALID_TXN_STATE = int(ErrorCode.invalid_txn_state)
_INVALID_MAPPING = int(ErrorCode.invalid_producer_id_mapping)
_INVALID_EPOCH = int(ErrorCode.invalid_producer_epoch)

COORDINATOR_EPOCH = 0
"""The coordinator epoch in markers. Kafka uses it to fence coordinators; the metadata store fences ours."""

_encode = msgspec.msgpack.Encoder().encode


class AppendPlan:
    """The changes that a group of objects makes to transactions.

    They are the transactions' first batches in partitions.
    """

    def __init__(self, by_producer: Mapping[int, Transactional], now_ms: int) -> None:
        self._by_producer = by_producer
        self._now_ms = now_ms
        self.firsts: dict[tuple[int, int], tuple[Transactional, PartitionState, int]] = {}
        """The first batches that this plan writes of transactions, with their offsets, by producer and partition."""
        self._opened: list[tuple[int, int]] = []
        self._opened_partitions: set[int] = set()

    def admit(self, batch: BatchEntry, state: PartitionState) -> int:
        """Return 0, or the error code that refuses the batch.

        Call it for batches that may concern a transaction.
        """
        producer_id, partition_id = batch.producer_id, state.partition_id
        if not batch.attributes & TRANSACTIONAL_BIT:
            is_open = producer_id in state.open_transactions or (producer_id, partition_id) in self.firsts
            return _INVALID_TXN_STATE if is_open else 0
        known = self._by_producer.get(producer_id)
        if known is None:
            return _INVALID_MAPPING
        if batch.producer_epoch != known.epoch:
            return _INVALID_EPOCH
        if partition_id in known.partitions or batch.attributes & ADDS_PARTITION_BIT:
            return 0
        # The transaction has ended, or does not include the partition: a batch must not reopen it.
        return 0 if (producer_id, partition_id) in self.firsts else _INVALID_TXN_STATE

    def append(self, batch: BatchEntry, state: PartitionState, offset: int) -> None:
        """Note an admitted batch of a transaction, and its offset."""
        known = self._by_producer[batch.producer_id]
        key = batch.producer_id, state.partition_id
        if key in self.firsts or known.partitions.get(state.partition_id, -1) >= 0:
            return
        self.firsts[key] = known, state, offset
        if not state.open_transactions and state.partition_id not in self._opened_partitions:
            self._opened_partitions.add(state.partition_id)
            self._opened.append((state.partition_id, offset))

    def take_opened(self) -> list[tuple[int, int]]:
        """Return the partitions that got their first open transaction since the last call."""
        opened, self._opened = self._opened, []
        return opened

    def write(self, tx: Transaction) -> None:
        if self.firsts:
            begun = {known.producer_id: known for known, _, _ in self.firsts.values() if not known.is_ongoing}
            begin_rows(tx, begun.values(), self._now_ms)
            save_partitions(tx, [(*key, offset) for key, (_, _, offset) in self.firsts.items()])

    def apply(self) -> list[Transactional]:
        """Apply the plan. Returns the transactions that have begun."""
        begun: list[Transactional] = []
        for known, state, offset in self.firsts.values():
            if not known.is_ongoing:
                known.begin(self._now_ms)
                begun.append(known)
            known.partitions[state.partition_id] = offset
            state.open_transactions[known.producer_id] = offset
        return begun


class EndPlan:
    """Transactions that end together: decisions, markers and offsets.

    Every partition written to gets a marker.
    """

    def __init__(self, partitions: Mapping[int, PartitionState], number: int, now_ms: int) -> None:
        self._partitions = partitions
        self._number = number
        self._now_ms = now_ms
        self._endings: list[Ending] = []
        self._next_offsets: dict[int, int] = {}
        self._open: dict[int, dict[int, int]] = {}
        self._extents: list[IndexedExtent] = []
        self._states: list[PartitionState] = []
        self._aborted: list[AbortedRange] = []
        self._aborted_rows: list[Row] = []
        self._offsets: list[GroupWrite] = []
        self._settling: Settling | None = None

    @property
    def extent_count(self) -> int:
        return len(self._extents)

    @property
    def is_empty(self) -> bool:
        return not self._endings

    def add(self, ending: Ending, offsets: GroupWrite | None) -> None:
        """Add the end of a transaction. `offsets` are those that it commits for groups."""
        self._endings.append(ending)
        if offsets is not None:
            self._offsets.append(offsets)
        known = ending.transactional
        kind = MarkerType.COMMIT if ending.commit else MarkerType.ABORT
        marker: bytes | None = None
        for partition_id, first_offset in known.partitions.items():
            state = self._partitions.get(partition_id)
            if state is None or first_offset < 0:
                continue  # its topic is deleted, or nothing was written there
            if marker is None:
                marker = encode_marker(
                    Marker(kind, 0, self._now_ms, known.producer_id, ending.marker_epoch, COORDINATOR_EPOCH)
                )
            self._add_marker(state, ending, first_offset, marker)

    def _add_marker(self, state: PartitionState, ending: Ending, first_offset: int, marker: bytes) -> None:
        partition_id, producer_id = state.partition_id, ending.transactional.producer_id
        offset = self._next_offsets.get(partition_id, state.next_offset)
        end_offset = self._next_offsets[partition_id] = offset + 1
        self._extents.append(
            IndexedExtent(
                partition_id,
                offset,
                end_offset,
                self._number,
                0,
                len(marker),
                self._now_ms,
                self._now_ms,
                marker,
            )
        )
        self._states.append(state)
        still_open = self._open.get(partition_id)
        if still_open is None:
            still_open = self._open[partition_id] = dict(state.open_transactions)
        still_open.pop(producer_id, None)
        if not ending.commit:
            self._aborted.append(AbortedRange(partition_id, producer_id, first_offset, offset))
            stable_offset = next(iter(still_open.values()), end_offset)
            self._aborted_rows.append((partition_id, offset, producer_id, first_offset, stable_offset))

    def prepare(self, settling: Settling) -> None:
        self._settling = settling

    def write(self, tx: Transaction) -> None:
        if not self._endings:
            return
        save_rows(
            tx,
            [
                (
                    ending.transactional.transactional_id,
                    ending.producer_id,
                    ending.epoch,
                    ending.last_epoch,
                    ending.previous_producer_id,
                    ending.timeout_ms,
                    str(ending.state),
                    -1,
                    self._now_ms,
                )
                for ending in self._endings
            ],
        )
        forget_contents(tx, [ending.transactional.producer_id for ending in self._endings])
        if self._extents:
            tx.execute(
                "INSERT INTO recent_objects (number, extents, producer_batches) VALUES (?, ?, ?)",
                (self._number, _encode(self._extents), None),
            )
        save_aborted(tx, self._aborted_rows)
        for offsets in self._offsets:
            for sql, rows in offsets.statements:
                tx.executemany(sql, rows)
        if self._settling is not None:
            self._settling.write(tx)

    def apply(self, recent: RecentExtents) -> list[TransactionsEnded]:
        """Apply the plan. Returns the events for the feed."""
        for ending in self._endings:
            known = ending.transactional
            known.previous_producer_id = ending.previous_producer_id
            known.producer_id, known.epoch, known.last_epoch = ending.producer_id, ending.epoch, ending.last_epoch
            known.timeout_ms, known.state = ending.timeout_ms, ending.state
            known.started_ms, known.updated_ms = -1, self._now_ms
            known.partitions, known.offsets = {}, {}
        if self._settling is not None:
            recent.settled(self._settling)
        for offsets in self._offsets:
            offsets.apply()
        if not self._extents:
            return []
        for extent, state in zip(self._extents, self._states, strict=True):
            state.next_offset = extent.end_offset
            state.size_bytes += extent.length
            state.open_transactions = self._open[state.partition_id]
            state.discard_plan()
        for aborted in self._aborted:
            self._partitions[aborted.partition_id].aborted_end_offset = aborted.marker_offset + 1
        recent.add(ObjectSequenced(StoredObject(self._number, "", 0), self._extents), self._states, [])
        unstable = [(partition_id, self._partitions[partition_id].first_unstable_offset) for partition_id in self._open]
        return [TransactionsEnded(self._number, self._extents, unstable, self._aborted)]
