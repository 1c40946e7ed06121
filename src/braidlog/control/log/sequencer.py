"""The sequencer: gives every batch its offsets, once and durably.

The batches come in uploaded objects.

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
from kio.schema.errors import ErrorCode

from braidlog.control.catalog import Catalog
from braidlog.control.foundation import Foundation
from braidlog.control.interface import CommitObject, ObjectVerdict
from braidlog.control.journals.held_batches import HeldBatch
from braidlog.control.journals.plan import JournalCounts, JournalPlan
from braidlog.control.journals.state import JournalState
from braidlog.control.log.plan import Pending, SequencingPlan
from braidlog.control.log.producers import Producer, Producers
from braidlog.control.log.recent import RecentExtents
from braidlog.control.log.write_epochs import WriteEpochs
from braidlog.control.metadata.counters import NumberBlocks
from braidlog.control.metadata.store import MetadataConflict, Transaction
from braidlog.control.transactions.coordinator import Transactions
from braidlog.objects.format import CorruptObject, decode_footer_bytes, extents_length
from braidlog.objects.keys import JOURNAL_PREFIX, parse_data_key, parse_journal_key
from braidlog.objects.layout import KAFKA_BATCHES, NEW_RECORDS, ExtentEntry, Footer
from braidlog.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from braidlog.runtime.errors import BraidError, ControlUnavailable, Remedy

EXTENTS_PER_GROUP_MAX = 5_000
OBJECTS_WAITING_MAX = 10_000
VERDICTS_REMEMBERED = 4_096
"""How many verdicts to keep in memory, for immediate retries. Older ones are in the metadata."""

_TRANSACTIONAL_OR_CONTROL = TRANSACTIONAL_BIT | CONTROL_BIT

_STALE = int(ErrorCode.not_leader_or_follower)
_log = structlog.get_logger(__name__)
_SEQUENCED_BEFORE = ObjectVerdict(0, [], "it was sequenced before")

_RESTORED = ("restored", 0)
"""Stands for the journal of restored objects, which has no slots."""

_decode_verdict = msgspec.msgpack.Decoder(ObjectVerdict).decode


class RefusedTogether(BraidError):
    """None of these objects was sequenced, because one of them cannot be."""

    remedy = Remedy.FIX_INPUT

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = int(error_code)


def _read_footer(request: CommitObject) -> Footer:
    footer = decode_footer_bytes(request.footer)
    # A journal file is never refused for its epoch: the record of its sequence protects it from the sweeper.
    if not _is_journaled(request) and parse_data_key(request.key).write_epoch != footer.write_epoch:
        raise CorruptObject(f"{request.key} names another write epoch than its footer, {footer.write_epoch}")
    if footer.kind != NEW_RECORDS:
        raise CorruptObject(f"{request.key} holds records that have offsets already, and is never appended")
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
    """Return the batches of a known journal file that are still unsequenced.

    None means that there are none.

    The object was committed before it was journaled, and some of its batches were refused then. A journaled batch
    cannot be refused, because its producer was told that it is written. So these are sequenced as an object of their
    own.
    """
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
    """Return the producers of a group, in the order in which they first appear."""
    found: dict[int, None] = {}
    for waiting in group:
        for extent in waiting.footer.extents:
            for batch in extent.batches:
                found[batch.producer_id] = None
    found.pop(-1, None)
    return found


class Sequencer:
    """Sequences uploaded objects, in groups that share a transaction."""

    def __init__(
        self,
        foundation: Foundation,
        catalog: Catalog,
        producers: Producers,
        epochs: WriteEpochs,
        recent: RecentExtents,
        transactions: Transactions,
        numbers: NumberBlocks,
        journals: JournalState,
    ) -> None:
        """`numbers` gives each sequenced object its number, in the order of sequencing."""
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._catalog = catalog
        self._producers = producers
        self._epochs = epochs
        self._recent_extents = recent
        self._feed = foundation.feed
        self._clock = foundation.clock
        self._transactions = transactions
        self._numbers = numbers
        self._sequences = journals.sequences
        self._held = journals.held
        self._backlog = journals.backlog
        self.journal_counts = JournalCounts()
        self._queue: deque[Pending] = deque()
        self._waiting: dict[bytes, Pending] = {}
        """The objects that are queued or in flight, by nonce. A second commit of an object waits for the same
        verdict."""
        self._verdicts: OrderedDict[bytes, bytes] = OrderedDict()
        """Encoded verdicts by nonce: decoded, they would be so many small objects that garbage collection gets slow."""
        self._worker: asyncio.Task[None] | None = None

    async def commit(self, request: CommitObject) -> ObjectVerdict:
        """Sequence an object, and return the verdict on each of its batches.

        The nonce identifies the object: a repeated commit gets the first verdict.
        Raises `ControlUnavailable` if too many objects wait.
        """
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
            # If every caller has gone away, nobody retrieves an error.
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            waiting = self._waiting[nonce] = _pending(request, footer, done)
            self._queue.append(waiting)
            if self._worker is None:
                self._worker = asyncio.create_task(self._work(), name="sequencer")
        return await asyncio.shield(waiting.done)

    def _is_copy(self, request: CommitObject) -> bool:
        """Whether the file copies a known object, and its slot is not yet recorded.

        The slot is recorded once it is sequenced.
        """
        if not _is_journaled(request):
            return False
        place = parse_journal_key(request.key)
        return not self._sequences.is_sequenced((place.incarnation, place.sequence), place.slot)

    async def commit_together(
        self, requests: Sequence[CommitObject], also: Callable[[Transaction, list[ObjectVerdict]], None]
    ) -> list[ObjectVerdict]:
        """Sequence all of these in one transaction, or none (`RefusedTogether`).

        Call with the state lock held. `also` writes in the same transaction. No batch may have a producer: then none
        can be a duplicate or out of order, and the checks here cover everything that can be wrong.
        """
        footers = [_read_footer(request) for request in requests]
        for request, footer in zip(requests, footers, strict=True):
            if _is_journaled(request):
                raise RefusedTogether(ErrorCode.invalid_record, f"{request.key}: only agents write journals")
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

            await self._metadata.plan(write)
        except BaseException:
            plan.discard()
            raise
        self._apply(plan)
        return verdicts

    def _check_acceptable(self, key: str, footer: Footer) -> None:
        reason = self._epochs.refusal(footer.write_epoch, footer.incarnation)
        if reason is not None:
            raise RefusedTogether(ErrorCode.not_leader_or_follower, f"{key}: {reason}")
        for extent in footer.extents:
            topic = self._catalog.topics.get(extent.topic_id)
            if topic is None:
                raise RefusedTogether(ErrorCode.unknown_topic_id, f"{key}: topic {extent.topic_id.hex()} is gone")
            if extent.partition >= len(topic.partitions):
                message = f"{key}: {topic.info.name} has no partition {extent.partition}"
                raise RefusedTogether(ErrorCode.unknown_topic_or_partition, message)
            if extent.payload != KAFKA_BATCHES or any(
                batch.producer_id >= 0 or batch.attributes & _TRANSACTIONAL_OR_CONTROL for batch in extent.batches
            ):
                message = f"{key}: only record batches outside of transactions and without a producer"
                raise RefusedTogether(ErrorCode.invalid_record, message)

    async def append_restored(self, requests: Sequence[CommitObject]) -> list[ObjectVerdict]:
        """Append objects whose sequencing was lost, in this order.

        They are treated as journal files are: producers were told that they are written, so no batch is refused.
        """
        loop = asyncio.get_running_loop()
        group = [Pending(each, _read_footer(each), loop.create_future(), _RESTORED) for each in requests]
        async with self._state_lock:
            await self._commit_group(list(group))
        return [await waiting.done for waiting in group]

    async def append_held(self) -> None:
        """Append all held batches: what they wait for will not come."""
        async with self._state_lock:
            if self._held.count:
                await self.give_up(self._held.oldest(self._held.count))

    async def close(self) -> None:
        """Wait for the commits in flight."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        try:
            while self._queue:
                async with self._state_lock:
                    await self._commit_group(self._take_group())
                    if excess_count := self._held.excess_count:
                        await self._give_up_oldest(excess_count)
        finally:
            self._worker = None

    async def _give_up_oldest(self, count: int) -> None:
        try:
            await self.give_up(self._held.oldest(count))
        except BraidError as error:
            _log.warning("could not append held batches beyond the limit", error=str(error), help=error.help)

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
            # One object of the group is at fault, for example by a key that exists already. The others go on.
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
        """Sequence the group.

        Returns the objects that are left, if some of the group turned out to be sequenced before.
        """
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
            repeated = await self._metadata.plan(plan.write) if plan.verdicts else {}
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
        """Record the slots of journal files that were sequenced before from another slot."""
        journal = JournalPlan(self._sequences, self._held, self._producers.start_plan(), self._clock.wall_ms())
        slots = [(each.journal, each.slot) for each in copies if each.journal is not None]
        for key, slot in slots:
            journal.add_slot(key, slot)
        if slots:
            await self._metadata.plan(journal.write)
            journal.apply(self.journal_counts)

    async def give_up(self, batches: Sequence[HeldBatch]) -> None:
        """Append held batches, and those that wait for them.

        Call with the state lock held.
        """
        await self._numbers.reserve(1)
        producers = await self._producers.load(dict.fromkeys(batch.producer_id for batch in batches))
        plan = self._start_plan(producers)
        try:
            plan.give_up(list(batches), self._catalog.partitions, self._numbers.take())
            plan.prepare(self._recent_extents.make_room(plan.extent_count, plan.batch_count))
            await self._metadata.plan(plan.write)
        except BaseException:
            plan.discard()
            raise
        self._apply(plan)

    def _is_over(self, waiting: Pending) -> bool:
        """Whether the object was either sequenced before, or can never be."""
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
            self._backlog,
            now_ms,
        )

    def _apply(self, plan: SequencingPlan) -> None:
        """Make a durable plan visible."""
        plan.apply(self._recent_extents)
        plan.journal.apply(self.journal_counts)
        self._transactions.applied(plan.transactions)
        self._feed.publish(plan.events)

    async def _refuse_stale(self, stale: list[Pending]) -> None:
        """Refuse stale objects, except those that were sequenced before."""

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
