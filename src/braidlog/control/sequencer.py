"""The sequencer: gives every batch of an uploaded object its offsets, once and durably.

Objects that arrive while a transaction is in flight are gathered into the next one. Each group is planned against
memory, written in one transaction, and only then becomes visible.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import structlog

from braidlog.control.catalog import Catalog
from braidlog.control.counters import NumberBlocks
from braidlog.control.epochs import WriteEpochs
from braidlog.control.error_codes import ErrorCode
from braidlog.control.feed import Feed
from braidlog.control.held import HeldBatch, HeldBatches
from braidlog.control.interface import CommitObject, ObjectVerdict
from braidlog.control.journal_plan import JournalCounts, JournalPlan
from braidlog.control.metadata import MetadataConflict, MetadataStore, Transaction
from braidlog.control.producers import Producer, Producers
from braidlog.control.recent import RecentExtents
from braidlog.control.sequences import Sequences
from braidlog.control.sequencing_plan import AsksForScan, Pending, SequencingPlan
from braidlog.control.transactions import Transactions
from braidlog.objects.format import CorruptObject, decode_footer_bytes, extents_length
from braidlog.objects.keys import JOURNAL_PREFIX, parse_data_key, parse_journal_key
from braidlog.objects.layout import KAFKA_BATCHES, ExtentEntry, Footer
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import BraidError, ControlUnavailable, Remedy

EXTENTS_PER_GROUP_MAX = 5_000
OBJECTS_WAITING_MAX = 10_000
VERDICTS_REMEMBERED = 4_096
"""In memory, for retries that follow at once. Later ones are found in the metadata."""

_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_BIT | CONTROL_BIT

_STALE = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_log = structlog.get_logger(__name__)
_SEQUENCED_BEFORE = ObjectVerdict(0, [], "it was sequenced before")

_decode_verdict = msgspec.msgpack.Decoder(ObjectVerdict).decode


class RefusedTogether(BraidError):
    """Objects of which none was sequenced, because one of them cannot be."""

    remedy = Remedy.FIX_INPUT

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = int(error_code)


def _read_footer(request: CommitObject) -> Footer:
    footer = decode_footer_bytes(request.footer)
    # No journal's file is refused for its epoch: what protects it from the sweeper is the record of its sequence.
    if not _is_journaled(request) and parse_data_key(request.key).write_epoch != footer.write_epoch:
        raise CorruptObject(f"{request.key} names another write epoch than its footer, {footer.write_epoch}")
    if extents_length(footer) > request.size:
        raise CorruptObject(f"the extents of {request.key} do not fit into its {request.size} bytes")
    return footer


def _is_journaled(request: CommitObject) -> bool:
    return request.key.startswith(JOURNAL_PREFIX)


def _pending(request: CommitObject, footer: Footer, done: asyncio.Future[ObjectVerdict]) -> Pending:
    if not _is_journaled(request):
        return Pending(request, footer, done)
    place = parse_journal_key(request.key)
    return Pending(request, footer, done, (place.incarnation, place.sequence), place.slot)


def _refused_before(copy: Pending, encoded: bytes | None) -> Pending | None:
    """What of a journal's file is not sequenced though its object is known: that was committed before it was journaled,
    and some of its batches were refused. In the journal they cannot be, because their producers were told that they are
    written. They are sequenced as an object of their own."""
    if copy.journal is None or encoded is None:
        return None
    extents: list[ExtentEntry] = []
    for extent, judged in zip(copy.footer.extents, _decode_verdict(encoded).extents, strict=False):
        position = extent.position
        for batch, verdict in zip(extent.batches, judged.verdicts, strict=False):
            if verdict.error_code:
                part = msgspec.structs.replace(
                    extent, position=position, length=batch.length, record_count=batch.offset_count, batches=[batch]
                )
                extents.append(part)
            position += batch.length
    if not extents:
        return None
    nonce = hashlib.sha256(copy.footer.nonce).digest()[: len(copy.footer.nonce)]
    return replace(copy, footer=msgspec.structs.replace(copy.footer, nonce=nonce, extents=extents))


def _producer_ids(group: list[Pending]) -> dict[int, None]:
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
        sequences: Sequences,
        held: HeldBatches,
        feed: Feed,
        clock: Clock,
        held_batches_max: int,
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
        self._sequences = sequences
        self._held = held
        self._held_batches_max = held_batches_max
        self.is_behind: Callable[[], bool] = lambda: False
        """Whether journals that were written while nobody could be asked are not sequenced yet."""
        self.asks_for_scan: AsksForScan = lambda gap: False
        """Whether a gap may be due to a journal that nobody has told of."""
        self.journal_counts = JournalCounts()
        self._queue: deque[Pending] = deque()
        self._waiting: dict[bytes, Pending] = {}
        """By nonce, queued or in flight: a second commit of the same object waits for the same verdict."""
        self._verdicts: OrderedDict[bytes, bytes] = OrderedDict()
        """By nonce, encoded: hundreds of thousands of small objects would make the garbage collector slow."""
        self._worker: asyncio.Task[None] | None = None

    async def commit(self, request: CommitObject) -> ObjectVerdict:
        footer = _read_footer(request)
        nonce = footer.nonce
        while (waiting := self._waiting.get(nonce)) is not None and waiting.request.key != request.key:
            await asyncio.wait([waiting.done])
        if (encoded := self._verdicts.get(nonce)) is not None and not self._is_copy(request):
            return _decode_verdict(encoded)
        if waiting is None:
            if len(self._queue) >= OBJECTS_WAITING_MAX:
                raise ControlUnavailable(
                    f"{len(self._queue)} objects wait for the sequencer", help="The metadata store is too slow."
                )
            done: asyncio.Future[ObjectVerdict] = asyncio.get_running_loop().create_future()
            # An error is no surprise where every caller has gone away meanwhile.
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            waiting = self._waiting[nonce] = _pending(request, footer, done)
            self._queue.append(waiting)
            if self._worker is None:
                self._worker = asyncio.create_task(self._work(), name="sequencer")
        return await asyncio.shield(waiting.done)

    def _is_copy(self, request: CommitObject) -> bool:
        """Whether it is known from elsewhere, and the record of its sequence does not say yet that it is sequenced."""
        if not _is_journaled(request):
            return False
        place = parse_journal_key(request.key)
        return not self._sequences.is_sequenced((place.incarnation, place.sequence), place.slot)

    async def commit_together(
        self, requests: Sequence[CommitObject], also: Callable[[Transaction, list[ObjectVerdict]], None]
    ) -> list[ObjectVerdict]:
        """Sequence all of these in one transaction, or none (`RefusedTogether`). Called by who holds the turn.

        `also` writes in the same transaction. No batch may have a producer: then none can turn out to be a duplicate
        or out of order, and what is checked here is all that can be wrong.
        """
        footers = [_read_footer(request) for request in requests]
        for request, footer in zip(requests, footers, strict=True):
            if _is_journaled(request):
                raise RefusedTogether(ErrorCode.INVALID_RECORD, f"{request.key}: only agents write journals")
            self._check_acceptable(request.key, footer)
        await self._numbers.reserve(len(footers))
        plan = self._start_plan({})
        unawaited: asyncio.Future[ObjectVerdict] = asyncio.get_running_loop().create_future()
        try:
            for request, footer in zip(requests, footers, strict=True):
                plan.add(Pending(request, footer, unawaited), self._numbers.take())
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
                    if self._held.count > self._held_batches_max:
                        await self._give_up_oldest()
        finally:
            self._worker = None

    async def _give_up_oldest(self) -> None:
        """Too many wait. Some more go than must, so that not each commit has to look for the oldest."""
        excess = self._held.count - self._held_batches_max + self._held_batches_max // 10
        try:
            await self.give_up(self._held.oldest(excess))
        except BraidError as error:
            _log.warning("batches that wait too long could not be appended", error=str(error), help=error.help)

    def _take_group(self) -> list[Pending]:
        group: list[Pending] = []
        extent_count = 0
        while self._queue:
            extent_count += len(self._queue[0].footer.extents)
            if group and extent_count > EXTENTS_PER_GROUP_MAX:
                break
            group.append(self._queue.popleft())
        return group

    async def _commit_group(self, group: list[Pending]) -> None:
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

    def _fail(self, group: list[Pending], error: Exception) -> None:
        for waiting in group:
            self._waiting.pop(waiting.footer.nonce, None)
            if not waiting.done.done():
                waiting.done.set_exception(error)

    async def _try_group(self, group: list[Pending]) -> list[Pending]:
        """Sequence the group; returns what is left to do, where some of it turned out to be there already."""
        await self._numbers.reserve(len(group))
        producers = await self._producers.load(_producer_ids(group))
        plan = self._start_plan(producers)
        stale: list[Pending] = []
        try:
            for waiting in group:
                if self._is_over(waiting):
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
        rest: list[Pending] = []
        copies: list[Pending] = []
        for waiting, _, _ in plan.verdicts:
            nonce = waiting.footer.nonce
            if nonce not in repeated:
                rest.append(waiting)
            elif (refused := _refused_before(waiting, repeated[nonce])) is not None:
                self._waiting.pop(nonce, None)
                rest.append(refused)
            else:
                copies.append(waiting)
        await self._record_copies(copies)
        for waiting in copies:
            self._finish_known(waiting, repeated[waiting.footer.nonce])
        return rest

    async def _record_copies(self, copies: list[Pending]) -> None:
        """Files of journals that were sequenced before from another slot: these slots have nothing left to sequence."""
        journal = JournalPlan(self._sequences, self._held, self._producers.start_plan(), self._clock.wall_ms())
        slots = [(each.journal, each.slot) for each in copies if each.journal is not None]
        for key, slot in slots:
            journal.add_slot(key, slot)
        if slots:
            await self._metadata.transact(journal.write)
            journal.apply(self.journal_counts)

    async def give_up(self, batches: Sequence[HeldBatch]) -> None:
        """Append these batches, which wait for others, and what they keep waiting. Called by who holds the turn."""
        await self._numbers.reserve(1)
        producers = await self._producers.load(dict.fromkeys(batch.producer_id for batch in batches))
        plan = self._start_plan(producers)
        try:
            plan.give_up(list(batches), self._catalog.partitions, self._numbers.take())
            plan.prepare(self._recent_extents.make_room(plan.extent_count, plan.batch_count))
            await self._metadata.transact(plan.write)
        except BaseException:
            plan.discard()
            raise
        self._apply(plan)

    def _is_over(self, waiting: Pending) -> bool:
        """Whether the object can only have been sequenced before, or never."""
        if waiting.journal is not None:
            return self._sequences.is_sequenced(waiting.journal, waiting.slot)
        return self._epochs.refusal(waiting.footer.write_epoch, waiting.footer.incarnation) is not None

    def _start_plan(self, producers: dict[int, Producer]) -> SequencingPlan:
        changes = self._producers.start_plan()
        now_ms = self._clock.wall_ms()
        return SequencingPlan(
            self._catalog,
            producers,
            changes,
            self._transactions.start_plan(),
            JournalPlan(self._sequences, self._held, changes, now_ms),
            now_ms,
            is_behind=self.is_behind(),
            asks_for_scan=self.asks_for_scan,
        )

    def _apply(self, plan: SequencingPlan) -> None:
        """The plan is durable: now it is visible."""
        plan.apply(self._recent_extents)
        plan.journal.apply(self.journal_counts)
        self._transactions.applied(plan.transactions)
        self._feed.publish(plan.events)

    async def _refuse_stale(self, stale: list[Pending]) -> None:
        """Of these, only objects that were sequenced before get an answer other than no."""

        def look_up(tx: Transaction) -> dict[bytes, bytes | None]:
            found: dict[bytes, bytes | None] = {}
            for waiting in stale:
                found.update(tx.query("SELECT nonce, verdict FROM objects WHERE nonce = ?", (waiting.footer.nonce,)))
            return found

        known = await self._metadata.read(look_up)
        for waiting in stale:
            self._finish_known(waiting, known.get(waiting.footer.nonce))

    def _finish_known(self, waiting: Pending, verdict: bytes | None) -> None:
        if verdict is not None:
            self._finish(waiting, _decode_verdict(verdict), verdict)
            return
        if waiting.journal is not None:
            self._finish(waiting, _SEQUENCED_BEFORE, None)
            return
        footer = waiting.footer
        reason = self._epochs.refusal(footer.write_epoch, footer.incarnation) or "it was sequenced before"
        self._finish(waiting, ObjectVerdict(_STALE, [], f"{waiting.request.key}: {reason}"), None)

    def _finish(self, waiting: Pending, verdict: ObjectVerdict, encoded: bytes | None) -> None:
        nonce = waiting.footer.nonce
        self._waiting.pop(nonce, None)
        if encoded is not None:
            self._verdicts[nonce] = encoded
            if len(self._verdicts) > VERDICTS_REMEMBERED:
                self._verdicts.popitem(last=False)
        if not waiting.done.done():
            waiting.done.set_result(verdict)
