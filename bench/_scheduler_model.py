"""An agent's shards in virtual time: the real scheduling core, driven by a trace, over a model of the object store.

Nothing is moved and nothing waits. Requests arrive at shards, groups close objects and upload them, and PUTs take as
long as the latency profile says. What decides (closing, turns, budget, regrouping, policies) is Braidlog's own code.

A *stream* is what one group uploads with: a few PUTs at a time, which share one stream's bandwidth.
"""

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import overload

from braidlog.cost.prices import S3_STANDARD, Price, puts_per_s_for_budget
from braidlog.objects.latency import LatencyProfile, latency_factor, latency_profile
from braidlog.runtime.entropy import SeededEntropy
from braidlog.scheduling.budget import PutBudget, budget_share, merge_budgets, split_budget
from braidlog.scheduling.closing import Close, CloseThresholds, decide_close
from braidlog.scheduling.loads import ShardLoad, bytes_per_s_after, slots_used_at
from braidlog.scheduling.policy import Policy
from braidlog.scheduling.pullers import may_pull, takeover_s
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.scheduling.shard_groups import group_ids, members, merge, split

MIB = 1 << 20
BURST_S = 2.0
"""Seconds of early uploads that an agent's budget saves up."""


@dataclass(frozen=True, slots=True)
class AgentModel:
    """The agent's settings (its defaults) and what the model assumes about the machine."""

    shard_count: int = 32
    size_bytes: int = 4 * MIB
    interval_s: float = 0.25
    in_flight_max: int = 4
    budget_usd_month: float = 65.0
    price: Price = S3_STANDARD
    profile: LatencyProfile = field(default_factory=lambda: latency_profile("s3"))
    memory_bytes_per_shard: int = 64 * MIB
    """Accepted and not yet acknowledged. Past it the shard stops reading, and its producers send no more."""
    notice_s: float = 0.005
    """How long it takes a shard to notice what has happened on another one of its group."""
    grace_s: float = 0.02
    """How long the others wait for one that does not take its turn."""
    lock_s: float = 10e-6
    """To take a lock that other cores take, too."""
    check_s: float = 0.02
    """How often a group's first shard thinks about splitting and merging."""

    @property
    def close(self) -> CloseThresholds:
        return CloseThresholds(self.size_bytes, self.interval_s, self.in_flight_max, self.in_flight_max)

    @property
    def regroup(self) -> RegroupThresholds:
        return RegroupThresholds(self.size_bytes, self.interval_s, self.in_flight_max, self.memory_bytes_per_shard // 2)


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    duration_s: float
    load: Callable[[float], float]
    """Bytes a second that producers offer, by seconds since the phase's start."""


REQUESTS_PER_S = 1_920.0
"""Under load, producers send larger requests rather than more of them, ..."""
REQUEST_BYTES_MIN = 4_000
"""... and without load single small ones."""


def request_bytes_at(load_bytes_per_s: float) -> int:
    return max(REQUEST_BYTES_MIN, int(load_bytes_per_s / REQUESTS_PER_S))


def _column() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Samples:
    """The samples of a run, in plain columns."""

    arrived_s: "array[float]" = field(default_factory=_column)
    latency_s: "array[float]" = field(default_factory=_column)
    request_bytes: "array[float]" = field(default_factory=_column)
    acknowledged_s: "array[float]" = field(default_factory=_column)
    put_s: "array[float]" = field(default_factory=_column)
    """When each PUT started, ..."""
    put_bytes: "array[float]" = field(default_factory=_column)
    put_latency_s: "array[float]" = field(default_factory=_column)
    put_locks: "array[float]" = field(default_factory=_column)
    """... and how many locks it took to pull its requests."""
    regrouped_s: "array[float]" = field(default_factory=_column)
    group_count: "array[float]" = field(default_factory=_column)
    """From `regrouped_s` on."""
    held_back_s: "array[float]" = field(default_factory=_column)
    held_back_bytes: "array[float]" = field(default_factory=_column)
    """The bytes that producers would have sent if the agent had read them."""


@dataclass(slots=True)
class _Request:
    shard: int
    arrived_s: float
    size_bytes: int


@dataclass(slots=True)
class _Group:
    shards: range
    budget: PutBudget
    pull_count: int = 0
    stream_free_s: float = 0.0
    wake_s: float = inf
    backlog: deque[_Request] = field(default_factory=deque)
    backlog_bytes: int = 0


class _Loads(Sequence[ShardLoad]):
    """The shards' counters as they are now, each read when it is asked for, as from shared memory."""

    def __init__(self, model: "SchedulerModel") -> None:
        self._model = model

    def __len__(self) -> int:
        return self._model.agent.shard_count

    @overload
    def __getitem__(self, shard: int) -> ShardLoad: ...
    @overload
    def __getitem__(self, shard: slice) -> list[ShardLoad]: ...
    def __getitem__(self, shard: int | slice) -> ShardLoad | list[ShardLoad]:
        if isinstance(shard, slice):
            return [self._model.load(each) for each in range(len(self))[shard]]
        return self._model.load(shard)


class SchedulerModel:
    """One agent, from one group map to the next."""

    def __init__(self, agent: AgentModel, policy: Policy, *, seed: int | str = 1) -> None:
        self.agent = agent
        self.policy = policy
        self.now_s = 0.0
        self.samples = Samples()
        self.groups = policy.first_groups(agent.shard_count)
        self.decided_s = [-inf] * agent.shard_count
        self.absent: frozenset[int] = frozenset()
        """Shards that do not take their turns."""
        self._close = agent.close
        self._regroup = agent.regroup
        self._entropy = SeededEntropy(seed).fork("puts")
        self._in_flight = [0] * agent.shard_count
        self._backlog_bytes = [0] * agent.shard_count
        self._waiting_s: list[deque[float]] = [deque() for _ in range(agent.shard_count)]
        """When each shard's waiting requests arrived."""
        self._loads = _Loads(self)
        self._held_bytes = [0] * agent.shard_count
        self._slots_used: list[tuple[float, float]] = [(0.0, 0.0)] * agent.shard_count
        self._bytes_per_s = [(0.0, 0.0)] * agent.shard_count
        puts_per_s = puts_per_s_for_budget(agent.budget_usd_month, agent.price)
        self._groups: dict[int, _Group] = {}
        for group in group_ids(self.groups):
            shards = members(self.groups, group)
            budget = budget_share(puts_per_s, puts_per_s * BURST_S, len(shards), agent.shard_count)
            self._groups[group] = _Group(shards, budget)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_count = 0
        self.on_acknowledged: Callable[[int], None] | None = None
        self._note_groups()
        if agent.shard_count > 1:
            self.at(agent.check_s, self._check_groups)

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (when_s, self._event_count, action))

    def advance(self, until_s: float) -> None:
        """Let everything happen that is due before then."""
        events = self._events
        while events and events[0][0] < until_s:
            self.now_s, _, action = heapq.heappop(events)
            action()
        self.now_s = until_s

    def offer(self, shard: int, size_bytes: int) -> bool:
        """A producer's request arrives now. False if the shard has no memory for it, and so has not read it."""
        if self._held_bytes[shard] + size_bytes > self.agent.memory_bytes_per_shard:
            self.samples.held_back_s.append(self.now_s)
            self.samples.held_back_bytes.append(size_bytes)
            return False
        group = self._groups[self.groups[shard]]
        group.backlog.append(_Request(shard, self.now_s, size_bytes))
        group.backlog_bytes += size_bytes
        self._backlog_bytes[shard] += size_bytes
        self._waiting_s[shard].append(self.now_s)
        self._held_bytes[shard] += size_bytes
        rate = bytes_per_s_after(self.load(shard), size_bytes, self.now_s, self._regroup.memory_s)
        self._bytes_per_s[shard] = rate, self.now_s
        self._wake_soon(group)
        return True

    @property
    def backlog_bytes(self) -> int:
        return sum(self._backlog_bytes)

    @property
    def is_idle(self) -> bool:
        return not any(self._backlog_bytes) and not any(self._in_flight)

    def load(self, shard: int) -> ShardLoad:
        waiting_s = self._waiting_s[shard]
        return ShardLoad(
            self._backlog_bytes[shard],
            waiting_s[0] if waiting_s else inf,
            self._in_flight[shard],
            *self._slots_used[shard],
            *self._bytes_per_s[shard],
        )

    def _wake_soon(self, group: _Group) -> None:
        """Wake a group: a single shard at once, several a little later.

        A shard knows at once what it does itself. It notices a little later what others do.
        """
        self._wake(group, self.now_s + (self.agent.notice_s if len(group.shards) > 1 else 0.0))

    def _wake(self, group: _Group, when_s: float) -> None:
        if when_s >= group.wake_s:
            return
        group.wake_s = when_s

        def woken() -> None:
            if group.wake_s == when_s and self._groups.get(group.shards.start) is group:
                group.wake_s = inf
                self._pump(group)

        self.at(when_s, woken)

    def _pump(self, group: _Group) -> None:
        while group.backlog:
            puller = self._puller(group)
            if puller is None:
                agent, oldest_s = self.agent, group.backlog[0].arrived_s
                self._wake(group, takeover_s(oldest_s, agent.interval_s, agent.grace_s))
                return
            decision = decide_close(
                self._close,
                group.budget,
                now_s=self.now_s,
                backlog_bytes=group.backlog_bytes,
                oldest_s=group.backlog[0].arrived_s,
                in_flight=sum(self._in_flight[shard] for shard in group.shards),
            )
            if not isinstance(decision, Close):
                if decision.seconds is not None:
                    self._wake(group, self.now_s + max(decision.seconds, 1e-6))
                return
            self._upload(group, puller, decision.bytes_target)

    def _puller(self, group: _Group) -> int | None:
        """Return the shard that pulls now, or None if nobody does.

        Nobody does while the others still wait for an absent shard whose turn it is.
        """
        puller = self.policy.puller(group.shards, group.pull_count, self._loads)
        if puller not in self.absent:
            return puller
        agent, oldest_s = self.agent, group.backlog[0].arrived_s
        for shard in group.shards:
            if shard not in self.absent and may_pull(
                shard,
                puller,
                now_s=self.now_s,
                oldest_s=oldest_s,
                interval_s=agent.interval_s,
                grace_s=agent.grace_s,
            ):
                return shard
        return None

    def _upload(self, group: _Group, puller: int, bytes_target: int) -> None:
        agent = self.agent
        locks = self.policy.locks_per_pull(len(group.shards))
        group.pull_count += 1
        requests: list[_Request] = []
        size_bytes = 0
        while group.backlog and size_bytes < bytes_target:
            request = group.backlog.popleft()
            requests.append(request)
            size_bytes += request.size_bytes
            self._backlog_bytes[request.shard] -= request.size_bytes
            self._waiting_s[request.shard].popleft()
        group.backlog_bytes -= size_bytes
        self._count_in_flight(puller, 1)
        sent_s = max(self.now_s + locks * agent.lock_s, group.stream_free_s)
        sent_s += size_bytes / agent.profile.upload_bytes_per_s
        group.stream_free_s = sent_s
        finished_s = sent_s + agent.profile.put_s_median * latency_factor(self._entropy.normal())
        samples = self.samples
        samples.put_s.append(self.now_s)
        samples.put_bytes.append(size_bytes)
        samples.put_locks.append(locks)
        samples.put_latency_s.append(finished_s - self.now_s)
        self.at(finished_s, lambda: self._uploaded(puller, requests))

    def _uploaded(self, puller: int, requests: list[_Request]) -> None:
        self._count_in_flight(puller, -1)
        samples = self.samples
        for request in requests:
            self._held_bytes[request.shard] -= request.size_bytes
            samples.arrived_s.append(request.arrived_s)
            samples.latency_s.append(self.now_s - request.arrived_s)
            samples.request_bytes.append(request.size_bytes)
            samples.acknowledged_s.append(self.now_s)
            if self.on_acknowledged is not None:
                self.on_acknowledged(request.shard)
        group = self._groups[self.groups[puller]]
        if group.backlog:
            self._wake_soon(group)

    def _count_in_flight(self, shard: int, change: int) -> None:
        slots_used, slots_used_s = self._slots_used[shard]
        load = ShardLoad(0, inf, self._in_flight[shard], slots_used, slots_used_s)
        self._slots_used[shard] = slots_used_at(load, self.now_s, self._regroup.memory_s), self.now_s
        self._in_flight[shard] += change

    def _check_groups(self) -> None:
        """Every group's first shard looks at its group, one after the other, as each would on its own."""
        for shard in range(self.agent.shard_count):
            standing = Standing(self.groups, self._loads, self.decided_s, self.now_s)
            decision = self.policy.regroup(self._regroup, standing, shard)
            if isinstance(decision, Split):
                self._split(decision)
            elif isinstance(decision, Merge):
                self._merge(decision)
        self.at(self.now_s + self.agent.check_s, self._check_groups)

    def _split(self, decision: Split) -> None:
        whole = self._groups.pop(decision.group)
        self.groups = split(self.groups, decision.group)
        lower = range(decision.group, decision.upper.start)
        budgets = split_budget(whole.budget, len(lower), len(decision.upper), self.now_s)
        for shards, budget, free_s in (
            (lower, budgets[0], whole.stream_free_s),
            (decision.upper, budgets[1], self.now_s),
        ):
            requests = deque(request for request in whole.backlog if request.shard in shards)
            self._add_group(_Group(shards, budget, whole.pull_count, free_s, backlog=requests))
        self._note_groups()

    def _merge(self, decision: Merge) -> None:
        lower = self._groups.pop(decision.group)
        upper = self._groups.pop(decision.absorbed.start)
        self.groups = merge(self.groups, decision.group)
        requests = deque(heapq.merge(lower.backlog, upper.backlog, key=lambda request: request.arrived_s))
        free_s = max(lower.stream_free_s, upper.stream_free_s)
        budget = merge_budgets(lower.budget, upper.budget, self.now_s)
        self._add_group(
            _Group(members(self.groups, decision.group), budget, lower.pull_count, free_s, backlog=requests)
        )
        self._note_groups()

    def _add_group(self, group: _Group) -> None:
        group.backlog_bytes = sum(request.size_bytes for request in group.backlog)
        self._groups[group.shards.start] = group
        self.decided_s[group.shards.start] = self.now_s
        self._wake_soon(group)

    def _note_groups(self) -> None:
        self.samples.regrouped_s.append(self.now_s)
        self.samples.group_count.append(len(self._groups))


def run_trace(
    agent: AgentModel, policy: Policy, phases: Sequence[Phase], *, seed: int | str = 1, drain_s: float = 0.0
) -> SchedulerModel:
    """Play the phases one after the other. The same seed gives every policy the same requests at the same times."""
    model = SchedulerModel(agent, policy, seed=seed)
    arrivals = SeededEntropy(seed).fork("arrivals")
    start_s = 0.0
    for phase in phases:
        end_s = start_s + phase.duration_s
        now_s = start_s
        while True:
            load = phase.load(now_s - start_s)
            size_bytes = request_bytes_at(load)
            now_s -= log(arrivals.uniform(1e-12, 1.0)) * size_bytes / load
            if now_s >= end_s:
                break
            model.advance(now_s)
            model.offer(arrivals.below(agent.shard_count), size_bytes)
        model.advance(end_s)
        start_s = end_s
    model.advance(start_s + drain_s)
    return model


def run_lone_producers(
    agent: AgentModel, policy: Policy, *, duration_s: float, producers: int = 1, pause_s: float = 0.2, seed: int = 1
) -> SchedulerModel:
    """Producers that send one small record, wait for its acknowledgement, pause, and send the next."""
    model = SchedulerModel(agent, policy, seed=seed)
    choice = SeededEntropy(seed).fork("lone")

    def send() -> None:
        model.offer(choice.below(agent.shard_count), 1_000)

    def again(_: int) -> None:
        if model.now_s < duration_s:
            model.at(model.now_s + pause_s * choice.uniform(0.5, 1.5), send)

    model.on_acknowledged = again
    for _ in range(producers):
        model.at(pause_s * choice.uniform(0.0, 1.0), send)
    model.advance(duration_s)
    return model
