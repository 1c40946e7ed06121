"""The transaction coordinator: who may write under a transactional id, what belongs to a transaction, how it ends.

A transaction's decision, the markers in all its partitions and the offsets that it commits are one transaction of the
metadata store. So there is no moment at which it is decided and not ended, and nothing to finish after a crash.
"""

import asyncio
from collections.abc import Iterable

from msgspec import structs

from braidlog.control.aborted import find_aborted
from braidlog.control.catalog import Catalog
from braidlog.control.counters import NumberBlocks
from braidlog.control.error_codes import ErrorCode
from braidlog.control.feed import Feed
from braidlog.control.group_store import GroupWrite, OffsetKey, StoredOffset
from braidlog.control.groups import GroupCoordinator
from braidlog.control.interface import (
    AddedPartitions,
    AddGroupToTransaction,
    AddPartitionsToTransaction,
    CommitOffsetsAnswer,
    CommitTransactionOffsets,
    DescribeProducers,
    DescribeTransactions,
    EndTransaction,
    FetchOffsets,
    FetchOffsetsAnswer,
    FindAborted,
    FoundAborted,
    InitProducerId,
    ListTransactions,
    Outcome,
    PartitionBounds,
    PartitionProducers,
    ProducerDescriptions,
    ProducerIdentity,
    TransactionDescription,
    TransactionDescriptions,
    TransactionListing,
    TransactionListings,
    TransactionOwner,
)
from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.control.producers import Producers, write_producers
from braidlog.control.recent import RecentExtents
from braidlog.control.topic_pattern import InvalidPattern, TopicPattern
from braidlog.control.transaction_plans import AppendPlan, EndPlan
from braidlog.control.transaction_settings import TransactionSettings
from braidlog.control.transaction_state import EPOCH_LAST, Ending, Transactional, TransactionState, state_after
from braidlog.control.transaction_store import (
    begin_rows,
    forget_ids,
    read_transactions,
    save_group,
    save_partitions,
    save_rows,
)
from braidlog.runtime.clock import Clock

_ENDED_PER_STEP = 500
_EXPIRED_PER_STEP = 1_000

_INVALID_REQUEST = int(ErrorCode.INVALID_REQUEST)
_INVALID_MAPPING = int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
_INVALID_STATE = int(ErrorCode.INVALID_TXN_STATE)
_FENCED = int(ErrorCode.PRODUCER_FENCED)
_UNSTABLE = int(ErrorCode.UNSTABLE_OFFSET_COMMIT)
_ABORTABLE = int(ErrorCode.TRANSACTION_ABORTABLE)


class Transactions:
    """Everything is in memory, and changes while the turn is held, once it is durable."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        turn: asyncio.Lock,
        catalog: Catalog,
        producers: Producers,
        recent: RecentExtents,
        numbers: NumberBlocks,
        groups: GroupCoordinator,
        feed: Feed,
        clock: Clock,
        settings: TransactionSettings,
    ) -> None:
        """`numbers` are those of objects, in whose order markers stand too."""
        self._metadata = metadata
        self._turn = turn
        self._catalog = catalog
        self._producers = producers
        self._recent = recent
        self._numbers = numbers
        self._groups = groups
        self._feed = feed
        self._clock = clock
        self._settings = settings
        self._ids: dict[str, Transactional] = {}
        self._by_producer: dict[int, Transactional] = {}
        self._ongoing: dict[str, Transactional] = {}
        self._by_group: dict[str, dict[str, Transactional]] = {}
        """Ongoing transactions that commit offsets of a group."""

    async def load(self) -> None:
        """After the catalog."""
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
        """A producer for the transactional id. Who had it before is fenced off, and what it left open is aborted."""
        transactional_id = request.transactional_id
        if not transactional_id or "\0" in transactional_id:
            return ProducerIdentity(_INVALID_REQUEST, -1, -1)
        if not 0 < request.transaction_timeout_ms <= self._settings.timeout_ms_max:
            return ProducerIdentity(int(ErrorCode.INVALID_TRANSACTION_TIMEOUT), -1, -1)
        async with self._turn:
            known = self._ids.get(transactional_id)
            if known is None:
                return await self._create(transactional_id, request.transaction_timeout_ms)
            return await self._renew(known, request)

    async def _create(self, transactional_id: str, timeout_ms: int) -> ProducerIdentity:
        if len(self._ids) >= self._settings.ids_max:
            return ProducerIdentity(int(ErrorCode.POLICY_VIOLATION), -1, -1)
        now_ms = self._clock.wall_ms()
        producer_id = await self._producers.reserve_id()
        known = Transactional(transactional_id, producer_id, 0, -1, -1, timeout_ms, TransactionState.EMPTY, -1, now_ms)
        row = (transactional_id, producer_id, 0, -1, -1, timeout_ms, str(known.state), -1, now_ms)

        def write(tx: Transaction) -> None:
            save_rows(tx, [row])
            write_producers(tx, [(producer_id, 0, 0, now_ms)])

        await self._metadata.transact(write)
        self._ids[transactional_id] = known
        self._by_producer[producer_id] = known
        return ProducerIdentity(0, producer_id, 0)

    async def _renew(self, known: Transactional, request: InitProducerId) -> ProducerIdentity:
        asks_for_bump = request.producer_id >= 0
        if asks_for_bump and (request.producer_id, request.producer_epoch) != (known.producer_id, known.epoch):
            if known.is_predecessor(request.producer_id, request.producer_epoch):
                return ProducerIdentity(0, known.producer_id, known.epoch)
            return ProducerIdentity(_FENCED, -1, -1)
        state = TransactionState.COMPLETE_ABORT if known.is_ongoing else TransactionState.EMPTY
        last_epoch = known.epoch if asks_for_bump else -1
        ending = await self._next_identity(known, False, state, last_epoch, request.transaction_timeout_ms)
        await self._end([ending])
        return ProducerIdentity(0, known.producer_id, known.epoch)

    async def _next_identity(
        self, known: Transactional, commit: bool, state: TransactionState, last_epoch: int, timeout_ms: int
    ) -> Ending:
        """The end of a transaction after which the producer has a new epoch; or another id, if there is none left."""
        marker_epoch = known.epoch + 1 if known.epoch <= EPOCH_LAST else known.epoch
        producer_id, epoch = known.producer_id, known.epoch + 1
        if known.epoch >= EPOCH_LAST:
            producer_id, epoch = await self._producers.reserve_id(), 0
        return Ending(known, commit, marker_epoch, producer_id, epoch, last_epoch, timeout_ms, state)

    def _find(self, owner: TransactionOwner) -> Transactional | int:
        """The transactional id, or the error code for who is not its producer (any more)."""
        if not owner.transactional_id:
            return _INVALID_REQUEST
        known = self._ids.get(owner.transactional_id)
        if known is None:
            return _INVALID_MAPPING
        return known.check_owner(owner) or known

    # ── contents ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def add_partitions(self, request: AddPartitionsToTransaction) -> AddedPartitions:
        async with self._turn:
            known = self._find(request.owner)
            if isinstance(known, int):
                return AddedPartitions(known)
            states = [self._catalog.partition(topic_id, index) for topic_id, index in request.partitions]
            if request.verify_only:
                return AddedPartitions(
                    0,
                    [
                        0 if state is not None and state.partition_id in known.partitions else _ABORTABLE
                        for state in states
                    ],
                )
            if None in states:
                missing, others = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.OPERATION_NOT_ATTEMPTED)
                return AddedPartitions(0, [missing if state is None else others for state in states])
            added = [state.partition_id for state in states if state and state.partition_id not in known.partitions]
            if len(known.partitions) + len(added) > self._settings.partitions_max:
                return AddedPartitions(int(ErrorCode.POLICY_VIOLATION))
            if added or not known.is_ongoing:
                now_ms = self._clock.wall_ms()

                def write(tx: Transaction) -> None:
                    if not known.is_ongoing:
                        begin_rows(tx, [known], now_ms)
                    save_partitions(tx, [(known.producer_id, partition_id, -1) for partition_id in added])

                await self._metadata.transact(write)
                known.begin(now_ms)
                known.partitions.update(dict.fromkeys(added, -1))
                self._track(known)
            return AddedPartitions(0, [0] * len(states))

    async def add_group(self, request: AddGroupToTransaction) -> Outcome:
        async with self._turn:
            known = self._find(request.owner)
            if isinstance(known, int):
                return Outcome(known)
            if not request.group_id or "\0" in request.group_id:
                return Outcome(int(ErrorCode.INVALID_GROUP_ID))
            if request.group_id not in known.offsets:
                await self._save_group(known, request.group_id, {})
            return Outcome(0)

    async def commit_offsets(self, request: CommitTransactionOffsets) -> CommitOffsetsAnswer:
        commit = request.commit
        async with self._turn:
            codes = self._groups.check_offsets(commit)
            if all(codes) and codes:
                return CommitOffsetsAnswer(codes)
            known = self._find(request.owner)
            if not isinstance(known, int) and commit.group_id not in known.offsets and not request.adds_group:
                known = _INVALID_STATE
            if isinstance(known, int):
                return CommitOffsetsAnswer([known] * len(codes))
            now_ms = self._clock.wall_ms()
            accepted = {
                (each.topic_id, each.partition): StoredOffset(each.offset, each.leader_epoch, each.metadata, now_ms)
                for each, code in zip(commit.offsets, codes, strict=True)
                if not code
            }
            await self._save_group(known, commit.group_id, accepted)
            return CommitOffsetsAnswer(codes)

    async def _save_group(self, known: Transactional, group_id: str, offsets: dict[OffsetKey, StoredOffset]) -> None:
        now_ms = self._clock.wall_ms()

        def write(tx: Transaction) -> None:
            if not known.is_ongoing:
                begin_rows(tx, [known], now_ms)
            save_group(tx, known.producer_id, group_id, offsets)

        await self._metadata.transact(write)
        known.begin(now_ms)
        known.offsets.setdefault(group_id, {}).update(offsets)
        self._track(known)

    def _track(self, known: Transactional) -> None:
        self._ongoing[known.transactional_id] = known
        for group_id in known.offsets:
            self._by_group.setdefault(group_id, {})[known.transactional_id] = known

    def _untrack(self, known: Transactional) -> None:
        self._ongoing.pop(known.transactional_id, None)
        for group_id in known.offsets:
            others = self._by_group.get(group_id, {})
            others.pop(known.transactional_id, None)
            if not others:
                self._by_group.pop(group_id, None)

    def mark_unstable(self, request: FetchOffsets, answer: FetchOffsetsAnswer) -> FetchOffsetsAnswer:
        """Say of which offsets it is not decided yet whether they are replaced."""
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
        """For the sequencer, which holds the turn."""
        return AppendPlan(self._by_producer, self._clock.wall_ms())

    def applied(self, plan: AppendPlan) -> None:
        for known in plan.apply():
            self._track(known)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def end(self, request: EndTransaction) -> ProducerIdentity:
        async with self._turn:
            owner = request.owner
            known = self._ids.get(owner.transactional_id)
            if not owner.transactional_id:
                return ProducerIdentity(_INVALID_REQUEST, -1, -1)
            if known is None:
                return ProducerIdentity(_INVALID_MAPPING, -1, -1)
            wanted = state_after(request.commit)
            if request.bumps_epoch and known.is_predecessor(owner.producer_id, owner.producer_epoch):
                # The answer to its last end was lost.
                code = 0 if known.state is wanted else _INVALID_STATE
                return ProducerIdentity(code, known.producer_id, known.epoch) if not code else _refused(code)
            if code := known.check_owner(owner):
                return _refused(code)
            if not known.is_ongoing:
                if not request.bumps_epoch and known.state is wanted:
                    return ProducerIdentity(0, known.producer_id, known.epoch)
                if not request.bumps_epoch or request.commit:
                    return _refused(_INVALID_STATE)
            if request.bumps_epoch:
                ending = await self._next_identity(known, request.commit, wanted, known.epoch, known.timeout_ms)
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
            await self._end([ending])
            return ProducerIdentity(0, known.producer_id, known.epoch)

    async def abort_overdue(self) -> int:
        """Abort transactions that take longer than their producers allowed, and fence those off. Returns how many."""
        count = 0
        while True:
            async with self._turn:
                now_ms = self._clock.wall_ms()
                overdue = [known for known in self._ongoing.values() if known.deadline_ms <= now_ms][:_ENDED_PER_STEP]
                if not overdue:
                    return count
                await self._end(
                    [
                        Ending(
                            known,
                            False,
                            min(known.epoch + 1, EPOCH_LAST + 1),
                            known.producer_id,
                            min(known.epoch + 1, EPOCH_LAST + 1),
                            -1,
                            known.timeout_ms,
                            TransactionState.COMPLETE_ABORT,
                        )
                        for known in overdue
                    ]
                )
            count += len(overdue)

    async def _end(self, endings: list[Ending]) -> None:
        """All of it is visible afterwards, or nothing is."""
        await self._numbers.reserve(1)
        now_ms = self._clock.wall_ms()
        plan = EndPlan(self._catalog.partitions, self._numbers.take(), now_ms)
        new_producers = []
        for ending in endings:
            known = ending.transactional
            plan.add(ending, self._offsets_of(known) if ending.commit else None)
            if ending.producer_id != known.producer_id:
                new_producers.append((ending.producer_id, ending.epoch, 0, now_ms))
        plan.prepare(self._recent.make_room(plan.extent_count, 0))

        def write(tx: Transaction) -> None:
            plan.write(tx)
            write_producers(tx, new_producers)

        await self._metadata.transact(write)
        for ending in endings:
            self._untrack(ending.transactional)
            del self._by_producer[ending.transactional.producer_id]
        events = plan.apply(self._recent)
        for ending in endings:
            self._by_producer[ending.producer_id] = ending.transactional
        self._feed.publish(events)

    def _offsets_of(self, known: Transactional) -> GroupWrite | None:
        """What the groups of a transaction get from its commit."""
        existing = {
            group_id: {key: stored for key, stored in offsets.items() if self._catalog.partition(*key) is not None}
            for group_id, offsets in known.offsets.items()
        }
        if not any(existing.values()):
            return None
        return self._groups.transaction_offsets(existing)

    async def expire_once(self) -> int:
        """Forget transactional ids that were not used for the expiration time. Returns how many."""
        count = 0
        while True:
            async with self._turn:
                limit_ms = self._clock.wall_ms() - self._settings.id_expiration_ms
                unused = (known for known in self._ids.values() if not known.is_ongoing)
                expired = [known for known in unused if known.updated_ms <= limit_ms][:_EXPIRED_PER_STEP]
                if not expired:
                    return count
                names = [known.transactional_id for known in expired]
                await self._metadata.transact(lambda tx, names=names: forget_ids(tx, names))  # type: ignore[misc]
                for known in expired:
                    del self._ids[known.transactional_id]
                    del self._by_producer[known.producer_id]
            count += len(expired)

    # ── what is asked of them ─────────────────────────────────────────────────────────────────────────────────────

    async def find_aborted(self, request: FindAborted) -> FoundAborted:
        partition_id = request.partition_id

        def find(tx: Transaction) -> list[tuple[int, int, int]]:
            return find_aborted(tx, partition_id, request.start_offset, request.end_offset)

        aborted = await self._metadata.read(find)
        # Looked at afterwards: what was removed meanwhile then lies below the start that is told.
        state = self._catalog.partitions.get(partition_id)
        if state is None:
            return FoundAborted(PartitionBounds(partition_id, 0, 0, 0), [], known=False)
        return FoundAborted(
            state.bounds,
            [(producer_id, first_offset) for producer_id, first_offset, _ in aborted],
            marker_offsets=[marker_offset for _, _, marker_offset in aborted],
        )

    async def describe(self, request: DescribeTransactions) -> TransactionDescriptions:
        return TransactionDescriptions([self._describe(each) for each in request.transactional_ids])

    def _describe(self, transactional_id: str) -> TransactionDescription:
        if not transactional_id:
            return TransactionDescription(_INVALID_REQUEST, transactional_id)
        known = self._ids.get(transactional_id)
        if known is None:
            return TransactionDescription(int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), transactional_id)
        states = (self._catalog.partitions.get(partition_id) for partition_id in known.partitions)
        return TransactionDescription(
            0,
            transactional_id,
            str(known.state),
            known.timeout_ms,
            known.started_ms,
            known.producer_id,
            known.epoch,
            [(state.topic_id, state.index) for state in states if state is not None],
        )

    async def describe_producers(self, request: DescribeProducers) -> ProducerDescriptions:
        partitions = self._catalog.partitions
        found = await self._producers.describe(each for each in request.partition_ids if each in partitions)
        return ProducerDescriptions(
            [
                PartitionProducers(
                    each.partition_id,
                    [
                        structs.replace(
                            writer,
                            transaction_start_offset=partitions[each.partition_id].open_transactions.get(
                                writer.producer_id, -1
                            ),
                        )
                        for writer in each.producers
                    ],
                )
                for each in found.partitions
                if each.partition_id in partitions
            ]
        )

    async def list(self, request: ListTransactions) -> TransactionListings:
        try:
            pattern = TopicPattern(request.pattern) if request.pattern else None
        except InvalidPattern:
            return TransactionListings([], int(ErrorCode.INVALID_REGULAR_EXPRESSION))
        return TransactionListings(
            [
                _listing(known)
                for known in self._matching(request)
                if pattern is None or pattern.matches(known.transactional_id)
            ]
        )

    def _matching(self, request: ListTransactions) -> Iterable[Transactional]:
        states, producer_ids = frozenset(request.states), frozenset(request.producer_ids)
        now_ms = self._clock.wall_ms()
        for known in self._ids.values():
            if states and str(known.state) not in states:
                continue
            if producer_ids and known.producer_id not in producer_ids:
                continue
            if request.duration_ms_min >= 0 and not (
                known.is_ongoing and now_ms - known.started_ms >= request.duration_ms_min
            ):
                continue
            yield known


def _listing(known: Transactional) -> TransactionListing:
    return TransactionListing(known.transactional_id, known.producer_id, str(known.state))


def _refused(code: int) -> ProducerIdentity:
    return ProducerIdentity(code, -1, -1)
