"""One producer in one partition: classic appends and journaled ones share what they know."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control.log.judgement import (
    APPENDED,
    APPENDED_BEHIND,
    APPENDED_LATE,
    HELD,
    Judgement,
    duplicate_of,
    is_duplicate,
)
from braidlog.control.log.producer_partition import (
    OUT_OF_ORDER,
    ProducerPartition,
    decode_gaps,
    encode_gaps,
    remembered,
)
from braidlog.objects.layout import SEQUENCE_END


def journaled(
    known: ProducerPartition, first: int, count: int = 1, *, epoch: int = 0, offset: int = 0, force: bool = False
) -> Judgement:
    return known.judge_journaled(epoch, first, count, offset, any_start=False, force=force)


def test_the_first_batch_of_an_unknown_epoch_is_in_order_at_zero_and_waits_otherwise() -> None:
    known = ProducerPartition(1, 1)
    assert journaled(known, 3) == HELD
    assert journaled(known, 0) == APPENDED
    assert journaled(known, 3) == HELD
    assert journaled(known, 4, epoch=1) == HELD
    assert journaled(known, 0, epoch=1) == APPENDED


def test_an_adopted_producer_may_start_anywhere_and_what_came_before_is_appended_late() -> None:
    known = ProducerPartition(1, 1)
    assert known.judge_journaled(0, 7, 2, 0, any_start=True) == APPENDED
    assert journaled(known, 3, 4) == APPENDED_LATE
    assert is_duplicate(journaled(known, 3, 4))
    assert journaled(known, 9) == APPENDED


def test_classic_adoption_is_known_to_journals_too() -> None:
    known = ProducerPartition(1, 1)
    assert known.judge(0, 7, 2, 0, True) == 0
    assert known.judge(0, 3, 1, 5, True) > 0  # a classic producer has had its answer for it
    assert journaled(known, 3) == APPENDED_LATE


def test_classic_appends_make_journaled_copies_duplicates_and_the_other_way_round() -> None:
    known = ProducerPartition(1, 1)
    for sequence in range(10):
        assert known.judge(0, sequence, 1, sequence, False) == APPENDED
    assert is_duplicate(journaled(known, 0))
    assert is_duplicate(journaled(known, 9))
    assert journaled(known, 10, offset=10) == APPENDED
    assert known.judge(0, 10, 1, 11, False) == duplicate_of(10)
    assert known.judge(0, 11, 1, 11, False) == APPENDED


def test_a_gap_that_was_given_up_stays_open_for_journals_and_for_classic_producers() -> None:
    known = ProducerPartition(1, 1)
    journaled(known, 0)
    assert journaled(known, 4) == HELD
    assert journaled(known, 4, force=True) == APPENDED
    assert journaled(known, 2) == APPENDED_LATE
    assert is_duplicate(journaled(known, 2))
    assert known.judge(0, 3, 1, 9, False) == APPENDED_LATE
    assert known.judge(0, 3, 1, 9, False) != APPENDED_LATE
    assert known.judge(0, 5, 1, 9, False) == APPENDED
    assert journaled(known, 1) == APPENDED_LATE
    assert known.planned_gaps is None


def test_a_producer_known_to_start_with_zero_has_a_gap_from_there() -> None:
    known = ProducerPartition(1, 1)
    assert journaled(known, 4, force=True) == APPENDED
    assert known.judge(0, 2, 2, 0, False) == APPENDED_LATE
    assert journaled(known, 0, 2) == APPENDED_LATE
    assert known.planned_gaps is None


def test_an_older_epoch_after_a_newer_one_is_appended_once() -> None:
    known = ProducerPartition(1, 1)
    journaled(known, 0, 3)
    journaled(known, 0, 3, epoch=2)
    assert is_duplicate(journaled(known, 0, 3))
    assert journaled(known, 3, 2) == APPENDED_BEHIND
    assert is_duplicate(journaled(known, 3, 2))
    # Of epoch 1 nothing is known: all of it may come, in its own order.
    assert journaled(known, 2, 2, epoch=1) == HELD
    assert journaled(known, 0, 2, epoch=1) == APPENDED_BEHIND
    assert journaled(known, 2, 2, epoch=1) == APPENDED_BEHIND
    assert journaled(known, 7, 2, epoch=1, force=True) == APPENDED_BEHIND
    assert journaled(known, 5, 2, epoch=1) == APPENDED_BEHIND
    assert is_duplicate(journaled(known, 5, 2, epoch=1))
    assert journaled(known, 3, 1, epoch=2) == APPENDED
    assert known.judge(0, 5, 1, 0, False) == 47


def test_a_classic_epoch_is_remembered_when_the_next_one_begins() -> None:
    known = ProducerPartition(1, 1)
    assert known.judge(0, 0, 5, 0, False) == APPENDED
    assert known.judge(1, 0, 5, 5, False) == 0
    assert is_duplicate(journaled(known, 2, 2))
    assert journaled(known, 5, 2) == APPENDED_BEHIND


def test_numbers_wrap() -> None:
    known = ProducerPartition(1, 1)
    known.judge_journaled(0, SEQUENCE_END - 2, 2, 0, any_start=True)
    assert known.planned_next_number == 0
    assert journaled(known, 3) == HELD
    assert journaled(known, 3, force=True) == APPENDED
    assert journaled(known, 1) == APPENDED_LATE
    assert is_duplicate(journaled(known, SEQUENCE_END - 1))
    assert journaled(known, SEQUENCE_END - 5) == APPENDED_LATE
    assert journaled(known, 4) == APPENDED


def test_a_batch_that_was_sequenced_in_part_is_appended() -> None:
    known = ProducerPartition(1, 1)
    journaled(known, 0, 4)
    assert journaled(known, 2, 4) == APPENDED_LATE
    assert known.planned_next_number == 6
    assert known.judge(0, 2, 9, 0, False) == OUT_OF_ORDER


steps = st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 9), st.integers(1, 3), st.booleans())


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_replaying_what_was_appended_gives_the_same_state(
    history: list[tuple[bool, int, int, int, bool]], settled: int, replayed_from: int
) -> None:
    """The row may be of any moment, and what is replayed may begin with what it knows."""
    known = ProducerPartition(1, 1)
    appended: list[tuple[int, bytes]] = []
    row = ProducerPartition(1, 1)
    offset = settled_count = 0
    for place, (is_classic, epoch, first, count, force) in enumerate(history):
        if is_classic:
            is_appended = known.judge(epoch, first, count, offset, True) in (APPENDED, APPENDED_LATE)
        else:
            judgement = known.judge_journaled(epoch, first, count, offset, any_start=True, force=force)
            is_appended = judgement != HELD and not is_duplicate(judgement)
        known.apply_plan()
        if is_appended:
            appended.append((epoch, remembered(first, count, offset)))
            offset += count
        if place == settled:
            row = ProducerPartition(1, 1, known.epoch, known.batches, decode_gaps(encode_gaps(known.gaps)))
            settled_count = len(appended)
    for epoch, batch in appended[min(replayed_from, settled_count) :]:
        row.replay(epoch, batch, True)
    assert (row.epoch, row.batches, row.planned_next_number) == (known.epoch, known.batches, known.planned_next_number)
    for epoch in range(3):
        for first in range(12):
            asked = (epoch, first, 1, offset)
            assert row.judge_journaled(*asked, any_start=True) == known.judge_journaled(*asked, any_start=True)
            row.discard_plan()
            known.discard_plan()


@pytest.mark.parametrize("force", [False, True])
def test_a_plan_that_is_discarded_leaves_nothing(force: bool) -> None:
    known = ProducerPartition(1, 1)
    journaled(known, 0)
    known.apply_plan()
    journaled(known, 5, force=force)
    journaled(known, 0, epoch=1)
    known.discard_plan()
    assert (known.planned_epoch, known.planned_next_number, known.planned_gaps) == (0, 1, None)
