"""The PUT budget: how many uploads may start early.

So a lone write need not wait out the interval.

An agent has one budget. Each of its shard groups has a part of it in proportion to its shards: a split divides rate and
savings, a merge adds them up, and nothing is won or lost.
"""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class PutBudget:
    """A token bucket of early uploads.

    It never delays an upload that size or interval demands. Those draw on it too, so that a month's bill stays near the
    budget while the load allows it.
    """

    puts_per_s: float
    """Infinite where PUTs cost nothing."""
    burst: float
    """PUTs that it starts with, and the most that it saves up; but it may always save up one PUT."""
    tokens: float = -1.0
    """PUTs that it has now; negative before its first use, when it has its full burst."""
    refilled_s: float = 0.0

    @property
    def tokens_max(self) -> float:
        return max(1.0, self.burst) if self.puts_per_s > 0 else self.burst

    def refill(self, now_s: float) -> None:
        if self.puts_per_s == math.inf:
            self.tokens = self.tokens_max
        elif self.tokens < 0:
            self.tokens = self.burst
        else:
            # Shards read the same clock, but not in the order in which they got the lock.
            elapsed_s = max(0.0, now_s - self.refilled_s)
            self.tokens = min(self.tokens_max, self.tokens + elapsed_s * self.puts_per_s)
        self.refilled_s = max(self.refilled_s, now_s)

    def take_early(self, now_s: float) -> bool:
        """Spend one PUT on an early upload, if the budget has it."""
        self.refill(now_s)
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True

    def take_due(self, now_s: float) -> None:
        """Spend one PUT, as far as there is one, on an upload that happens anyway."""
        self.refill(now_s)
        self.tokens = max(0.0, self.tokens - 1.0)

    def spend(self, puts: int, now_s: float) -> None:
        """Spend PUTs that others have made of the same money, as far as there are any."""
        self.refill(now_s)
        self.tokens = max(0.0, self.tokens - puts)

    def next_early_s(self, now_s: float) -> float:
        """Return the seconds until the budget has an early upload; 0 if it has one now."""
        self.refill(now_s)
        if self.tokens >= 1.0:
            return 0.0
        return (1.0 - self.tokens) / self.puts_per_s if self.puts_per_s > 0 else math.inf


def budget_share(puts_per_s: float, burst: float, member_count: int, shard_count: int) -> PutBudget:
    """Return the part of an agent's budget with which a group starts.

    The group has `member_count` shards.
    """
    if not 1 <= member_count <= shard_count:
        raise ValueError(f"a group of {member_count} of {shard_count} shards")
    share = member_count / shard_count
    return PutBudget(puts_per_s * share, burst * share)


def split_budget(budget: PutBudget, lower_count: int, upper_count: int, now_s: float) -> tuple[PutBudget, PutBudget]:
    """Divide a group's budget between the halves of a split."""
    if lower_count < 1 or upper_count < 1:
        raise ValueError(f"a group does not split into {lower_count} and {upper_count} shards")
    budget.refill(now_s)
    share = lower_count / (lower_count + upper_count)
    return (
        PutBudget(budget.puts_per_s * share, budget.burst * share, budget.tokens * share, now_s),
        PutBudget(budget.puts_per_s * (1 - share), budget.burst * (1 - share), budget.tokens * (1 - share), now_s),
    )


def merge_budgets(lower: PutBudget, upper: PutBudget, now_s: float) -> PutBudget:
    """Add up the budgets of two groups that merge."""
    lower.refill(now_s)
    upper.refill(now_s)
    merged = PutBudget(lower.puts_per_s + upper.puts_per_s, lower.burst + upper.burst, 0.0, now_s)
    merged.tokens = min(merged.tokens_max, lower.tokens + upper.tokens)
    return merged
