"""Which numbers of an idempotent producer were sequenced, where they did not come in order. Pure.

Of each epoch in each partition, all numbers before the next one were sequenced but those that are missing. A producer
that only ever came in order has nothing missing. Numbers run around a circle of 2^31: they are counted on from wherever
the epoch began (positions), and a number on the wire means the position nearest to the next one.
"""

from enum import Enum

import msgspec

from braidlog.control.intervals import Ranges, add, contains, overlaps, remove
from braidlog.objects.layout import SEQUENCE_END

HALF_CIRCLE = SEQUENCE_END // 2

RANGES_MISSING_MAX = 256
"""Of one epoch. Beyond it the two oldest become one, so what lies between them may be appended once more if it is sent
once more; it is never taken for a duplicate that it is not."""
EARLIER_EPOCHS_MAX = 256
"""A producer may take a new one with each trouble of a long outage. Of older ones nothing is known: what arrives is
appended."""


class Standing(Enum):
    NEXT = "next"
    """Follows what is there."""
    AHEAD = "ahead"
    """Something before it is not there."""
    SEQUENCED = "sequenced"
    """All of it is there."""
    MISSING = "missing"
    """None of it is there, but what follows it is."""
    PARTLY = "partly"
    """Some of it is there: no producer sends such a thing twice in different pieces, but who knows."""


class Numbers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one epoch. Persisted: keep it stable."""

    epoch: int
    next: int
    """A position."""
    missing: Ranges = ()


class Gaps(msgspec.Struct, frozen=True, array_like=True):
    """What makes a producer's state in a partition more than its epoch and its next number. Persisted."""

    next: int
    """The position of a number that the current epoch has come past; the next one is less than a circle ahead."""
    missing: Ranges = ()
    """Of the current epoch."""
    earlier: tuple[Numbers, ...] = ()
    """Epochs before the current one, the oldest first."""

    @property
    def is_trivial(self) -> bool:
        return not self.missing and not self.earlier


def start_of_epoch(epoch: int) -> Numbers:
    """Before the first batch: each epoch begins with 0."""
    return Numbers(epoch, 0)


def start_anywhere(epoch: int, sequence: int) -> Numbers:
    """Before the first batch that is known. What came before it may still come, or may have been forgotten."""
    return Numbers(epoch, sequence, ((sequence - HALF_CIRCLE, sequence),))


def position_of(next_position: int, sequence: int) -> int:
    delta = (sequence - next_position) % SEQUENCE_END
    return next_position + (delta if delta < HALF_CIRCLE else delta - SEQUENCE_END)


def standing(numbers: Numbers, start: int, end: int) -> Standing:
    """Of the positions [start, end)."""
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
    """Whether the position lies before all that is known, so that it may have been sequenced before that."""
    if not numbers.missing:
        return False
    known_from = numbers.missing[0][1]
    return numbers.missing[0][0] <= numbers.next - HALF_CIRCLE and start < known_from


def take(numbers: Numbers, start: int, end: int) -> Numbers:
    """With [start, end) sequenced. What is passed over is missing from now on."""
    following = max(numbers.next, end)
    missing = remove(numbers.missing, start, end)
    if start > numbers.next:
        missing = add(missing, numbers.next, start)
    return Numbers(numbers.epoch, following, _bounded(missing, following))


def _bounded(missing: Ranges, following: int) -> Ranges:
    if not missing:
        return missing
    # Half a circle behind, a number would mean another position.
    missing = remove(missing, missing[0][0], following - HALF_CIRCLE)
    while len(missing) > RANGES_MISSING_MAX:
        missing = ((missing[0][0], missing[1][1]), *missing[2:])
    return missing


def with_earlier(earlier: tuple[Numbers, ...], numbers: Numbers) -> tuple[Numbers, ...]:
    """Remember an epoch that is not the current one."""
    kept = [each for each in earlier if each.epoch != numbers.epoch]
    kept.append(numbers)
    kept.sort(key=lambda each: each.epoch)
    return tuple(kept[-EARLIER_EPOCHS_MAX:])
