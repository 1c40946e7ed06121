"""The upload stage of journaled topics: one PUT into a sequence's next slot."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode

from braidlog.control.interface import ABANDONED
from braidlog.objects.format import TRAILER_BYTES, CorruptObject, decode_trailer
from braidlog.objects.keys import journal_key
from braidlog.objects.store import AlreadyExists, NotFound, Store, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import Remedy
from braidlog.writing.journal.sequence import IDLE_S_MAX, JournalSequence
from braidlog.writing.packing import Packer
from braidlog.writing.request import Draft
from braidlog.writing.uploads import Uploads

log = structlog.get_logger(__name__)

SEALED_OUT_MAX = 8
"""How many sequences to try for one file. Each time somebody must have sealed a sequence that was just opened."""


class SequenceTooOld(StoreError):
    """A file went into a sequence that may be deleted by now."""

    remedy = Remedy.CHECK_OUTCOME


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """The journal's counters so far."""

    files: int
    """Files put into slots."""
    bytes: int
    sequences: int
    """Sequences opened so far."""
    open_sequences: int
    sealed_out: int
    """Files that found their slot fenced and went to another sequence."""
    failed: int


class JournalUploader:
    """Puts journaled topics' objects into slots.

    There they are found and sequenced, whatever becomes of this agent.

    Several sequences are open where uploads are slow: one that waits for its lowest slot does not hold up the rest.
    """

    def __init__(
        self,
        store: Store,
        packer: Packer,
        uploads: Uploads,
        clock: Clock,
        *,
        sequence_age_s: float,
        on_sequence_ended: Callable[[int, int], None],
    ) -> None:
        """`on_sequence_ended` gets the number of a sequence, and how many files it has.

        It is complete. For a sequence that was left, it gets `ABANDONED`.
        """
        self._store = store
        self._packer = packer
        self._uploads = uploads
        self._clock = clock
        self._sequence_age_s = sequence_age_s
        self._on_sequence_ended = on_sequence_ended
        self._open: list[JournalSequence] = []
        self._opened = 0
        self._age_handle: asyncio.Handle | None = None
        self._files = self._bytes = self._sealed_out = self._failed = 0

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            self._files, self._bytes, self._opened, len(self._open), self._sealed_out, self._failed
        )

    def submit(self, draft: Draft) -> None:
        # Sequences protect a journal's files, so the write epoch may be unknown, as it is while the control plane is
        # away.
        self._packer.pack(draft, max(0, self._packer.writer.write_epoch()))
        # A file that arrives late is sequenced all the same.
        self._uploads.start(draft, self._put_counted, failed_code=ErrorCode.not_enough_replicas_after_append)

    async def take_in(self, draft: Draft) -> None:
        """Put a packed draft into a slot that was meant to go elsewhere.

        It keeps its nonce, so that it is sequenced once, even if it is stored in both places.
        """
        await self._put(draft)
        self._files += 1
        self._bytes += len(draft.packed)

    async def _put_counted(self, draft: Draft) -> None:
        try:
            await self.take_in(draft)
        except StoreError:
            self._failed += 1
            raise

    async def _put(self, draft: Draft) -> None:
        """Return when the draft is in a slot where it will be found."""
        for _ in range(SEALED_OUT_MAX):
            sequence, slot = self._take_slot()
            draft.key = journal_key(self._packer.writer.incarnation, sequence.number, slot)
            try:
                if await self._put_or_find(draft):
                    sequence.complete(slot)
                    if sequence not in self._open:  # open ones are looked at when they are closed
                        self._look_ended(sequence)
                    if sequence.may_acknowledge(self._clock.boot_s()):
                        return
                    raise SequenceTooOld(f"{draft.key}: the upload took too long", help="Is this process paused?")
            except BaseException:
                # The file may be there, or may still arrive. Then it is sequenced, and its producer sends it again.
                self._leave(sequence, slot)
                raise
            log.info("another process sealed this journal sequence", key=draft.key)
            self._sealed_out += 1
            self._leave(sequence, slot)
        raise AlreadyExists(f"{draft.key} and slots of other sequences before it were taken")

    async def _put_or_find(self, draft: Draft) -> bool:
        """Put the draft into its slot. Return False if the slot is fenced."""
        try:
            await self._store.put(draft.key, draft.packed)
        except AlreadyExists:
            # It may be ours: something between here and the store may have repeated the request.
            try:
                tail = await self._store.get_tail(draft.key, TRAILER_BYTES)
                nonce = decode_trailer(tail.data).nonce
            except (NotFound, CorruptObject):
                return False
            return tail.size == len(draft.packed) and nonce == decode_trailer(draft.packed).nonce
        return True

    def _take_slot(self) -> tuple[JournalSequence, int]:
        now_s = self._clock.boot_s()
        for sequence in self._open:
            slot = sequence.take_slot(now_s)
            if slot is not None:
                return sequence, slot
        self._forget_closed()
        sequence = JournalSequence(self._opened, opened_s=now_s, age_s_max=self._sequence_age_s)
        self._opened += 1
        self._open.append(sequence)
        self._watch_age()
        slot = sequence.take_slot(now_s)
        assert slot is not None
        return sequence, slot

    def _leave(self, sequence: JournalSequence, slot: int) -> None:
        sequence.leave(slot)
        if sequence in self._open:
            self._open.remove(sequence)
        self._look_ended(sequence)

    def _look_ended(self, sequence: JournalSequence) -> None:
        if sequence.is_abandoned:
            self._on_sequence_ended(sequence.number, ABANDONED)
            return
        slot_count = sequence.slot_count(self._clock.boot_s())
        if slot_count is not None:
            self._on_sequence_ended(sequence.number, slot_count)

    def _forget_closed(self) -> None:
        now_s = self._clock.boot_s()
        closed = [sequence for sequence in self._open if sequence.is_closed(now_s)]
        for sequence in closed:
            self._open.remove(sequence)
            self._look_ended(sequence)

    def _watch_age(self) -> None:
        if self._age_handle is None:
            delay_s = min(self._sequence_age_s, IDLE_S_MAX)
            self._age_handle = asyncio.get_running_loop().call_later(delay_s, self._aged)

    def _aged(self) -> None:
        """Close old and idle sequences, even if nothing is written to them any more."""
        self._age_handle = None
        self._forget_closed()
        if self._open:
            self._watch_age()

    def close(self) -> None:
        """End all sequences. Called when no upload is under way."""
        if self._age_handle is not None:
            self._age_handle.cancel()
            self._age_handle = None
        for sequence in self._open:
            sequence.end()
        self._forget_closed()
