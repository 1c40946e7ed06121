"""The transaction coordinator: begins and ends transactions.

It decides who may write under a transactional id.

The decision of a transaction, the markers in all its partitions and the offsets that it commits are one transaction of
the metadata store. So no transaction is ever decided but not ended, and there is nothing to finish after a crash.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.groups.store import GroupWrite, OffsetKey, StoredOffset
from braidlog.control.interface import (
    AbortMarked,
    AddedPartitions,
    AddGroupToTransaction,
    AddPartitionsToTransaction,
    CommitOffsets,
    CommitOffsetsAnswer,
    CommitTransactionOffsets,
    EndTransaction,
    FetchOffsets,
    FetchOffsetsAnswer,
    InitProducerId,
    Outcome,
    ProducerIdentity,
    TransactionOwner,
)
from braidlog.control.log.producers import Producers, write_producers
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import Transaction
from braidlog.control.transactions.plans import AppendPlan
from braidlog.control.transactions.queries import TransactionQueries
from braidlog.control.transactions.rounds import Round, RoundQueue
from braidlog.control.transactions.settings import TransactionSettings
from braidlog.control.transactions.state import EPOCH_LAST, Ending, Transactional, TransactionState, state_after
from braidlog.control.transactions.store import (
    begin_rows,
    forget_ids,
    read_transactions,
    save_group,
    save_partitions,
    save_rows,
)

_EXPIRED_PER_STEP = 1_000

_INVALID_REQUEST = int(ErrorCode.invalid_request)
_INVALID_MAPPING = int(ErrorCode.invalid_producer_id_mapping)
_INVALID_STATE = int(ErrorCode.invalid_txn_state)
_FENCED = int(ErrorCode.producer_fenced)
_UNSTABLE = int(ErrorCode.unstable_offset_commit)
_ABORTABLE = int(ErrorCode.transaction_abortable)


class TransactionOffsets(Protocol):
    """The committed offsets of consumer groups, as far as transactions commit them."""

    def check_offsets(self, request: CommitOffsets) -> list[int]:
        """Return for each offset whether a transaction may commit it: an error code."""
        ...

    def transaction_offsets(self, offsets: dict[str, dict[OffsetKey, StoredOffset]]) -> GroupWrite:
        """Return the offsets that a transaction commits, by group, as rows.

        They are written with the transaction's decision.
        """
        ...


class Transactions:
    """Keeps all transactions in memory.

    A change is made with the state lock held, once it is durable.
    """

    def __init__(
        self,
        foundation: Foundation,
        catalog: Catalog,
        producers: Producers,
        recent: RecentExtents,
        numbers: NumberBlocks,
        groups: TransactionOffsets,
        settings: TransactionSettings,
    ) -> None:
        """`numbers` are object numbers: markers share their order."""
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._producers = producers
        self._recent = recent
        self._numbers = numbers
        self._groups = groups
        self._feed = foundation.feed
        self._clock = foundation.clock
        self._settings = settings
        self._rounds = RoundQueue(foundation.state_lock, self._run_round)
        self._ids: dict[str, Transactional] = {}
        self.queries = TransactionQueries(foundation.metadata, catalog, producers, self._ids, foundation.clock)
        self._by_producer: dict[int, Transactional] = {}
        self._ongoing: dict[str, Transactional] = {}
        self._by_group: dict[str, dict[str, Transactional]] = {}
        """The ongoing transactions that commit offsets of each group."""

    async def load(self) -> None:
        """Load the transactions. The catalog must be loaded before."""
        found, aborted_ends = await self._metadata.read(read_transactions)
        partitions = self._catalog.partitions
        for known in found:
            self._ids[known.transactional_id] = known
            self._by_producer[known.producer_id] = known
            if known.is_ongoing:
                self._track(known)
        opened = sorted(
            (first_offset, known.producer_id, partition_id)
            for known in self._ongoing.values()
            for partition_id, first_offset in known.partitions.items()
            if first_offset >= 0 and partition_id in partitions
        )
        for first_offset, producer_id, partition_id in opened:
            partitions[partition_id].open_transactions[producer_id] = first_offset
        for partition_id, end_offset in aborted_ends.items():
            if partition_id in partitions:
                partitions[partition_id].aborted_end_offset = end_offset

    # ── identities ────────────────────────────────────────────────────────────────────────────────────────────────

    async def init(self, request: InitProducerId) -> ProducerIdentity:
        """Give a producer to the transactional id.

        The previous producer is fenced, and its open transaction is aborted.
        """
        transactional_id = request.transactional_id
        if not transactional_id or "\0" in transactional_id:
            return _refused(_INVALID_REQUEST)
        if not 0 < request.transaction_timeout_ms <= self._settings.timeout_ms_max:
            return _refused(int(ErrorCode.invalid_transaction_timeout))

        def plan(now: Round) -> ProducerIdentity:
            known = self._ids.get(transactional_id)
            if known is None:
                return self._create(transactional_id, request.transaction_timeout_ms, now)
            return self._renew(known, request, now)

        return await self._rounds.submit(transactional_id, plan)

    def _create(self, transactional_id: str, timeout_ms: int, now: Round) -> ProducerIdentity:
        if len(self._ids) >= self._settings.ids_max:
            return _refused(int(ErrorCode.policy_violation))
        now_ms, producer_id = now.now_ms, self._producers.take_id()
        known = Transactional(transactional_id, producer_id, 0, -1, -1, timeout_ms, TransactionState.EMPTY, -1, now_ms)
        row = (transactional_id, producer_id, 0, -1, -1, timeout_ms, str(known.state), -1, now_ms)

        def write(tx: Transaction) -> None:
            save_rows(tx, [row])
            write_producers(tx, [(producer_id, 0, 0, now_ms)])

        def apply() -> None:
            self._ids[transactional_id] = known
            self._by_producer[producer_id] = known

        now.add(write, apply)
        return ProducerIdentity(0, producer_id, 0)

    def _renew(self, known: Transactional, request: InitProducerId, now: Round) -> ProducerIdentity:
        asks_for_bump = request.producer_id >= 0
        if asks_for_bump and (request.producer_id, request.producer_epoch) != (known.producer_id, known.epoch):
            if known.is_predecessor(request.producer_id, request.producer_epoch):
                return ProducerIdentity(0, known.producer_id, known.epoch)
            return _refused(_FENCED)
        state = TransactionState.COMPLETE_ABORT if known.is_ongoing else TransactionState.EMPTY
        last_epoch = known.epoch if asks_for_bump else -1
        ending = self._next_identity(known, False, state, last_epoch, request.transaction_timeout_ms)
        return self._end(ending, now)

    def _next_identity(
        self, known: Transactional, commit: bool, state: TransactionState, last_epoch: int, timeout_ms: int
    ) -> Ending:
        """Return an end after which the producer has a new epoch.

        It has another id if its epochs are used up.
        """
        marker_epoch = known.epoch + 1 if known.epoch <= EPOCH_LAST else known.epoch
        producer_id, epoch = known.producer_id, known.epoch + 1
        if known.epoch >= EPOCH_LAST:
            producer_id, epoch = self._producers.take_id(), 0
        return Ending(known, commit, marker_epoch, producer_id, epoch, last_epoch, timeout_ms, state)

    def _find(self, owner: TransactionOwner) -> Transactional | int:
        """Return the transactional id, or an error code for a wrong owner.

        The owner must be its current producer.
        """
        if not owner.transactional_id:
            return _INVALID_REQUEST
        known = self._ids.get(owner.transactional_id)
        if known is None:
            return _INVALID_MAPPING
        return known.check_owner(owner) or known

    # ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_partitions(self, request: AddPartitionsToTransaction) -> AddedPartitions:
        return await self._rounds.submit(request.owner.transactional_id, lambda now: self._add_partitions(request, now))

    def _add_partitions(self, request: AddPartitionsToTransaction, now: Round) -> AddedPartitions:
        known = self._find(request.owner)
        if isinstance(known, int):
            return AddedPartitions(known)
        states = [self._catalog.partition(topic_id, index) for topic_id, index in request.partitions]
        if request.verify_only:
            codes = [0 if state and state.partition_id in known.partitions else _ABORTABLE for state in states]
            return AddedPartitions(0, codes)
        if None in states:
            missing, others = int(ErrorCode.unknown_topic_or_partition), int(ErrorCode.operation_not_attempted)
            return AddedPartitions(0, [missing if state is None else others for state in states])
        added = [state.partition_id for state in states if state and state.partition_id not in known.partitions]
        if len(known.partitions) + len(added) > self._settings.partitions_max:
            return AddedPartitions(int(ErrorCode.policy_violation))
        if added or not known.is_ongoing:
            begins, rows = not known.is_ongoing, [(known.producer_id, partition_id, -1) for partition_id in added]

            def write(tx: Transaction) -> None:
                if begins:
                    begin_rows(tx, [known], now.now_ms)
                save_partitions(tx, rows)

            def apply() -> None:
                known.begin(now.now_ms)
                known.partitions.update(dict.fromkeys(added, -1))
                self._track(known)

            now.add(write, apply)
        return AddedPartitions(0, [0] * len(states))

    async def add_group(self, request: AddGroupToTransaction) -> Outcome:
        return await self._rounds.submit(request.owner.transactional_id, lambda now: self._add_group(request, now))

    def _add_group(self, request: AddGroupToTransaction, now: Round) -> Outcome:
        known = self._find(request.owner)
        if isinstance(known, int):
            return Outcome(known)
        if not request.group_id or "\0" in request.group_id:
            return Outcome(int(ErrorCode.invalid_group_id))
        if request.group_id not in known.offsets:
            self._save_group(known, request.group_id, {}, now)
        return Outcome(0)

    async def commit_offsets(self, request: CommitTransactionOffsets) -> CommitOffsetsAnswer:
        return await self._rounds.submit(request.owner.transactional_id, lambda now: self._commit_offsets(request, now))

    def _commit_offsets(self, request: CommitTransactionOffsets, now: Round) -> CommitOffsetsAnswer:
        commit = request.commit
        codes = self._groups.check_offsets(commit)
        if codes and all(codes):
            return CommitOffsetsAnswer(codes)
        known = self._find(request.owner)
        if not isinstance(known, int) and commit.group_id not in known.offsets and not request.adds_group:
            known = _INVALID_STATE
        if isinstance(known, int):
            return CommitOffsetsAnswer([known] * len(codes))
        accepted = {
            (each.topic_id, each.partition): StoredOffset(each.offset, each.leader_epoch, each.metadata, now.now_ms)
            for each, code in zip(commit.offsets, codes, strict=True)
            if not code
        }
        self._save_group(known, commit.group_id, accepted, now)
        return CommitOffsetsAnswer(codes)

    def _save_group(
        self, known: Transactional, group_id: str, offsets: dict[OffsetKey, StoredOffset], now: Round
    ) -> None:
        begins = not known.is_ongoing

        def write(tx: Transaction) -> None:
            if begins:
                begin_rows(tx, [known], now.now_ms)
            save_group(tx, known.producer_id, group_id, offsets)

        def apply() -> None:
            known.begin(now.now_ms)
            known.offsets.setdefault(group_id, {}).update(offsets)
            self._track(known)

        now.add(write, apply)

    def _track(self, known: Transactional) -> None:
        self._ongoing[known.transactional_id] = known
        for group_id in known.offsets:
            self._by_group.setdefault(group_id, {})[known.transactional_id] = known

    def _untrack(self, known: Transactional, group_ids: Iterable[str]) -> None:
        self._ongoing.pop(known.transactional_id, None)
        for group_id in group_ids:
            others = self._by_group.get(group_id, {})
            others.pop(known.transactional_id, None)
            if not others:
                self._by_group.pop(group_id, None)

    def mark_unstable(self, request: FetchOffsets, answer: FetchOffsetsAnswer) -> FetchOffsetsAnswer:
        """Mark the offsets that an ongoing transaction may replace."""
        pending = {
            key
            for known in self._by_group.get(request.group_id, {}).values()
            for key in known.offsets[request.group_id]
        }
        if not pending:
            return answer
        return FetchOffsetsAnswer(
            answer.error_code,
            [
                type(each)(each.topic_id, each.partition, -1, -1, "", _UNSTABLE)
                if (each.topic_id, each.partition) in pending
                else each
                for each in answer.offsets
            ],
        )

    # ── appends ───────────────────────────────────────────────────────────────────────────────────────────────────

    def start_plan(self) -> AppendPlan:
        """Start a plan for the sequencer, which holds the state lock."""
        return AppendPlan(self._by_producer, self._clock.wall_ms())

    def applied(self, plan: AppendPlan) -> None:
        for known in plan.apply():
            self._track(known)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def end(self, request: EndTransaction) -> ProducerIdentity:
        return await self._rounds.submit(request.owner.transactional_id, lambda now: self._plan_end(request, now))

    def _plan_end(self, request: EndTransaction, now: Round) -> ProducerIdentity:
        owner = request.owner
        if not owner.transactional_id:
            return _refused(_INVALID_REQUEST)
        known = self._ids.get(owner.transactional_id)
        if known is None:
            return _refused(_INVALID_MAPPING)
        wanted = state_after(request.commit)
        if request.bumps_epoch and known.is_predecessor(owner.producer_id, owner.producer_epoch):
            # A retry: the answer to the last end was lost.
            is_same = known.state is wanted
            return ProducerIdentity(0, known.producer_id, known.epoch) if is_same else _refused(_INVALID_STATE)
        if code := known.check_owner(owner):
            return _refused(code)
        if not known.is_ongoing:
            if not request.bumps_epoch and known.state is wanted:
                return ProducerIdentity(0, known.producer_id, known.epoch)
            if not request.bumps_epoch or request.commit:
                return _refused(_INVALID_STATE)
        if request.bumps_epoch:
            ending = self._next_identity(known, request.commit, wanted, known.epoch, known.timeout_ms)
        else:
            ending = Ending(
                known,
                request.commit,
                known.epoch,
                known.producer_id,
                known.epoch,
                known.last_epoch,
                known.timeout_ms,
                wanted,
            )
        return self._end(ending, now)

    def _end(self, ending: Ending, now: Round) -> ProducerIdentity:
        """Plan the end of a transaction: afterwards all of it is visible, or nothing."""
        known = ending.transactional
        before_id, before_groups = known.producer_id, list(known.offsets)
        now.ends.add(ending, self._offsets_of(known) if ending.commit else None)

        def write(tx: Transaction) -> None:
            if ending.producer_id != before_id:
                write_producers(tx, [(ending.producer_id, ending.epoch, 0, now.now_ms)])

        def apply() -> None:
            self._untrack(known, before_groups)
            del self._by_producer[before_id]
            self._by_producer[ending.producer_id] = known

        now.add(write, apply)
        return ProducerIdentity(0, ending.producer_id, ending.epoch)

    async def abort_overdue(self) -> int:
        """Abort transactions that exceed their timeout, and fence their producers.

        Returns how many.
        """
        now_ms = self._clock.wall_ms()
        overdue = [known.transactional_id for known in self._ongoing.values() if known.deadline_ms <= now_ms]
        aborted = await asyncio.gather(*(self._rounds.submit(each, partial(self._abort, each)) for each in overdue))
        return sum(aborted)

    def _abort(self, transactional_id: str, now: Round) -> int:
        known = self._ids.get(transactional_id)
        if known is None or not known.is_ongoing or known.deadline_ms > now.now_ms:
            return 0
        self._abort_and_fence(known, now)
        return 1

    async def abort_marked(self, request: AbortMarked) -> Outcome:
        """Abort a transaction that an administrator reports as hanging.

        It ends in all its partitions.
        """
        known = self._by_producer.get(request.producer_id)
        if known is None:
            return Outcome(0)
        return await self._rounds.submit(known.transactional_id, partial(self._abort_marked, known, request))

    def _abort_marked(self, known: Transactional, request: AbortMarked, now: Round) -> Outcome:
        if known.producer_id != request.producer_id or request.producer_epoch < known.epoch:
            return Outcome(int(ErrorCode.invalid_producer_epoch), "The producer has a newer epoch.")
        if known.is_ongoing and request.partition_id in known.partitions:
            self._abort_and_fence(known, now)
        return Outcome(0)

    def _abort_and_fence(self, known: Transactional, now: Round) -> None:
        epoch = min(known.epoch + 1, EPOCH_LAST + 1)
        state = TransactionState.COMPLETE_ABORT
        self._end(Ending(known, False, epoch, known.producer_id, epoch, -1, known.timeout_ms, state), now)

    async def _run_round(self, plans: list[Callable[[Round], Any]]) -> list[Any]:
        """Run the plans of one round, and return their answers.

        Call with the state lock held.
        """
        await self._numbers.reserve(1)
        await self._producers.reserve_ids(len(plans))
        now = Round(self._catalog.partitions, self._numbers.take(), self._clock.wall_ms())
        answers = [plan(now) for plan in plans]
        if not now.is_empty:
            now.ends.prepare(self._recent.make_room(now.ends.extent_count, 0))
            await self._metadata.plan(now.write)
            self._feed.publish(now.apply(self._recent))
        return answers

    async def close(self) -> None:
        """Wait for the rounds in flight."""
        await self._rounds.close()

    def _offsets_of(self, known: Transactional) -> GroupWrite | None:
        """Return the offsets that the commit of a transaction writes.

        Returns None if there are none.
        """
        existing = {
            group_id: {key: stored for key, stored in offsets.items() if self._catalog.partition(*key) is not None}
            for group_id, offsets in known.offsets.items()
        }
        if not any(existing.values()):
            return None
        return self._groups.transaction_offsets(existing)

    async def expire_once(self) -> int:
        """Forget transactional ids that were unused for the expiration time.

        Returns how many.
        """
        count = 0
        while True:
            async with self._state_lock:
                limit_ms = self._clock.wall_ms() - self._settings.id_expiration_ms
                unused = (known for known in self._ids.values() if not known.is_ongoing)
                expired = [known for known in unused if known.updated_ms <= limit_ms][:_EXPIRED_PER_STEP]
                if not expired:
                    return count
                names = [known.transactional_id for known in expired]
                await self._metadata.plan(lambda tx, names=names: forget_ids(tx, names))  # type: ignore[misc]
                for known in expired:
                    del self._ids[known.transactional_id]
                    del self._by_producer[known.producer_id]
            count += len(expired)


def _refused(code: int) -> ProducerIdentity:
    return ProducerIdentity(code, -1, -1)
