"""The upload stage of journaled topics: one PUT into the next slot of a sequence, and the object will be sequenced."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.sequences import Sequence
from braidlog.objects.format import TRAILER_BYTES, CorruptObject, decode_trailer
from braidlog.objects.keys import journal_key
from braidlog.objects.store import AlreadyExists, Bytes, NotFound, Store, StoreError, StoreFull
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Remedy
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.arena import Arena
from braidlog.writing.packing import pack
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage

log = structlog.get_logger(__name__)

SEALED_OUT_MAX = 8
"""So often one file is put into another sequence. Each time somebody must have sealed one that was just opened."""


class SequenceTooOld(StoreError):
    """A file went into a sequence that may have been deleted meanwhile."""

    remedy = Remedy.CHECK_OUTCOME


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    files: int
    """Put into sequences."""
    bytes: int
    sequences: int
    """Opened so far."""
    open_sequences: int
    sealed_out: int
    """Files that found their slot fenced, and went to another sequence."""
    failed: int


class Journal:
    """What is in a slot is found and sequenced, whatever becomes of this agent.

    Several sequences are open where uploads are slow: one that waits for its lowest slot does not hold up the rest.
    """

    def __init__(
        self,
        next_stage: DraftStage,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        *,
        incarnation: str,
        zone: str,
        write_epoch: Callable[[], int],
        sequence_age_s: float,
        on_uploaded: Callable[[str, Bytes], None],
        on_finished: Callable[[Draft], None],
        on_ended: Callable[[int, int], None],
        tasks: TaskGroup,
        arena: Arena,
    ) -> None:
        """`on_ended` is told the number of a sequence that is whole, and how many files it has."""
        self._next = next_stage
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._zone = zone
        self._write_epoch = write_epoch
        self._sequence_age_s = sequence_age_s
        self._on_uploaded = on_uploaded
        self._on_finished = on_finished
        self._on_ended = on_ended
        self._tasks = tasks
        self._arena = arena
        self._open: list[Sequence] = []
        self._opened = 0
        self._age_handle: asyncio.Handle | None = None
        self._files = self._bytes = self._sealed_out = self._failed = 0

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            self._files, self._bytes, self._opened, len(self._open), self._sealed_out, self._failed
        )

    def submit(self, draft: Draft) -> None:
        pack(
            draft,
            self._arena,
            nonce=self._entropy.token(16),
            # Sequences protect a journal's files, so this may be unknown, as it is while the control plane is away.
            write_epoch=max(0, self._write_epoch()),
            incarnation=self._incarnation,
            created_ms=self._clock.wall_ms(),
            zone=self._zone,
        )
        self._tasks.spawn(self._upload(draft))

    async def take_in(self, draft: Draft) -> None:
        """Put a draft into a slot that is packed already, because it was meant to go elsewhere. It keeps its nonce, so
        that it is sequenced once, whatever became of it there."""
        await self._put(draft)
        self._files += 1
        self._bytes += len(draft.packed)

    async def _upload(self, draft: Draft) -> None:
        try:
            await self._put(draft)
        except StoreError as error:
            self._failed += 1
            log.warning("upload failed", key=draft.key, bytes=len(draft.packed), error=str(error), help=error.help)
            # A file that arrives late is sequenced all the same.
            may_arrive = ErrorCode.not_enough_replicas_after_append
            code = ErrorCode.kafka_storage_error if isinstance(error, StoreFull) else may_arrive
            draft.fail(code, f"the object store did not take the data: {error}")
            return
        except BaseException:
            draft.fail(ErrorCode.not_enough_replicas_after_append, "the upload was given up")
            raise
        finally:
            self._on_finished(draft)
        self._files += 1
        self._bytes += len(draft.packed)
        self._on_uploaded(draft.key, draft.packed)
        self._next.submit(draft)

    async def _put(self, draft: Draft) -> None:
        """Return when the draft is in a slot where it will be found."""
        for _ in range(SEALED_OUT_MAX):
            sequence, slot = self._take_slot()
            draft.key = journal_key(self._incarnation, sequence.number, slot)
            try:
                if await self._put_or_find(draft):
                    sequence.complete(slot)
                    if sequence not in self._open:  # those that are, are looked at when they are closed
                        self._look_ended(sequence)
                    if sequence.may_acknowledge(self._clock.monotonic_s()):
                        return
                    raise SequenceTooOld(f"{draft.key}: the upload took too long", help="Is this process paused?")
            except BaseException:
                # The file may be there, or may yet arrive. It will be sequenced then, and its producer sends it again.
                self._leave(sequence)
                raise
            log.info("a sequence was sealed by somebody else", key=draft.key)
            self._sealed_out += 1
            self._leave(sequence)
        raise AlreadyExists(f"{draft.key} and slots of other sequences before it were taken")

    async def _put_or_find(self, draft: Draft) -> bool:
        """Whether the slot has this draft now. If not, it was sealed."""
        try:
            await self._store.put(draft.key, draft.packed)
        except AlreadyExists:
            # It may be ours, where a request was repeated by what lies between here and the store.
            try:
                tail = await self._store.get_tail(draft.key, TRAILER_BYTES)
                nonce = decode_trailer(tail.data).nonce
            except (NotFound, CorruptObject):
                return False
            return tail.size == len(draft.packed) and nonce == decode_trailer(draft.packed).nonce
        return True

    def _take_slot(self) -> tuple[Sequence, int]:
        now_s = self._clock.monotonic_s()
        for sequence in self._open:
            slot = sequence.take_slot(now_s)
            if slot is not None:
                return sequence, slot
        self._forget_closed()
        sequence = Sequence(self._opened, opened_s=now_s, age_s_max=self._sequence_age_s)
        self._opened += 1
        self._open.append(sequence)
        self._watch_age()
        slot = sequence.take_slot(now_s)
        assert slot is not None
        return sequence, slot

    def _leave(self, sequence: Sequence) -> None:
        sequence.leave()
        if sequence in self._open:
            self._open.remove(sequence)

    def _look_ended(self, sequence: Sequence) -> None:
        slot_count = sequence.slot_count(self._clock.monotonic_s())
        if slot_count is not None:
            self._on_ended(sequence.number, slot_count)

    def _forget_closed(self) -> None:
        now_s = self._clock.monotonic_s()
        closed = [sequence for sequence in self._open if sequence.is_closed(now_s)]
        for sequence in closed:
            self._open.remove(sequence)
            self._look_ended(sequence)

    def _watch_age(self) -> None:
        if self._age_handle is None:
            self._age_handle = asyncio.get_running_loop().call_later(self._sequence_age_s, self._aged)

    def _aged(self) -> None:
        """Sequences that nothing is written to any more end as well."""
        self._age_handle = None
        self._forget_closed()
        if self._open:
            self._watch_age()

    def close(self) -> None:
        """End all sequences. Nothing is under way any more."""
        if self._age_handle is not None:
            self._age_handle.cancel()
            self._age_handle = None
        for sequence in self._open:
            sequence.end()
        self._forget_closed()
