"""The groups on the board: their locks, their budgets, and how a group's first shard splits and merges them."""

from collections.abc import Sequence
from typing import overload

import structlog

from braidlog.runtime.clock import Clock
from braidlog.scheduling.budget import PutBudget, budget_share, merge_budgets, split_budget
from braidlog.scheduling.groups import group_ids, members, merge, split
from braidlog.scheduling.loads import ShardLoad
from braidlog.scheduling.policy import Policy
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.writing.board import Board
from braidlog.writing.seat import Seat

log = structlog.get_logger(__name__)


class BoardLoads(Sequence[ShardLoad]):
    """Every shard's load, read when it is asked for."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __len__(self) -> int:
        return self._board.shard_count

    @overload
    def __getitem__(self, shard: int) -> ShardLoad: ...
    @overload
    def __getitem__(self, shard: slice) -> Sequence[ShardLoad]: ...
    def __getitem__(self, shard: int | slice) -> ShardLoad | Sequence[ShardLoad]:
        if isinstance(shard, slice):
            return [self._board.load(each) for each in range(*shard.indices(len(self)))]
        return self._board.load(shard)


class GroupLocks:
    """One lock per group, named after it, and how often they were taken."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.taken = 0
        self.missed = 0

    def take(self, group: int) -> bool:
        if self._seat.try_lock(group):
            self.taken += 1
            return True
        self.missed += 1
        return False

    def give(self, group: int) -> None:
        self._seat.unlock(group)


class GroupBudgets:
    """The agent's budget, shared out among its groups. What each has saved up is on the board, under its lock."""

    def __init__(self, board: Board, whole: PutBudget) -> None:
        self._board = board
        self._whole = whole

    def of(self, group: int, member_count: int) -> PutBudget:
        share = budget_share(self._whole.puts_per_s, self._whole.burst, member_count, self._board.shard_count)
        tokens, refilled_s = self._board.budget(group)
        if refilled_s > 0.0:
            share.tokens, share.refilled_s = tokens, refilled_s
        return share

    def put(self, group: int, budget: PutBudget) -> None:
        self._board.set_budget(group, budget.tokens, budget.refilled_s)


class Regrouping:
    """What one shard does to the groups when its policy says so."""

    def __init__(
        self,
        board: Board,
        shard: int,
        locks: GroupLocks,
        budgets: GroupBudgets,
        thresholds: RegroupThresholds,
        clock: Clock,
    ) -> None:
        self._board = board
        self._shard = shard
        self._locks = locks
        self._budgets = budgets
        self._thresholds = thresholds
        self._clock = clock
        self.splits = 0
        self.merges = 0

    def step(self, policy: Policy) -> range:
        """Split or merge, if it is time. Returns the shards that should hear of it."""
        groups = self._board.groups()
        now_s = self._clock.monotonic_s()
        standing = Standing(groups, BoardLoads(self._board), self._board.decided_s(), now_s)
        decision = policy.regroup(self._thresholds, standing, self._shard)
        if isinstance(decision, Split):
            return self._split(groups, decision)
        if isinstance(decision, Merge):
            return self._merge(groups, decision)
        return range(0)

    def _split(self, groups: list[int], decision: Split) -> range:
        lower, upper = decision.group, decision.upper.start
        if not self._locks.take(lower):
            return range(0)
        try:
            if self._board.groups() != groups:
                return range(0)
            now_s = self._clock.monotonic_s()
            shards = members(groups, lower)
            whole = self._budgets.of(lower, len(shards))
            halves = split_budget(whole, len(shards) - len(decision.upper), len(decision.upper), now_s)
            for group, budget in zip((lower, upper), halves, strict=True):
                self._budgets.put(group, budget)
                self._board.set_decided_s(group, now_s)
            self._board.set_groups(split(groups, lower))
        finally:
            self._locks.give(lower)
        self.splits += 1
        self._log("split", lower)
        return shards

    def _merge(self, groups: list[int], decision: Merge) -> range:
        lower, upper = decision.group, decision.absorbed.start
        if not self._locks.take(lower):
            return range(0)
        try:
            if not self._locks.take(upper):
                return range(0)
            try:
                if self._board.groups() != groups:
                    return range(0)
                now_s = self._clock.monotonic_s()
                merged = merge(groups, lower)
                budget = merge_budgets(
                    self._budgets.of(lower, len(members(groups, lower))),
                    self._budgets.of(upper, len(decision.absorbed)),
                    now_s,
                )
                self._budgets.put(lower, budget)
                self._board.set_decided_s(lower, now_s)
                self._board.set_groups(merged)
            finally:
                self._locks.give(upper)
        finally:
            self._locks.give(lower)
        self.merges += 1
        self._log("merged", lower)
        return members(merged, lower)

    def _log(self, what: str, group: int) -> None:
        log.info("upload groups changed", what=what, group=group, groups=len(group_ids(self._board.groups())))
