"""Groups of shards in virtual time: the model that `bench/scheduler.py` compares policies with."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from bench._scheduler_model import AgentModel, Phase, SchedulerModel, run_lone_producers, run_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.group_map import check_groups

from braidlog.objects.latency import LatencyProfile
from braidlog.runtime.entropy import SeededEntropy
from braidlog.scheduling.policy import POLICIES, policy_named
from braidlog.scheduling.shard_groups import first_groups, single_groups

MB = 1_000_000
AT_ONCE = LatencyProfile(put_s_median=0.0, get_s_median=0.0, upload_bytes_per_s=inf, download_bytes_per_s=inf)


@given(
    shard_count=st.integers(1, 40),
    policy=st.sampled_from(sorted(POLICIES)),
    loads=st.lists(st.sampled_from([0.2, 1.0, 20.0, 200.0]), min_size=1, max_size=3),
    budget_usd_month=st.sampled_from([0.0, 65.0]),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=40, deadline=None)
def test_while_slots_are_free_every_byte_is_uploaded_within_the_interval_plus_one_turn(
    shard_count: int, policy: str, loads: list[float], budget_usd_month: float, seed: int
) -> None:
    agent = AgentModel(shard_count=shard_count, budget_usd_month=budget_usd_month, profile=AT_ONCE, lock_s=0.0)
    phases = [Phase("a while", 1.0, lambda _, load=load: load * MB) for load in loads]
    model = run_trace(agent, policy_named(policy), phases, seed=seed, drain_s=1.0)
    assert model.is_idle
    assert max(model.samples.latency_s, default=0.0) <= agent.interval_s + agent.notice_s + 1e-9
    assert sum(model.samples.request_bytes) == sum(model.samples.put_bytes)
    assert not model.samples.held_back_s


@given(
    shard_count=st.integers(2, 40),
    policy=st.sampled_from(["adaptive", "funnel", "coordinator"]),
    absent=st.sets(st.integers(0, 38), min_size=1),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=25, deadline=None)
def test_members_that_do_not_take_their_turns_hold_nobody_up_for_longer_than_one_turn(
    shard_count: int, policy: str, absent: set[int], seed: int
) -> None:
    agent = AgentModel(shard_count=shard_count, profile=AT_ONCE, lock_s=0.0)
    model = SchedulerModel(agent, policy_named(policy))
    model.absent = frozenset(shard for shard in absent if shard < shard_count - 1)
    entropy = SeededEntropy(seed)
    now_s = 0.0
    for _ in range(60):
        now_s += entropy.uniform(0.0, 0.1)
        model.advance(now_s)
        model.offer(entropy.below(shard_count), 1000)
    model.advance(now_s + 1.0)
    assert model.is_idle
    assert len(model.samples.latency_s) == 60
    assert max(model.samples.latency_s) <= agent.interval_s + agent.grace_s + agent.notice_s + 1e-9


@given(st.integers(2, 40), st.integers(0, 1 << 16), st.lists(st.sampled_from([1, 50, 300, 3000]), max_size=4))
@settings(max_examples=10, deadline=None)
def test_groups_stay_aligned_and_apart_in_time_under_any_load(shard_count: int, seed: int, loads: list[int]) -> None:
    agent = AgentModel(shard_count=shard_count, check_s=0.02)
    decisions: dict[int, list[float]] = {}

    class Watched(SchedulerModel):
        def _add_group(self, group) -> None:  # type: ignore[no-untyped-def]
            super()._add_group(group)
            check_groups(self.groups)
            decisions.setdefault(group.shards.start, []).append(self.now_s)

    model = Watched(agent, policy_named("adaptive"), seed=seed)
    for step, load in enumerate([*loads, 0]):
        for shard in range(shard_count):
            for _ in range(5):
                if load:
                    model.offer(shard, load * MB // shard_count // 5)
        model.advance((step + 1) * 1.5)
    for times_s in decisions.values():
        assert all(later_s - earlier_s >= agent.regroup.window_s for earlier_s, later_s in pairwise(times_s))


def test_groups_follow_the_load_to_one_per_shard_and_back() -> None:
    agent = AgentModel(shard_count=8)
    adaptive = policy_named("adaptive")
    trickle = Phase("trickle", 10.0, lambda _: 1.0 * MB)
    flood = Phase("flood", 10.0, lambda _: 450.0 * MB)
    assert run_trace(agent, adaptive, [trickle]).groups == first_groups(8)
    assert run_trace(agent, adaptive, [trickle, flood]).groups == single_groups(8)
    assert run_trace(agent, adaptive, [trickle, flood, trickle, trickle]).groups == first_groups(8)


@pytest.mark.parametrize("load", [10, 75, 150, 320])
def test_a_steady_load_lets_its_groups_alone(load: int) -> None:
    model = run_trace(AgentModel(shard_count=8), policy_named("adaptive"), [Phase("on", 30.0, lambda _: load * MB)])
    regrouped = sum(at_s > 15.0 for at_s in model.samples.regrouped_s)
    assert regrouped <= 1, "a late split may be; a split and a merge by turns may not"


def test_the_same_seed_gives_the_same_history_and_every_policy_the_same_requests() -> None:
    agent = AgentModel(shard_count=6)
    phases = [Phase("some", 3.0, lambda at_s: (5.0 + 100.0 * at_s) * MB)]
    first = run_trace(agent, policy_named("adaptive"), phases, seed=7, drain_s=5.0)
    again = run_trace(agent, policy_named("adaptive"), phases, seed=7, drain_s=5.0)
    assert first.samples == again.samples
    other = run_trace(agent, policy_named("per-shard"), phases, seed=7, drain_s=5.0)
    assert sorted(first.samples.arrived_s) == sorted(other.samples.arrived_s)


def test_past_its_memory_a_shard_reads_no_more() -> None:
    agent = AgentModel(shard_count=2, memory_bytes_per_shard=8 * MB)
    model = run_trace(agent, policy_named("funnel"), [Phase("flood", 5.0, lambda _: 500.0 * MB)], drain_s=10.0)
    assert model.is_idle
    assert sum(model.samples.held_back_bytes) > 1000 * MB
    assert max(model.samples.latency_s) < 2.0


def test_a_lone_producer_waits_for_its_put_alone_while_the_budget_lasts() -> None:
    agent = AgentModel()
    model = run_lone_producers(agent, policy_named("adaptive"), duration_s=30.0)
    waits_s = sorted(model.samples.latency_s)
    puts_s = sorted(model.samples.put_latency_s)
    assert len(waits_s) > 50
    assert waits_s[len(waits_s) // 2] < 1.1 * puts_s[len(puts_s) // 2]
    broke = run_lone_producers(replace(agent, budget_usd_month=0.0), policy_named("adaptive"), duration_s=30.0)
    assert min(broke.samples.latency_s) > agent.interval_s
