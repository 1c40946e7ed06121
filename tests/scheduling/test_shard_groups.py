"""Groups of shards: whatever is split and merged, they stay aligned blocks that are named after their first shard."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.group_map import check_groups

from braidlog.scheduling.shard_groups import (
    buddy,
    first_groups,
    group_ids,
    halves,
    members,
    merge,
    single_groups,
    split,
)


def test_eight_shards_split_from_one_group_to_eight_and_merge_back() -> None:
    groups = first_groups(8)
    assert groups == [0, 0, 0, 0, 0, 0, 0, 0]
    groups = split(groups, 0)
    assert groups == [0, 0, 0, 0, 4, 4, 4, 4]
    groups = split(groups, 0)
    assert groups == [0, 0, 2, 2, 4, 4, 4, 4]
    assert buddy(groups, 2) == 0
    assert buddy(groups, 4) is None, "its other half is two groups"
    for group in (0, 2, 4, 4, 6):
        groups = split(groups, group)
    assert groups == [0, 1, 2, 3, 4, 5, 6, 7] == single_groups(8)
    for group in (6, 4, 4, 2, 0, 0, 0):
        groups = merge(groups, group)
    assert groups == first_groups(8)


def test_a_number_of_shards_that_is_no_power_of_two_cuts_the_last_blocks_off() -> None:
    assert split(first_groups(6), 0) == [0, 0, 0, 0, 4, 4]
    assert split([0, 0, 0, 0, 4, 4], 4) == [0, 0, 0, 0, 4, 5]
    assert split(first_groups(5), 0) == [0, 0, 0, 0, 4]
    assert merge([0, 0, 0, 0, 4], 0) == first_groups(5)
    assert halves([0, 0, 0, 0, 4], 4) is None
    assert split(first_groups(3), 0) == [0, 0, 2]


def test_only_the_lower_buddy_merges() -> None:
    with pytest.raises(ValueError, match="only 0 may merge"):
        merge([0, 0, 2, 2], 2)
    with pytest.raises(ValueError, match="no whole buddy"):
        merge([0, 0, 2, 3], 0)
    with pytest.raises(ValueError, match="no whole buddy"):
        merge([0, 0, 0, 0], 0)


def test_a_single_shard_does_not_split() -> None:
    with pytest.raises(ValueError, match="single shard"):
        split([0, 1], 1)
    assert buddy([0], 0) is None


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([], "without shards"),
        ([1, 1], "starts a group that is called 1"),
        ([0, 0, 1, 1], "starts a group that is called 1"),
        ([0, 1, 0], "starts a group that is called 0"),
        ([0, 1, 1, 3], "aligned"),
        ([0, 0, 0, 3], "aligned"),
        ([0, 0, 2, 2, 2, 2], "aligned"),
    ],
)
def test_what_no_splits_and_merges_can_make_is_refused(groups: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_groups(groups)


def test_a_shard_that_is_not_the_first_names_no_group() -> None:
    with pytest.raises(ValueError, match="1 is no group"):
        members([0, 0], 1)
    with pytest.raises(ValueError, match="2 is no group"):
        members([0, 0], 2)
    for make in (first_groups, single_groups):
        with pytest.raises(ValueError, match="at least one"):
            make(0)


@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 1 << 16)), max_size=60))
@settings(max_examples=150)
def test_any_splits_and_merges_of_any_number_of_shards_leave_aligned_blocks(
    shard_count: int, steps: list[tuple[bool, int]]
) -> None:
    groups = first_groups(shard_count)
    for wants_split, choice in steps:
        ids = group_ids(groups)
        group = ids[choice % len(ids)]
        before = list(groups)
        if wants_split and halves(groups, group) is not None:
            groups = split(groups, group)
            assert merge(groups, group) == before
        elif (other := buddy(groups, group)) is not None:
            assert buddy(groups, other) == group
            groups = merge(groups, min(group, other))
            assert split(groups, min(group, other)) == before
        check_groups(groups)
        covered = [shard for group in group_ids(groups) for shard in members(groups, group)]
        assert covered == list(range(shard_count))


@pytest.mark.parametrize("shard_count", range(1, 41))
def test_every_number_of_shards_splits_down_to_single_ones_and_merges_back(shard_count: int) -> None:
    groups = first_groups(shard_count)
    while (group := next((group for group in group_ids(groups) if halves(groups, group)), None)) is not None:
        groups = split(groups, group)
        check_groups(groups)
    assert groups == single_groups(shard_count)
    while (group := next((g for g in group_ids(groups) if (buddy(groups, g) or 0) > g), None)) is not None:
        groups = merge(groups, group)
        check_groups(groups)
    assert groups == first_groups(shard_count)
