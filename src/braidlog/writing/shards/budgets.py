"""An agent's PUT budget, as its shard groups share it.

Classic and journaled requests have a board each, with groups of their own, and are paid from one budget. So each
group's part is the same on both boards, and pays for the PUTs that its members make on the other one too. Each shard
counts its PUTs on each board, and a group notes how many of the other board's it has paid for.
"""

from braidlog.scheduling.budget import PutBudget, budget_share
from braidlog.writing.shards.board import Board


class GroupBudgets:
    """Shares the agent's budget among its groups.

    The savings of each are on the board, under its lock.
    """

    def __init__(self, board: Board, other: Board | None, whole: PutBudget) -> None:
        """`other` is the board that spends the same budget."""
        self._board = board
        self._other = other
        self._whole = whole

    def of(self, shards: range, now_s: float) -> PutBudget:
        """Return a group's budget, to look at it without a lock."""
        return self._read(shards, sum(self._unpaid(shards).values()), now_s)

    def take(self, shards: range, now_s: float) -> PutBudget:
        """Return a group's budget, to be put back after a change. Called under its lock."""
        unpaid = self._unpaid(shards)
        for shard, puts in unpaid.items():
            self._board.set_paid_puts(shard, self._board.paid_puts(shard) + puts)
        budget = self._read(shards, sum(unpaid.values()), now_s)
        if unpaid:
            self.put(shards.start, budget)
        return budget

    def put(self, group: int, budget: PutBudget) -> None:
        self._board.set_budget(group, budget.tokens, budget.refilled_s)

    def _read(self, shards: range, unpaid: int, now_s: float) -> PutBudget:
        whole = self._whole
        share = budget_share(whole.puts_per_s, whole.burst, len(shards), self._board.shard_count)
        tokens, refilled_s = self._board.budget(shards.start)
        if refilled_s > 0.0:
            share.tokens, share.refilled_s = tokens, refilled_s
        if unpaid:
            share.spend(unpaid, now_s)
        return share

    def _unpaid(self, shards: range) -> dict[int, int]:
        """Return the PUTs on the other board that this one has not paid for, by shard."""
        if self._other is None:
            return {}
        unpaid = {shard: self._other.puts(shard) - self._board.paid_puts(shard) for shard in shards}
        return {shard: puts for shard, puts in unpaid.items() if puts}


class OwnBudget(PutBudget):
    """A shard's own part of the budget, for when it is alone in its group."""

    def __init__(self, share: PutBudget, board: Board, other: Board | None, shard: int) -> None:
        super().__init__(share.puts_per_s, share.burst)
        self._board = board
        self._other = other
        self._shard = shard
        self.paid_puts = other.puts(shard) if other is not None else 0
        """The shard's PUTs on the other board that it has paid for."""

    def refill(self, now_s: float) -> None:
        super().refill(now_s)
        if self._other is not None:
            puts = self._other.puts(self._shard)
            self.tokens = max(0.0, self.tokens - (puts - self.paid_puts))
            self.paid_puts = puts

    def take_early(self, now_s: float) -> bool:
        is_taken = super().take_early(now_s)
        if is_taken:
            self._board.count_put(self._shard)
        return is_taken

    def take_due(self, now_s: float) -> None:
        super().take_due(now_s)
        self._board.count_put(self._shard)
