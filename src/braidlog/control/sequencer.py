"""The sequencer: gives every batch of an uploaded object its offsets, once and durably.

Objects that arrive while a transaction is in flight are gathered into the next one. Each group is planned against
memory, written in one transaction, and only then becomes visible.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from braidlog.control.catalog import Catalog
from braidlog.control.counters import NumberBlocks
from braidlog.control.epochs import WriteEpochs
from braidlog.control.error_codes import ErrorCode
from braidlog.control.feed import Feed
from braidlog.control.interface import (
    BatchVerdict,
    CommitObject,
    ExtentVerdict,
    IndexedExtent,
    ObjectSequenced,
    ObjectVerdict,
    StoredObject,
)
from braidlog.control.metadata import MetadataConflict, MetadataStore, Row, Transaction
from braidlog.control.partitions import PartitionState, TopicState
from braidlog.control.producers import (
    REMEMBERED,
    AppendedBatch,
    Producer,
    ProducerPartition,
    ProducerPlan,
    Producers,
    encode_batches,
    write_producers,
)
from braidlog.control.recent import RecentExtents, Settling
from braidlog.control.transaction_plans import AppendPlan
from braidlog.control.transactions import Transactions
from braidlog.objects.format import CorruptObject, decode_footer_bytes, extents_length
from braidlog.objects.keys import parse_data_key
from braidlog.objects.layout import KAFKA_BATCHES, ExtentEntry, Footer
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import BraidError, ControlUnavailable, Remedy

EXTENTS_PER_GROUP_MAX = 5_000
OBJECTS_WAITING_MAX = 10_000
VERDICTS_REMEMBERED = 4_096
"""In memory, for retries that follow at once. Later ones are found in the metadata."""

_REMEMBERED_BYTES = REMEMBERED.size
_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_BIT | CONTROL_BIT

_STALE = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_UNKNOWN_PARTITION = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TOPIC = int(ErrorCode.UNKNOWN_TOPIC_ID)
_INVALID_RECORD = int(ErrorCode.INVALID_RECORD)

_encode = msgspec.msgpack.Encoder().encode
_decode_verdict = msgspec.msgpack.Decoder(ObjectVerdict).decode


class RefusedTogether(BraidError):
    """Objects of which none was sequenced, because one of them cannot be."""

    remedy = Remedy.FIX_INPUT

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = int(error_code)


@dataclass(slots=True, eq=False)
class _Waiting:
    """An object that waits for its verdict."""

    request: CommitObject
    footer: Footer
    done: asyncio.Future[ObjectVerdict]


class _GroupPlan:
    """What one group of objects would change. Touches only the `planned` side of the state."""

    def __init__(
        self,
        catalog: Catalog,
        producers: dict[int, Producer],
        changes: ProducerPlan,
        transactions: AppendPlan,
        now_ms: int,
    ) -> None:
        self._topics = catalog.topics
        self._producers = producers
        self._changes = changes
        self.transactions = transactions
        self._now_ms = now_ms
        self._partitions: dict[int, PartitionState] = {}
        self._object_rows: list[Row] = []
        self._recent_rows: list[Row] = []
        self._producer_rows: list[Row] = []
        self._recent: list[tuple[ObjectSequenced, list[PartitionState], list[ProducerPartition]]] = []
        """With the partition of each extent, and the producer of each batch that has one."""
        self._settling: Settling | None = None
        self.verdicts: list[tuple[_Waiting, ObjectVerdict, bytes]] = []
        self.events: list[ObjectSequenced] = []
        self.extent_count = 0
        self.batch_count = 0
        """Of idempotent producers."""

    def add(self, waiting: _Waiting, number: int) -> None:
        # This runs for every extent, and its inner loop for every batch, that the whole cluster writes: so it is one
        # function, and what is looked up often is looked up once.
        topics, partitions, producers, changes = self._topics, self._partitions, self._producers, self._changes
        transactions = self.transactions
        answers: list[ExtentVerdict] = []
        indexed: list[IndexedExtent] = []
        states: list[PartitionState] = []
        batches: list[AppendedBatch] = []
        writers: list[ProducerPartition] = []
        for extent in waiting.footer.extents:
            topic = topics.get(extent.topic_id)
            index = extent.partition
            if topic is None or index >= len(topic.partitions) or extent.payload != KAFKA_BATCHES:
                answers.append(_refuse(extent, topic))
                continue
            state = topic.partitions[index]
            partition_id = state.partition_id
            verdicts: list[BatchVerdict] = []
            offset = run_offset = state.planned_next_offset
            position = run_position = extent.position
            run_timestamp_ms = -1
            accepted_bytes = 0
            for batch in extent.batches:
                code = 0
                if batch.attributes & CONTROL_BIT:
                    code = _INVALID_RECORD
                elif (producer_id := batch.producer_id) >= 0:
                    sequence, epoch = batch.base_sequence, batch.producer_epoch
                    producer = producers[producer_id]
                    known = producer.partitions.get(partition_id) or producer.partition(partition_id)
                    if batch.attributes & TRANSACTIONAL_BIT or state.open_transactions or transactions.firsts:
                        code = transactions.admit(batch, state)
                    if sequence < 0 or epoch < 0:
                        code = _INVALID_RECORD
                    elif code == 0:
                        code = known.judge(epoch, sequence, batch.offset_count, offset, producer.adopted)
                    if code == 0:
                        batches.append((producer_id, partition_id, epoch, known.planned_batches[-_REMEMBERED_BYTES:]))
                        writers.append(known)
                        if not known.touched:
                            changes.touch(producer, known)
                        if batch.attributes & TRANSACTIONAL_BIT:
                            transactions.append(batch, state, offset)
                elif batch.attributes & TRANSACTIONAL_BIT:
                    code = _INVALID_RECORD
                if code == 0:
                    verdicts.append(BatchVerdict(0, offset))
                    offset += batch.offset_count
                    position += batch.length
                    if batch.timestamp_ms_max > run_timestamp_ms:  # noqa: PLR1730 - a call per batch would be felt
                        run_timestamp_ms = batch.timestamp_ms_max
                    continue
                verdicts.append(BatchVerdict(code, -1) if code > 0 else BatchVerdict(0, -1 - code, True))
                if position > run_position:
                    length = position - run_position
                    earliest_ms = min(extent.timestamp_ms_min, run_timestamp_ms)
                    indexed.append(
                        IndexedExtent(
                            partition_id,
                            run_offset,
                            offset,
                            number,
                            run_position,
                            length,
                            earliest_ms,
                            run_timestamp_ms,
                        )
                    )
                    states.append(state)
                    accepted_bytes += length
                position += batch.length
                run_position, run_offset, run_timestamp_ms = position, offset, -1
            if position > run_position:
                length = position - run_position
                earliest_ms, latest_ms = extent.timestamp_ms_min, extent.timestamp_ms_max
                if run_position != extent.position:
                    earliest_ms, latest_ms = min(earliest_ms, run_timestamp_ms), run_timestamp_ms
                indexed.append(
                    IndexedExtent(
                        partition_id, run_offset, offset, number, run_position, length, earliest_ms, latest_ms
                    )
                )
                states.append(state)
                accepted_bytes += length
            if accepted_bytes:
                state.planned_next_offset = offset
                state.planned_size_bytes += accepted_bytes
                partitions[partition_id] = state
            answers.append(ExtentVerdict(state.log_start_offset, verdicts))
        request = waiting.request
        self._add_object(waiting, number, ObjectVerdict(0, answers), len(indexed))
        if indexed:
            stored = StoredObject(number, request.key, request.size)
            event = ObjectSequenced(stored, indexed, transactions.take_opened())
            self.events.append(event)
            self.extent_count += len(indexed)
            self.batch_count += len(batches)
            self._recent_rows.append((number, _encode(indexed), encode_batches(batches)))
            self._recent.append((event, states, writers))

    def _add_object(self, waiting: _Waiting, number: int, verdict: ObjectVerdict, extent_count: int) -> None:
        request, footer = waiting.request, waiting.footer
        encoded = _encode(verdict)
        self._object_rows.append(
            (
                number,
                footer.nonce,
                request.key,
                request.size,
                footer.write_epoch,
                self._now_ms,
                extent_count,
                None if extent_count else self._now_ms,
                encoded,
            )
        )
        self.verdicts.append((waiting, verdict, encoded))

    def prepare(self, settling: Settling) -> None:
        """Turn the plan into rows, so that the writing thread need not touch what the event loop uses."""
        self._settling = settling
        self._producer_rows = self._changes.rows()

    def write(self, tx: Transaction) -> dict[bytes, bytes | None]:
        """Write everything, or nothing and return the verdicts of objects that were sequenced before, by nonce."""
        repeated: dict[bytes, bytes | None] = {}
        for row in self._object_rows:
            repeated.update(tx.query("SELECT nonce, verdict FROM objects WHERE nonce = ?", (row[1],)))
        if repeated:
            return repeated
        tx.executemany(
            "INSERT INTO objects (number, nonce, object_key, size_bytes, write_epoch, committed_ms, live_count,"
            " unreferenced_ms, verdict) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            self._object_rows,
        )
        tx.executemany(
            "INSERT INTO recent_objects (number, extents, producer_batches) VALUES (?, ?, ?)", self._recent_rows
        )
        write_producers(tx, self._producer_rows)
        self.transactions.write(tx)
        if self._settling is not None:
            self._settling.write(tx)
        return repeated

    def apply(self, recent: RecentExtents) -> None:
        for state in self._partitions.values():
            state.apply_plan()
        self._changes.apply()
        if self._settling is not None:
            recent.settled(self._settling)
        for event, states, writers in self._recent:
            recent.add(event, states, writers)

    def discard(self) -> None:
        for state in self._partitions.values():
            state.discard_plan()
        self._changes.discard()


def _refuse(extent: ExtentEntry, topic: TopicState | None) -> ExtentVerdict:
    if topic is None:
        code = _UNKNOWN_TOPIC
    elif extent.partition >= len(topic.partitions):
        code = _UNKNOWN_PARTITION
    else:
        code = _INVALID_RECORD
    return ExtentVerdict(-1, [BatchVerdict(code, -1)] * len(extent.batches))


def _read_footer(request: CommitObject) -> Footer:
    footer = decode_footer_bytes(request.footer)
    if parse_data_key(request.key).write_epoch != footer.write_epoch:
        raise CorruptObject(f"{request.key} names another write epoch than its footer, {footer.write_epoch}")
    if extents_length(footer) > request.size:
        raise CorruptObject(f"the extents of {request.key} do not fit into its {request.size} bytes")
    return footer


def _producer_ids(group: list[_Waiting]) -> dict[int, None]:
    """In the order in which they are first met."""
    found: dict[int, None] = {}
    for waiting in group:
        for extent in waiting.footer.extents:
            for batch in extent.batches:
                found[batch.producer_id] = None
    found.pop(-1, None)
    return found


class Sequencer:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        turn: asyncio.Lock,
        catalog: Catalog,
        producers: Producers,
        epochs: WriteEpochs,
        recent: RecentExtents,
        transactions: Transactions,
        numbers: NumberBlocks,
        feed: Feed,
        clock: Clock,
    ) -> None:
        """`numbers` are those of the objects: whatever is sequenced has one, in the order in which it is."""
        self._metadata = metadata
        self._turn = turn
        self._catalog = catalog
        self._producers = producers
        self._epochs = epochs
        self._recent_extents = recent
        self._feed = feed
        self._clock = clock
        self._transactions = transactions
        self._numbers = numbers
        self._queue: deque[_Waiting] = deque()
        self._waiting: dict[bytes, _Waiting] = {}
        """By nonce, queued or in flight: a second commit of the same object waits for the same verdict."""
        self._verdicts: OrderedDict[bytes, bytes] = OrderedDict()
        """By nonce, encoded: hundreds of thousands of small objects would make the garbage collector slow."""
        self._worker: asyncio.Task[None] | None = None

    async def commit(self, request: CommitObject) -> ObjectVerdict:
        footer = _read_footer(request)
        nonce = footer.nonce
        if (encoded := self._verdicts.get(nonce)) is not None:
            return _decode_verdict(encoded)
        waiting = self._waiting.get(nonce)
        if waiting is None:
            if len(self._queue) >= OBJECTS_WAITING_MAX:
                raise ControlUnavailable(
                    f"{len(self._queue)} objects wait for the sequencer", help="The metadata store is too slow."
                )
            done: asyncio.Future[ObjectVerdict] = asyncio.get_running_loop().create_future()
            # An error is no surprise where every caller has gone away meanwhile.
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            waiting = self._waiting[nonce] = _Waiting(request, footer, done)
            self._queue.append(waiting)
            if self._worker is None:
                self._worker = asyncio.create_task(self._work(), name="sequencer")
        return await asyncio.shield(waiting.done)

    async def commit_together(
        self, requests: Sequence[CommitObject], also: Callable[[Transaction, list[ObjectVerdict]], None]
    ) -> list[ObjectVerdict]:
        """Sequence all of these in one transaction, or none (`RefusedTogether`). Called by who holds the turn.

        `also` writes in the same transaction. No batch may have a producer: then none can turn out to be a duplicate
        or out of order, and what is checked here is all that can be wrong.
        """
        footers = [_read_footer(request) for request in requests]
        for request, footer in zip(requests, footers, strict=True):
            self._check_acceptable(request.key, footer)
        await self._numbers.reserve(len(footers))
        plan = self._start_plan({})
        unawaited: asyncio.Future[ObjectVerdict] = asyncio.get_running_loop().create_future()
        try:
            for request, footer in zip(requests, footers, strict=True):
                plan.add(_Waiting(request, footer, unawaited), self._numbers.take())
            plan.prepare(self._recent_extents.make_room(plan.extent_count, plan.batch_count))
            verdicts = [verdict for _, verdict, _ in plan.verdicts]

            def write(tx: Transaction) -> None:
                if repeated := plan.write(tx):
                    raise MetadataConflict(f"{len(repeated)} of {len(verdicts)} objects were sequenced before")
                also(tx, verdicts)

            await self._metadata.transact(write)
        except BaseException:
            plan.discard()
            raise
        self._apply(plan)
        return verdicts

    def _check_acceptable(self, key: str, footer: Footer) -> None:
        reason = self._epochs.refusal(footer.write_epoch, footer.incarnation)
        if reason is not None:
            raise RefusedTogether(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key}: {reason}")
        for extent in footer.extents:
            topic = self._catalog.topics.get(extent.topic_id)
            if topic is None:
                raise RefusedTogether(ErrorCode.UNKNOWN_TOPIC_ID, f"{key}: topic {extent.topic_id.hex()} is gone")
            if extent.partition >= len(topic.partitions):
                message = f"{key}: {topic.info.name} has no partition {extent.partition}"
                raise RefusedTogether(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            if extent.payload != KAFKA_BATCHES or any(
                batch.producer_id >= 0 or batch.attributes & _TRANSACTIONAL_OR_CONTROL for batch in extent.batches
            ):
                message = f"{key}: only record batches outside of transactions and without a producer"
                raise RefusedTogether(ErrorCode.INVALID_RECORD, message)

    async def close(self) -> None:
        """Wait for what is in flight."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        try:
            while self._queue:
                async with self._turn:
                    await self._commit_group(self._take_group())
        finally:
            self._worker = None

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        extent_count = 0
        while self._queue:
            extent_count += len(self._queue[0].footer.extents)
            if group and extent_count > EXTENTS_PER_GROUP_MAX:
                break
            group.append(self._queue.popleft())
        return group

    async def _commit_group(self, group: list[_Waiting]) -> None:
        try:
            while group:
                group = await self._try_group(group)
        except MetadataConflict as error:
            # One object of the group is at fault, for example by a key that another one has. The others go on.
            if len(group) > 1:
                for waiting in group:
                    await self._commit_group([waiting])
            else:
                self._fail(group, error)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the answer to every caller of the group
            self._fail(group, error)

    def _fail(self, group: list[_Waiting], error: Exception) -> None:
        for waiting in group:
            self._waiting.pop(waiting.footer.nonce, None)
            if not waiting.done.done():
                waiting.done.set_exception(error)

    async def _try_group(self, group: list[_Waiting]) -> list[_Waiting]:
        """Sequence the group; returns what is left to do, where some of it turned out to be there already."""
        await self._numbers.reserve(len(group))
        producers = await self._producers.load(_producer_ids(group))
        plan = self._start_plan(producers)
        stale: list[_Waiting] = []
        try:
            for waiting in group:
                if self._epochs.refusal(waiting.footer.write_epoch, waiting.footer.incarnation) is not None:
                    stale.append(waiting)
                else:
                    plan.add(waiting, self._numbers.take())
            plan.prepare(self._recent_extents.make_room(plan.extent_count, plan.batch_count))
            repeated = await self._metadata.transact(plan.write) if plan.verdicts else {}
        except BaseException:
            plan.discard()
            raise
        if repeated:
            plan.discard()
        else:
            self._apply(plan)
            for waiting, verdict, encoded in plan.verdicts:
                self._finish(waiting, verdict, encoded)
        if stale:
            await self._refuse_stale(stale)
        if not repeated:
            return []
        rest: list[_Waiting] = []
        for waiting, _, _ in plan.verdicts:
            if waiting.footer.nonce in repeated:
                self._finish_known(waiting, repeated[waiting.footer.nonce])
            else:
                rest.append(waiting)
        return rest

    def _start_plan(self, producers: dict[int, Producer]) -> _GroupPlan:
        return _GroupPlan(
            self._catalog,
            producers,
            self._producers.start_plan(),
            self._transactions.start_plan(),
            self._clock.wall_ms(),
        )

    def _apply(self, plan: _GroupPlan) -> None:
        """The plan is durable: now it is visible."""
        plan.apply(self._recent_extents)
        self._transactions.applied(plan.transactions)
        self._feed.publish(plan.events)

    async def _refuse_stale(self, stale: list[_Waiting]) -> None:
        """Of these, only objects that were sequenced before get an answer other than no."""

        def look_up(tx: Transaction) -> dict[bytes, bytes | None]:
            found: dict[bytes, bytes | None] = {}
            for waiting in stale:
                found.update(tx.query("SELECT nonce, verdict FROM objects WHERE nonce = ?", (waiting.footer.nonce,)))
            return found

        known = await self._metadata.read(look_up)
        for waiting in stale:
            self._finish_known(waiting, known.get(waiting.footer.nonce))

    def _finish_known(self, waiting: _Waiting, verdict: bytes | None) -> None:
        if verdict is not None:
            self._finish(waiting, _decode_verdict(verdict), verdict)
            return
        footer = waiting.footer
        reason = self._epochs.refusal(footer.write_epoch, footer.incarnation) or "it was sequenced before"
        self._finish(waiting, ObjectVerdict(_STALE, [], f"{waiting.request.key}: {reason}"), None)

    def _finish(self, waiting: _Waiting, verdict: ObjectVerdict, encoded: bytes | None) -> None:
        nonce = waiting.footer.nonce
        self._waiting.pop(nonce, None)
        if encoded is not None:
            self._verdicts[nonce] = encoded
            if len(self._verdicts) > VERDICTS_REMEMBERED:
                self._verdicts.popitem(last=False)
        if not waiting.done.done():
            waiting.done.set_result(verdict)
