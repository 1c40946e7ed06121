"""Which neighbours are merged: bounded work for every byte, and few extents in the end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control.jobs.merge_runs import merge_runs

TARGET = 1 << 20
FAN_IN = 4


def runs(lengths: list[int]) -> list[tuple[int, int]]:
    return merge_runs(lengths, target_bytes=TARGET, fan_in=FAN_IN)


def test_few_neighbours_are_left_alone_until_there_are_enough() -> None:
    assert runs([100] * 3) == []
    assert runs([100] * 4) == [(0, 4)]
    assert runs([TARGET, 100, 100, 100, 100, TARGET]) == [(1, 5)]


def test_a_large_one_is_not_moved_for_some_small_ones() -> None:
    assert runs([200_000, 100, 100, 100, 100]) == [(1, 5)]


def test_runs_are_cut_at_the_target() -> None:
    found = runs([300_000] * 7)
    assert found == [(0, 3), (3, 6)]


@settings(max_examples=200)
@given(st.lists(st.integers(1, 2 * TARGET), max_size=60))
def test_runs_are_apart_in_order_and_within_the_target(lengths: list[int]) -> None:
    end = 0
    for first, last in runs(lengths):
        assert end <= first
        assert last - first >= 2
        assert sum(lengths[first:last]) <= TARGET
        assert all(2 * length <= TARGET for length in lengths[first:last])
        end = last


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(5_000, 50_000), min_size=50, max_size=200))
def test_a_byte_is_moved_a_few_times_and_few_extents_are_left(arrivals: list[int]) -> None:
    lengths: list[int] = []
    moved_bytes = 0
    for length in arrivals:
        lengths.append(length)
        for first, last in reversed(runs(lengths)):
            size_bytes = sum(lengths[first:last])
            moved_bytes += size_bytes
            lengths[first:last] = [size_bytes]
    # Five levels lie between 4 KiB and the target.
    assert moved_bytes <= 6 * sum(arrivals)
    assert len(lengths) <= sum(arrivals) / (TARGET / 2) + 6 * FAN_IN
