"""One budget for two boards: what is spent on one is not there on the other."""

import math
from pathlib import Path

import pytest
from bench._lightning_shards import Trickle, count_puts

from braidlog.runtime.entropy import SeededEntropy
from braidlog.scheduling.budget import PutBudget
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.network import Network
from braidlog.writing.shards.board import Board, BoardShape
from braidlog.writing.shards.budgets import GroupBudgets, OwnBudget

SHAPE = BoardShape(2, slot_count=8, arena_bytes=256)


def boards() -> tuple[Board, Board]:
    first, second = (Board(memoryview(bytearray(SHAPE.size_bytes)), SHAPE) for _ in range(2))
    return first, second


def test_a_group_pays_for_the_puts_of_its_members_on_the_other_board_once() -> None:
    board, other = boards()
    budgets = GroupBudgets(board, other, PutBudget(1.0, 8.0))
    for shard in (0, 1, 1):
        other.count_put(shard)
    assert budgets.of(range(2), now_s=10.0).tokens == 5.0  # a look changes nothing
    assert budgets.take(range(2), now_s=10.0).tokens == 5.0
    assert budgets.take(range(2), now_s=11.0).tokens == 5.0
    assert budgets.take(range(2), now_s=11.0).next_early_s(11.0) == 0.0
    # Each half goes on with what its own shards have paid for.
    other.count_put(1)
    assert budgets._unpaid(range(1)) == {}
    assert budgets._unpaid(range(1, 2)) == {1: 1}


def test_a_shard_that_is_alone_pays_for_its_own_puts_on_the_other_board() -> None:
    board, other = boards()
    other.count_put(0)  # before it began
    budget = OwnBudget(PutBudget(1.0, 4.0), board, other, 0)
    assert budget.take_early(1.0)
    budget.take_due(1.0)
    assert board.puts(0) == 2
    other.count_put(0)
    other.count_put(1)  # another shard's
    assert budget.take_early(1.0)
    assert not budget.take_early(1.0)
    assert budget.next_early_s(1.0) == 1.0
    assert board.puts(0) == 3


def test_where_puts_cost_nothing_there_is_always_one() -> None:
    board, other = boards()
    budget = OwnBudget(PutBudget(math.inf, 1.0), board, other, 0)
    assert all(budget.take_early(float(now_s)) for now_s in range(3))


@pytest.fixture
def puts(tmp_path: Path) -> dict[tuple[str, ...], int]:
    found = {}
    for kinds in (("classic",), ("lightning",), ("classic", "lightning")):
        entropy = SeededEntropy(1)
        loop = VirtualLoop(entropy)
        loop.network = Network(loop, entropy)
        plan = Trickle(kinds, duration_s=8.0, shard_count=4)
        try:
            found[kinds] = loop.run_until_complete(count_puts(plan, tmp_path, loop, entropy))
        finally:
            loop.close()
        assert not loop.failures
    return found


def test_a_trickle_costs_as_many_puts_in_lightning_topics(puts: dict[tuple[str, ...], int]) -> None:
    assert puts["lightning",] <= 1.05 * puts["classic",]
    # Both at once have one budget. Each alone has a burst of it to begin with.
    assert puts["classic", "lightning"] < 1.7 * puts["classic",]
