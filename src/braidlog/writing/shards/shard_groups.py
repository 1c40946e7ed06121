"""The shard groups on the board: locks, splits and merges.

The first shard of a group splits and merges it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import overload

import structlog

from braidlog.runtime.clock import Clock
from braidlog.scheduling.budget import merge_budgets, split_budget
from braidlog.scheduling.loads import ShardLoad
from braidlog.scheduling.policy import Policy
from braidlog.scheduling.regrouping import Merge, RegroupThresholds, Split, Standing
from braidlog.scheduling.shard_groups import group_ids
from braidlog.writing.shards.board import Board
from braidlog.writing.shards.budgets import GroupBudgets
from braidlog.writing.shards.link import Locks

log = structlog.get_logger(__name__)


class BoardLoads(Sequence[ShardLoad]):
    """Reads every shard's load when it is asked for."""

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
    """Takes and gives back the groups' locks, and counts how often."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self.taken = 0
        self.missed = 0

    def take(self, group: int) -> bool:
        if self._locks.try_lock(group):
            self.taken += 1
            return True
        self.missed += 1
        return False

    def give(self, group: int) -> None:
        self._locks.unlock(group)

    def take_of(self, board: Board, shard: int) -> int | None:
        """Take the lock of the shard's group, so that the shard stays in it.

        Return the group, or None if the lock is taken or the group has just changed.
        """
        group = board.group_of(shard)
        if not self.take(group):
            return None
        if board.group_of(shard) != group:
            self.give(group)
            return None
        return group

    @contextmanager
    def both(self, lower: int, upper: int) -> Iterator[bool]:
        """Take both locks, or none. Yields whether they were taken."""
        if not self.take(lower):
            yield False
            return
        try:
            if not self.take(upper):
                yield False
                return
            try:
                yield True
            finally:
                self.give(upper)
        finally:
            self.give(lower)


def bury(board: Board, locks: GroupLocks, shard: int) -> bool:
    """Clear up after a shard whose process is gone.

    Return False if its group's lock is taken: try again.
    """
    group = locks.take_of(board, shard)
    if group is None:
        return False
    try:
        board.bury(shard)
    finally:
        locks.give(group)
    return True


class Regrouper:
    """Splits and merges the groups of one shard when its policy says so."""

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
        """Split or merge, if it is time. Return the shards to wake for it."""
        decision = self._decide(policy, now_s=self._clock.monotonic_s())
        if decision is None:
            return range(0)
        upper = decision.upper.start if isinstance(decision, Split) else decision.absorbed.start
        with self._locks.both(decision.group, upper) as taken:
            if not taken:
                return range(0)
            # The decision without the locks only said which ones to take. Now neither group can change.
            now_s = self._clock.monotonic_s()
            decision = self._decide(policy, now_s=now_s, same_as=decision)
            if isinstance(decision, Split):
                shards = self._split(decision, now_s)
            elif isinstance(decision, Merge):
                shards = self._merge(decision, now_s)
            else:
                return range(0)
        log.info(
            "upload groups changed",
            what="split" if isinstance(decision, Split) else "merged",
            group=decision.group,
            groups=len(group_ids(self._board.groups())),
        )
        return shards

    def _decide(self, policy: Policy, *, now_s: float, same_as: Split | Merge | None = None) -> Split | Merge | None:
        standing = Standing(self._board.groups(), BoardLoads(self._board), self._board.decided_s(), now_s)
        decision = policy.regroup(self._thresholds, standing, self._shard)
        return decision if same_as is None or decision == same_as else None

    # A shard that dies in the middle of either may lose some of the group's budget, which comes back by itself, but
    # never adds to it.

    def _split(self, decision: Split, now_s: float) -> range:
        lower, upper = decision.group, decision.upper
        whole = self._budgets.take(range(lower, upper.stop), now_s)
        halves = split_budget(whole, upper.start - lower, len(upper), now_s)
        for group, budget in zip((lower, upper.start), halves, strict=True):
            self._budgets.put(group, budget)
            self._board.set_decided_s(group, now_s)
        self._board.set_starts_group(upper.start, True)
        self.splits += 1
        return range(lower, upper.stop)

    def _merge(self, decision: Merge, now_s: float) -> range:
        lower, upper = decision.group, decision.absorbed
        budget = merge_budgets(
            self._budgets.take(range(lower, upper.start), now_s), self._budgets.take(upper, now_s), now_s
        )
        self._board.set_starts_group(upper.start, False)
        self._budgets.put(lower, budget)
        self._board.set_decided_s(lower, now_s)
        self.merges += 1
        return range(lower, upper.stop)
