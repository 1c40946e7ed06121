"""Turns, and the policies that take them differently."""

from math import inf

import pytest

from braidlog.scheduling.loads import ShardLoad
from braidlog.scheduling.policy import POLICIES, policy_named
from braidlog.scheduling.pullers import may_pull, next_puller, takeover_s
from braidlog.scheduling.regrouping import RegroupThresholds, Split, Standing

LOADS = [ShardLoad(backlog_bytes=size) for size in (5, 0, 70, 70, 0, 9, 0, 0)]
THRESHOLDS = RegroupThresholds(size_bytes=4, interval_s=0.25, in_flight_max=4)


def test_turns_go_round() -> None:
    assert [next_puller(range(4, 7), count) for count in range(6)] == [4, 5, 6, 4, 5, 6]


def test_a_turn_that_is_not_taken_goes_to_whoever_comes_first() -> None:
    due = {"oldest_s": 10.0, "interval_s": 0.25, "grace_s": 0.02}
    assert may_pull(4, 4, now_s=0.0, **due)
    assert not may_pull(5, 4, now_s=10.26, **due)
    assert takeover_s(**due) == pytest.approx(10.27)
    assert may_pull(5, 4, now_s=takeover_s(**due), **due)
    assert not may_pull(5, 4, now_s=1e9, oldest_s=inf, interval_s=0.25, grace_s=0.02), "nothing waits"


def test_policies_by_name() -> None:
    assert list(POLICIES) == ["adaptive", "per-shard", "funnel", "coordinator"]
    assert all(policy_named(name).name == name for name in POLICIES)
    with pytest.raises(ValueError, match="'adaptative': use one of adaptive, per-shard, funnel, coordinator"):
        policy_named("adaptative")


@pytest.mark.parametrize(
    ("name", "groups", "holders", "locks"),
    [
        ("adaptive", [0] * 8, [0, 1, 2], 1),
        ("per-shard", list(range(8)), [3, 3, 3], 0),
        ("funnel", [0] * 8, [0, 0, 0], 1),
        ("coordinator", [0] * 8, [2, 2, 2], 8),
    ],
)
def test_what_sets_them_apart(name: str, groups: list[int], holders: list[int], locks: int) -> None:
    policy = policy_named(name)
    assert policy.first_groups(8) == groups
    shards = range(3, 4) if name == "per-shard" else range(8)
    assert [policy.puller(shards, turn, LOADS) for turn in range(3)] == holders
    assert policy.locks_per_pull(len(shards)) == locks


def test_only_adaptive_regroups() -> None:
    decisions = {
        name: policy.regroup(THRESHOLDS, Standing([0] * 8, LOADS, [-inf] * 8, 1.0), 0)
        for name, policy in POLICIES.items()
    }
    assert decisions == {"adaptive": Split(0, range(4, 8)), "per-shard": None, "funnel": None, "coordinator": None}
