"""The sequence numbers of an idempotent producer that are still missing. Pure.

In each producer epoch and partition, all numbers before the next one were sequenced, except those that are missing. A
producer whose batches only ever came in order has none missing. Sequence numbers wrap at 2^31. They are counted on from
where the epoch began (*positions*), and a number on the wire means the position nearest to the next one.
"""

from enum import Enum

import msgspec

from braidlog.control.intervals import Ranges, add, contains, overlaps, remove
from braidlog.objects.layout import SEQUENCE_END

HALF_CIRCLE = SEQUENCE_END // 2

RANGES_MISSING_MAX = 256
"""The most missing ranges of one epoch. Beyond it the two oldest become one: what lies between them may be appended
again if it is sent again, but is never mistaken for a duplicate."""
EARLIER_EPOCHS_MAX = 256
"""The most earlier epochs to remember: a producer may begin one with every failure of a long outage. What arrives of an
epoch that is forgotten is appended."""


class Standing(Enum):
    NEXT = "next"
    """The batch follows the last one."""
    AHEAD = "ahead"
    """A batch before it has not arrived."""
    SEQUENCED = "sequenced"
    """All of it was sequenced."""
    MISSING = "missing"
    """None of it was sequenced, but batches after it were."""
    PARTLY = "partly"
    """Some of it was sequenced. No known producer repeats its records in other batches, but it is possible."""


class Numbers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sequenced numbers of one epoch. Persisted: keep it stable."""

    epoch: int
    next: int
    """The position of the number that comes next."""
    missing: Ranges = ()


class Gaps(msgspec.Struct, frozen=True, array_like=True):
    """The part of a producer's state that its epoch and its next number do not tell.

    Persisted.
    """

    next: int
    """A position that the current epoch has passed; the next one is less than a full circle ahead."""
    missing: Ranges = ()
    """The missing positions of the current epoch."""
    earlier: tuple[Numbers, ...] = ()
    """The epochs before the current one, the oldest first."""

    @property
    def is_trivial(self) -> bool:
        return not self.missing and not self.earlier


def start_of_epoch(epoch: int) -> Numbers:
    """Return the numbers of an epoch without batches: it begins with 0."""
    return Numbers(epoch, 0)


def start_anywhere(epoch: int, sequence: int) -> Numbers:
    """Return the numbers before the first known batch.

    Earlier batches may still come, or may have been forgotten.
    """
    return Numbers(epoch, sequence, ((sequence - HALF_CIRCLE, sequence),))


def position_of(next_position: int, sequence: int) -> int:
    delta = (sequence - next_position) % SEQUENCE_END
    return next_position + (delta if delta < HALF_CIRCLE else delta - SEQUENCE_END)


def standing(numbers: Numbers, start: int, end: int) -> Standing:
    """Return how the positions [start, end) stand to what was sequenced."""
    if start == numbers.next:
        return Standing.NEXT
    if start > numbers.next:
        return Standing.AHEAD
    if end > numbers.next:
        return Standing.PARTLY
    if not overlaps(numbers.missing, start, end):
        return Standing.SEQUENCED
    return Standing.MISSING if contains(numbers.missing, start, end) else Standing.PARTLY


def may_be_older(numbers: Numbers, start: int) -> bool:
    """Whether the position lies before all that is known.

    Then it may have been sequenced earlier.
    """
    if not numbers.missing:
        return False
    known_from = numbers.missing[0][1]
    return numbers.missing[0][0] <= numbers.next - HALF_CIRCLE and start < known_from


def take(numbers: Numbers, start: int, end: int) -> Numbers:
    """Return the numbers with [start, end) sequenced.

    Positions that are skipped are missing from now on.
    """
    following = max(numbers.next, end)
    missing = remove(numbers.missing, start, end)
    if start > numbers.next:
        missing = add(missing, numbers.next, start)
    return Numbers(numbers.epoch, following, _bounded(missing, following))


def _bounded(missing: Ranges, following: int) -> Ranges:
    if not missing:
        return missing
    # More than half a circle behind, a number would mean another position.
    missing = remove(missing, missing[0][0], following - HALF_CIRCLE)
    while len(missing) > RANGES_MISSING_MAX:
        missing = ((missing[0][0], missing[1][1]), *missing[2:])
    return missing


def with_earlier(earlier: tuple[Numbers, ...], numbers: Numbers) -> tuple[Numbers, ...]:
    """Return the earlier epochs with one more."""
    kept = [each for each in earlier if each.epoch != numbers.epoch]
    kept.append(numbers)
    kept.sort(key=lambda each: each.epoch)
    return tuple(kept[-EARLIER_EPOCHS_MAX:])
