"""A sequence's slots: never so far ahead that a seal would miss one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX
from braidlog.runtime.settings import AgentSettings
from braidlog.writing.journal.sequence import JournalSequence


def sequence(age_s_max: float = 60.0) -> JournalSequence:
    return JournalSequence(0, opened_s=0.0, age_s_max=age_s_max)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, SLOTS_IN_FLIGHT_MAX), max_size=200))
def test_slots_are_consecutive_and_within_the_window(choices: list[int]) -> None:
    """0 takes a slot, any other number completes one of those in flight."""
    writer = sequence()
    in_flight: list[int] = []
    taken = 0
    for choice in choices:
        if choice and in_flight:
            writer.complete(in_flight.pop(choice % len(in_flight)))
            continue
        slot = writer.take_slot(0.0)
        lowest = min(in_flight, default=taken)
        if slot is None:
            assert taken - lowest >= SLOTS_IN_FLIGHT_MAX
        else:
            assert slot == taken < lowest + SLOTS_IN_FLIGHT_MAX
            in_flight.append(slot)
            taken += 1


def test_a_slow_file_holds_up_the_window_and_lets_it_go_again() -> None:
    writer = sequence()
    slots = [writer.take_slot(0.0) for _ in range(SLOTS_IN_FLIGHT_MAX + 1)]
    assert slots == [*range(SLOTS_IN_FLIGHT_MAX), None]
    for slot in range(1, SLOTS_IN_FLIGHT_MAX):
        writer.complete(slot)
    assert writer.take_slot(0.0) is None
    assert not writer.is_closed(0.0)
    writer.complete(0)
    assert writer.take_slot(0.0) == SLOTS_IN_FLIGHT_MAX


def test_it_closes_when_it_is_full() -> None:
    writer = sequence()
    for expected in range(SLOTS_PER_SEQUENCE_MAX):
        slot = writer.take_slot(0.0)
        assert slot == expected
        writer.complete(slot)
    assert writer.is_closed(0.0)
    assert writer.take_slot(0.0) is None


def test_it_closes_by_age_and_is_acknowledged_for_as_long_again() -> None:
    writer = sequence(age_s_max=60.0)
    assert writer.take_slot(59.9) == 0
    assert writer.take_slot(60.0) is None
    assert writer.is_closed(60.0)
    writer.complete(0)
    assert writer.may_acknowledge(119.9)
    assert not writer.may_acknowledge(120.0)


def test_it_is_left_for_good() -> None:
    writer = sequence()
    slots = [writer.take_slot(0.0) for _ in range(2)]
    assert slots == [0, 1]
    writer.leave(0)
    assert writer.is_closed(0.0)
    assert writer.take_slot(0.0) is None
    # Its other file is still under way.
    assert not writer.is_abandoned
    writer.complete(1)
    assert writer.is_abandoned
    assert writer.slot_count(0.0) is None


@pytest.mark.parametrize(("every_s", "files"), [(59.0, SLOTS_PER_SEQUENCE_MAX), (121.0, 1)])
def test_by_default_it_is_filled_at_one_file_a_minute_and_closed_when_it_is_idle(every_s: float, files: int) -> None:
    writer = sequence(AgentSettings().sequence_age_ms / 1000)
    now_s, taken = 0.0, 0
    while not writer.is_closed(now_s):
        slot = writer.take_slot(now_s)
        assert slot is not None
        writer.complete(slot)
        taken += 1
        now_s += every_s
    assert taken == files == writer.slot_count(now_s)
