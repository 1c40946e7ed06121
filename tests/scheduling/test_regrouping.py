"""Splitting and merging, as decisions over counters."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.group_map import check_groups

from braidlog.scheduling.loads import ShardLoad, bytes_per_s_after, bytes_per_s_at, group_load, slots_used_at
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing, decide_regroup
from braidlog.scheduling.shard_groups import buddy, first_groups, members, merge, single_groups, split

MIB = 1 << 20
THRESHOLDS = RegroupThresholds(size_bytes=4 * MIB, interval_s=0.25, in_flight_max=4)
IDLE = ShardLoad()
NOW_S = 100.0


def decide(groups: list[int], shard: int, loads: list[ShardLoad], decided_s: list[float] | None = None) -> object:
    decided_s = decided_s if decided_s is not None else [-inf] * len(groups)
    return decide_regroup(THRESHOLDS, Standing(groups, loads, decided_s, NOW_S), shard)


def busy(backlog_bytes: int, *, uploads: int = 0, oldest_s: float = NOW_S - 0.1, used: float = 0.0) -> ShardLoad:
    return ShardLoad(backlog_bytes, oldest_s, uploads, used, NOW_S)


def test_a_backlog_of_twice_the_size_for_each_shard_splits_a_group() -> None:
    just_enough = [busy(2 * 4 * MIB)] * 8
    assert decide(first_groups(8), 0, just_enough) is None
    just_enough[5] = busy(2 * 4 * MIB + 1)
    assert decide(first_groups(8), 0, just_enough) == Split(0, range(4, 8))


def test_it_does_not_matter_which_shard_holds_the_backlog() -> None:
    loads = [IDLE] * 7 + [busy(65 * MIB)]
    assert decide(first_groups(8), 0, loads) == Split(0, range(4, 8))


def test_a_group_that_lets_requests_wait_with_all_slots_taken_splits_sooner() -> None:
    waiting = busy(17 * MIB, uploads=4, oldest_s=NOW_S - 0.6)
    assert decide(first_groups(4), 0, [waiting, IDLE, IDLE, IDLE]) == Split(0, range(2, 4))
    for unhurried in (
        replace(waiting, backlog_bytes=15 * MIB),
        replace(waiting, uploads_in_flight=3),
        replace(waiting, oldest_s=NOW_S - 0.4),
    ):
        assert decide(first_groups(4), 0, [unhurried, IDLE, IDLE, IDLE]) is None


def test_shards_that_fill_objects_by_themselves_part_and_stay_apart() -> None:
    full = ShardLoad(bytes_per_s=16 * MIB, bytes_per_s_s=NOW_S)  # four megabytes in a quarter of a second
    assert decide(first_groups(2), 0, [full, full]) == Split(0, range(1, 2))
    assert decide(first_groups(2), 0, [full, replace(full, bytes_per_s=15 * MIB)]) is None
    half = replace(full, bytes_per_s=8 * MIB)
    assert decide(single_groups(2), 0, [half, half]) is None
    assert decide(single_groups(2), 0, [half, replace(half, bytes_per_s=7 * MIB)]) == Merge(0, range(1, 2))
    # What was said long ago has faded.
    assert decide(first_groups(2), 0, [replace(full, bytes_per_s_s=NOW_S - 1)] * 2) is None


def test_what_arrives_steadily_is_known_by_its_rate() -> None:
    load, now_s = ShardLoad(), 0.0
    for _ in range(1000):
        now_s += 0.01
        load = ShardLoad(bytes_per_s=bytes_per_s_after(load, 1000, now_s, 2.0), bytes_per_s_s=now_s)
    assert bytes_per_s_at(load, now_s, 2.0) == pytest.approx(100_000, rel=0.02)
    assert bytes_per_s_at(load, now_s + 20, 2.0) < 10


def test_where_memory_is_scarce_a_smaller_backlog_splits() -> None:
    scarce = replace(THRESHOLDS, backlog_bytes_per_shard_max=MIB)
    loads = [busy(3 * MIB), IDLE]
    assert decide(first_groups(2), 0, loads) is None
    decision = decide_regroup(scarce, Standing(first_groups(2), loads, [-inf, -inf], NOW_S), 0)
    assert decision == Split(0, range(1, 2))


def test_a_single_shard_never_splits() -> None:
    assert decide([0, 1], 1, [IDLE, busy(1 << 40, uploads=4, oldest_s=0.0)]) is None


def test_idle_buddies_merge_and_only_the_lower_starts_it() -> None:
    groups = [0, 0, 2, 2, 4, 4, 4, 4]
    assert decide(groups, 0, [IDLE] * 8) == Merge(0, range(2, 4))
    for shard in (1, 2, 3, 4, 5):
        assert decide(groups, shard, [IDLE] * 8) is None


def test_what_gathers_while_slots_are_free_is_no_backlog() -> None:
    assert decide([0, 1], 0, [busy(MIB), busy(2 * MIB)]) == Merge(0, range(1, 2))
    assert decide([0, 1], 0, [busy(2 * MIB), busy(2 * MIB)]) is None, "together they would be due"


def test_two_streams_that_one_could_not_replace_stay_apart() -> None:
    assert decide([0, 1], 0, [busy(0, used=1.2), busy(0, used=1.2)]) == Merge(0, range(1, 2))
    assert decide([0, 1], 0, [busy(0, used=1.2), busy(0, used=1.3)]) is None


def test_the_use_of_slots_fades_and_adds_up() -> None:
    load = ShardLoad(uploads_in_flight=0, slots_used=3.0, slots_used_s=10.0)
    assert slots_used_at(load, 10.0, 2.0) == 3.0
    assert slots_used_at(load, 12.0, 2.0) == pytest.approx(3.0 / 2.71828, rel=1e-4)
    assert slots_used_at(load, 9.0, 2.0) == 3.0, "another shard's clock reading may be a moment older"
    assert slots_used_at(replace(load, uploads_in_flight=4), 1000.0, 2.0) == pytest.approx(4.0)
    loads = [load, load, IDLE]
    assert group_load(loads, range(3), now_s=10.0, memory_s=2.0).slots_used == 6.0


def test_no_decision_within_the_window_of_either_buddy() -> None:
    recent_s, past_s = NOW_S - 0.49, NOW_S - 0.51
    assert decide([0, 1], 0, [IDLE] * 2, [recent_s, -inf]) is None
    assert decide([0, 1], 0, [IDLE] * 2, [-inf, recent_s]) is None
    assert decide([0, 1], 0, [IDLE] * 2, [past_s, past_s]) == Merge(0, range(1, 2))
    assert decide([0, 0], 0, [busy(99 * MIB)] * 2, [recent_s, -inf]) is None


load_of_a_shard = st.builds(
    ShardLoad,
    backlog_bytes=st.sampled_from([0, 0, 1, MIB, 9 * MIB, 100 * MIB]),
    oldest_s=st.floats(0.0, 100.0),
    uploads_in_flight=st.integers(0, 4),
    slots_used=st.floats(0.0, 4.0),
    slots_used_s=st.floats(0.0, 100.0),
)


@given(st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_under_random_loads_groups_stay_aligned_and_nobody_decides_twice_in_a_window(
    shard_count: int, data: st.DataObject
) -> None:
    groups = first_groups(shard_count)
    decided_s = [-inf] * shard_count
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 12))):
        now_s += data.draw(st.sampled_from([0.05, 0.2, 0.5, 1.0]))
        pattern = data.draw(st.lists(load_of_a_shard, min_size=1, max_size=4))
        loads = [pattern[shard % len(pattern)] for shard in range(shard_count)]
        for shard in range(shard_count):
            decision = decide_regroup(THRESHOLDS, Standing(groups, loads, decided_s, now_s), shard)
            if decision is None:
                continue
            assert groups[shard] == shard == decision.group, "only a group's first shard decides"
            assert now_s - decided_s[shard] >= THRESHOLDS.window_s
            if isinstance(decision, Split):
                assert set(decision.upper) < set(members(groups, shard))
                groups = split(groups, shard)
                decided_s[decision.upper.start] = now_s
            else:
                assert buddy(groups, shard) == decision.absorbed.start > shard, "only the lower buddy merges"
                assert now_s - decided_s[decision.absorbed.start] >= THRESHOLDS.window_s
                groups = merge(groups, shard)
            decided_s[shard] = now_s
            check_groups(groups)


@given(st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_light_load_converges_to_one_group_and_full_load_to_one_per_shard_and_back(shard_count: int) -> None:
    groups = first_groups(shard_count)
    decided_s = [-inf] * shard_count
    now_s = 0.0
    light, full = [busy(1000)] * shard_count, [busy(20 * MIB, uploads=4, used=4.0)] * shard_count
    for loads, expected in ((light, first_groups), (full, single_groups), (light, first_groups)):
        for _ in range(7):  # a decision a window, and a level of halves a decision
            now_s += THRESHOLDS.window_s
            aged = [replace(load, oldest_s=now_s, slots_used_s=now_s) for load in loads]
            for shard in range(shard_count):
                decision = decide_regroup(THRESHOLDS, Standing(groups, aged, decided_s, now_s), shard)
                if isinstance(decision, Split):
                    groups = split(groups, shard)
                    decided_s[decision.upper.start] = now_s
                elif isinstance(decision, Merge):
                    groups = merge(groups, shard)
                if decision is not None:
                    decided_s[shard] = now_s
        assert groups == expected(shard_count)
