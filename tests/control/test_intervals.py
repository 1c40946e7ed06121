"""Sets as ranges, and the numbers of producers, against sets that are too simple to be wrong."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control import intervals
from braidlog.control.intervals import Ranges
from braidlog.control.log.gaps import (
    EARLIER_EPOCHS_MAX,
    HALF_CIRCLE,
    RANGES_MISSING_MAX,
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
from braidlog.objects.layout import SEQUENCE_END

numbers_ = st.sets(st.integers(0, 40))
bounds = st.tuples(st.integers(0, 40), st.integers(0, 40))


def ranges_of(members: set[int]) -> Ranges:
    return intervals.of_numbers(members)


@given(numbers_)
def test_ranges_are_in_order_and_apart(members: set[int]) -> None:
    ranges = ranges_of(members)
    assert {each for start, end in ranges for each in range(start, end)} == members
    assert all(start < end for start, end in ranges)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    assert intervals.count(ranges) == len(members)


@given(numbers_, bounds)
def test_what_is_added_removed_and_asked_is_as_with_sets(members: set[int], bound: tuple[int, int]) -> None:
    ranges, asked = ranges_of(members), set(range(*bound))
    assert intervals.add(ranges, *bound) == ranges_of(members | asked)
    assert intervals.remove(ranges, *bound) == ranges_of(members - asked)
    if asked:
        assert intervals.contains(ranges, *bound) == (asked <= members)
        assert intervals.overlaps(ranges, *bound) == bool(asked & members)


starts = st.sampled_from([0, 5, SEQUENCE_END - 6, SEQUENCE_END - 1])
batches = st.lists(st.tuples(st.integers(-4, 12), st.integers(1, 4)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(starts, batches)
def test_standings_are_as_with_sets_also_where_numbers_wrap(first: int, taken: list[tuple[int, int]]) -> None:
    numbers = start_anywhere(0, first)
    sequenced: set[int] = set()
    following = first
    for delta, count in taken:
        sequence = (first + delta) % SEQUENCE_END
        start = position_of(numbers.next, sequence)
        assert start == first + delta
        wanted = set(range(start, start + count))
        found = standing(numbers, start, start + count)
        if wanted <= sequenced:
            assert found is Standing.SEQUENCED
        elif start == following:
            assert found is Standing.NEXT
        elif start > following:
            assert found is Standing.AHEAD
        elif wanted & sequenced or start + count > following:
            assert found is Standing.PARTLY
        else:
            assert found is Standing.MISSING
        numbers = take(numbers, start, start + count)
        sequenced |= wanted
        following = max(following, start + count)
        assert numbers.next == following
        assert intervals.count(intervals.remove(numbers.missing, numbers.next - HALF_CIRCLE, min(sequenced))) == len(
            set(range(min(sequenced), following)) - sequenced
        )


def test_what_came_before_all_that_is_known_is_told_from_a_gap() -> None:
    numbers = take(start_anywhere(0, 10), 10, 15)
    assert may_be_older(numbers, 9)
    assert not may_be_older(numbers, 10)
    numbers = take(numbers, 20, 21)
    assert standing(numbers, 15, 20) is Standing.MISSING
    assert not may_be_older(numbers, 15)
    known = take(start_of_epoch(0), 0, 5)
    assert standing(known, 3, 4) is Standing.SEQUENCED
    assert not may_be_older(known, 0)


def test_too_many_gaps_become_fewer_and_none_is_taken_for_sequenced() -> None:
    numbers = start_of_epoch(0)
    for each in range(RANGES_MISSING_MAX + 10):
        numbers = take(numbers, 2 * each + 1, 2 * each + 2)
    assert len(numbers.missing) == RANGES_MISSING_MAX
    assert all(standing(numbers, 2 * each, 2 * each + 1) is Standing.MISSING for each in range(RANGES_MISSING_MAX + 10))
    # What lies between the oldest gaps is not known any more: it would be appended again, never lost.
    assert standing(numbers, 1, 2) is Standing.MISSING
    assert standing(numbers, 2 * RANGES_MISSING_MAX + 1, 2 * RANGES_MISSING_MAX + 2) is Standing.SEQUENCED


def test_a_gap_half_a_circle_behind_is_forgotten() -> None:
    numbers = take(start_of_epoch(0), 1, 2)
    assert numbers.missing == ((0, 1),)
    assert take(numbers, 2, HALF_CIRCLE + 2).missing == ()


def test_only_the_newest_of_the_earlier_epochs_are_remembered() -> None:
    epochs = [*range(0, EARLIER_EPOCHS_MAX + 2, 2), *range(1, EARLIER_EPOCHS_MAX + 2, 2), 1]
    earlier: tuple[Numbers, ...] = ()
    for epoch in epochs:
        earlier = with_earlier(earlier, Numbers(epoch, 10 * epoch))
    assert [each.epoch for each in earlier] == list(range(2, EARLIER_EPOCHS_MAX + 2))
