"""The state of an idempotent producer in a partition: which batch may follow."""

import struct

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.control.log.gaps import (
    Gaps,
    Numbers,
    Standing,
    may_be_older,
    position_of,
    standing,
    start_anywhere,
    start_of_epoch,
    take,
    with_earlier,
)
from braidlog.control.log.judgement import (
    APPENDED,
    APPENDED_BEHIND,
    APPENDED_LATE,
    HELD,
    OFFSET_UNKNOWN,
    Judgement,
    duplicate_of,
)
from braidlog.objects.layout import SEQUENCE_END

BATCHES_REMEMBERED = 5
"""How many batches to remember. Clients have at most five requests in flight, so a retry is among the last five."""

OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
_DUPLICATE = int(ErrorCode.duplicate_sequence_number)
_INVALID_EPOCH = int(ErrorCode.invalid_producer_epoch)

REMEMBERED = struct.Struct(">iiq")
"""A remembered batch: first and last sequence number, base offset. Persisted: keep it stable.

There may be a million states. As tuples they would take ten times the memory, and would be encoded at every write.
"""
_OTHERS_BYTES = (BATCHES_REMEMBERED - 1) * REMEMBERED.size

_remember = REMEMBERED.pack
_encode = msgspec.msgpack.Encoder().encode
_decode_gaps = msgspec.msgpack.Decoder(Gaps).decode


Departed = tuple[int, int]
"""Epoch and next sequence number of a producer in a deleted partition."""


class ProducerPartition:
    """The state of one producer in one partition. Epoch -1: it has written nothing.

    `batches` are the last ones of the newest epoch, back to back, the newest last. `planned_*` are the values that the
    plan in progress would set, and `planned_next_number` is the next sequence number. All numbers before it were
    sequenced, except those in `gaps`. `gaps` None: nothing is missing, and nothing is known of earlier epochs.
    """

    __slots__ = (
        "batches",
        "epoch",
        "gaps",
        "heir_of",
        "partition_id",
        "planned_batches",
        "planned_epoch",
        "planned_gaps",
        "planned_next_number",
        "producer_id",
        "touched",
        "unsettled_from",
    )

    def __init__(
        self, producer_id: int, partition_id: int, epoch: int = -1, batches: bytes = b"", gaps: Gaps | None = None
    ) -> None:
        self.producer_id = producer_id
        self.partition_id = partition_id
        self.epoch = self.planned_epoch = epoch
        self.batches = self.planned_batches = batches
        self.gaps = self.planned_gaps = gaps
        self.planned_next_number = next_sequence_number(batches)
        self.touched = False
        """Whether the plan in progress changes this state."""
        self.unsettled_from = 0
        """The first object that the state's row does not include; 0: it includes all. The recent objects from there on
        hold the rest durably, until the row is written."""
        self.heir_of: Departed | None = None
        """The producer's state in the same partition of an earlier topic of this name."""

    def judge(self, epoch: int, first: int, count: int, offset: int, any_start: bool) -> Judgement:
        """Plan a batch of a classic topic, which would get `offset`.

        `any_start` accepts any first sequence number from a producer that has no state here.
        """
        planned_epoch = self.planned_epoch
        last = first + count - 1
        if last >= SEQUENCE_END:
            last -= SEQUENCE_END
        if epoch == planned_epoch:
            batches = self.planned_batches
            if first == self.planned_next_number:
                self.planned_batches = batches[-_OTHERS_BYTES:] + _remember(first, last, offset)
                self.planned_next_number = last + 1 if last + 1 < SEQUENCE_END else 0
                return APPENDED
            for known_first, known_last, known_offset in REMEMBERED.iter_unpack(batches):
                if known_first == first and known_last == last:
                    return duplicate_of(int(known_offset))
            if self.planned_gaps is not None and self._take_missing(first, count):
                return APPENDED_LATE
            # Sequence numbers wrap, so "before" means less than half the circle behind.
            behind_oldest = (REMEMBERED.unpack_from(batches)[0] - first) % SEQUENCE_END
            return _DUPLICATE if 0 < behind_oldest < SEQUENCE_END // 2 else OUT_OF_ORDER
        if epoch < planned_epoch:
            return _INVALID_EPOCH
        if first != 0 and not (planned_epoch < 0 and (any_start or self._is_heir(epoch))):
            return OUT_OF_ORDER
        self._begin(epoch, first, count, offset, any_start)
        return APPENDED

    def _take_missing(self, first: int, count: int) -> bool:
        """Sequence these numbers if they are known to be missing.

        Returns whether they were.
        """
        numbers = self._numbers()
        start = position_of(numbers.next, first)
        end = start + count
        if standing(numbers, start, end) is not Standing.MISSING or may_be_older(numbers, start):
            return False
        self._set_numbers(take(numbers, start, end))
        return True

    def judge_journaled(
        self, epoch: int, first: int, count: int, offset: int, *, any_start: bool, force: bool = False
    ) -> Judgement:
        """Plan a journaled batch, which would get `offset`. It is never refused.

        `any_start` accepts any first sequence number from a producer that has no state here. `force` appends the batch
        even if others before it are missing, because it has waited long enough.
        """
        planned_epoch = self.planned_epoch
        if epoch < planned_epoch:
            return self._judge_older(epoch, first, count, any_start=any_start, force=force)
        if epoch > planned_epoch:
            if first != 0 and not force and not (planned_epoch < 0 and (any_start or self._goes_on(epoch, first))):
                return HELD
            self._begin(epoch, first, count, offset, any_start)
            return APPENDED
        if first == self.planned_next_number:
            self._append(first, count, offset)
            return APPENDED
        numbers = self._numbers()
        start = position_of(numbers.next, first)
        end = start + count
        found = standing(numbers, start, end)
        if found is Standing.SEQUENCED:
            return duplicate_of(self._offset_of(first, count))
        if found is Standing.AHEAD and not force:
            return HELD
        taken = take(numbers, start, end)
        if end > numbers.next:
            self._append(first, count, offset)
        self._set_numbers(taken)
        return APPENDED if found is Standing.AHEAD else APPENDED_LATE

    def _is_heir(self, epoch: int) -> bool:
        """Whether the producer wrote to an earlier topic of this name in this epoch.

        Then it need not begin at 0.
        """
        return self.heir_of is not None and self.heir_of[0] == epoch

    def _goes_on(self, epoch: int, first: int) -> bool:
        """Whether no batch can be missing between the earlier topic and this batch."""
        return (
            self.heir_of is not None and self._is_heir(epoch) and position_of(self.heir_of[1], first) <= self.heir_of[1]
        )

    def _judge_older(self, epoch: int, first: int, count: int, *, any_start: bool, force: bool) -> Judgement:
        """Judge a batch of an earlier epoch.

        It is appended behind a later one, but in the order of its own.
        """
        gaps = self.planned_gaps or Gaps(self.planned_next_number)
        numbers = next((each for each in gaps.earlier if each.epoch == epoch), None)
        if numbers is None:
            numbers = start_anywhere(epoch, first) if any_start else start_of_epoch(epoch)
        start = position_of(numbers.next, first)
        found = standing(numbers, start, start + count)
        if found is Standing.SEQUENCED:
            return duplicate_of(OFFSET_UNKNOWN)
        if found is Standing.AHEAD and not force:
            return HELD
        earlier = with_earlier(gaps.earlier, take(numbers, start, start + count))
        self.planned_gaps = Gaps(gaps.next, gaps.missing, earlier)
        return APPENDED_BEHIND

    def replay(self, epoch: int, batch: bytes, any_start: bool) -> None:
        """Apply a batch that was appended.

        One that the state already includes has no effect.
        """
        first, last, offset = REMEMBERED.unpack(batch)
        if self.batches and offset <= _base_offset(self.batches):
            return
        count = (last - first) % SEQUENCE_END + 1
        self.judge_journaled(epoch, first, count, offset, any_start=any_start, force=True)
        self.apply_plan()

    def _offset_of(self, first: int, count: int) -> int:
        """Return where a batch of the current epoch was appended.

        It is `OFFSET_UNKNOWN` unless the batch is one of the last.
        """
        last = (first + count - 1) % SEQUENCE_END
        for known_first, known_last, known_offset in REMEMBERED.iter_unpack(self.planned_batches):
            if known_first == first and known_last == last:
                return int(known_offset)
        return OFFSET_UNKNOWN

    def _append(self, first: int, count: int, offset: int) -> None:
        last = (first + count - 1) % SEQUENCE_END
        self.planned_batches = self.planned_batches[-_OTHERS_BYTES:] + _remember(first, last, offset)
        self.planned_next_number = (last + 1) % SEQUENCE_END

    def _begin(self, epoch: int, first: int, count: int, offset: int, any_start: bool) -> None:
        """Append the first batch of an epoch."""
        numbers = start_of_epoch(epoch)
        if any_start and self.planned_epoch < 0 and first != 0:
            numbers = start_anywhere(epoch, first)
        earlier: tuple[Numbers, ...] = ()
        if self.planned_epoch >= 0:
            known = self.planned_gaps.earlier if self.planned_gaps is not None else ()
            earlier = with_earlier(known, self._numbers())
        start = position_of(numbers.next, first)
        numbers = take(numbers, start, start + count)
        self.planned_epoch, self.planned_batches = epoch, b""
        self._append(first, count, offset)
        gaps = Gaps(numbers.next, numbers.missing, earlier)
        self.planned_gaps = None if gaps.is_trivial else gaps

    def _numbers(self) -> Numbers:
        """Return the sequenced numbers of the current epoch."""
        gaps, sequence = self.planned_gaps, self.planned_next_number
        if gaps is None:
            return Numbers(self.planned_epoch, sequence)
        return Numbers(self.planned_epoch, gaps.next + (sequence - gaps.next) % SEQUENCE_END, gaps.missing)

    def _set_numbers(self, numbers: Numbers) -> None:
        gaps = Gaps(numbers.next, numbers.missing, self.planned_gaps.earlier if self.planned_gaps is not None else ())
        self.planned_gaps = None if gaps.is_trivial else gaps

    def order_of(self, epoch: int, first: int) -> tuple[int, int]:
        """Return a key that sorts this producer's batches in the order of sending."""
        if epoch == self.planned_epoch:
            return epoch, position_of(self._numbers().next, first)
        return epoch, position_of(0, first)

    def apply_plan(self) -> None:
        self.epoch, self.batches, self.gaps = self.planned_epoch, self.planned_batches, self.planned_gaps
        self.touched = False

    def discard_plan(self) -> None:
        self.planned_epoch, self.planned_batches, self.planned_gaps = self.epoch, self.batches, self.gaps
        self.planned_next_number = next_sequence_number(self.batches)
        self.touched = False


def remembered(first: int, count: int, offset: int) -> bytes:
    return _remember(first, (first + count - 1) % SEQUENCE_END, offset)


def encode_gaps(gaps: Gaps | None) -> bytes | None:
    return _encode(gaps) if gaps is not None else None


def decode_gaps(data: bytes | None) -> Gaps | None:
    return _decode_gaps(data) if data is not None else None


def last_sequence_number(batches: bytes) -> int:
    return int(REMEMBERED.unpack_from(batches, len(batches) - REMEMBERED.size)[1])


def next_sequence_number(batches: bytes) -> int:
    """Return the sequence number after the newest batch; -1: there is no batch."""
    if not batches:
        return -1
    last = last_sequence_number(batches)
    return last + 1 if last + 1 < SEQUENCE_END else 0


def _base_offset(batches: bytes) -> int:
    """Return the base offset of the newest batch."""
    return int(REMEMBERED.unpack_from(batches, len(batches) - REMEMBERED.size)[2])
