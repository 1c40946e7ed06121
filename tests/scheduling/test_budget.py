"""An agent's PUT budget, shared out among its groups."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.scheduling.budget import PutBudget, budget_share, merge_budgets, split_budget


def test_a_group_has_its_part_of_the_rate_and_of_the_savings() -> None:
    part = budget_share(5.0, 10.0, 8, 32)
    assert (part.puts_per_s, part.burst) == (1.25, 2.5)
    assert [part.take_early(0.0) for _ in range(3)] == [True, True, False]


def test_a_part_of_less_than_one_put_saves_up_for_one() -> None:
    part = budget_share(5.0, 10.0, 1, 32)
    assert not part.take_early(0.0)
    assert part.next_early_s(0.0) == pytest.approx((1 - 10 / 32) / (5 / 32))
    assert part.take_early(10.0)
    assert not part.take_early(10.0), "and no more than one"


def test_a_split_divides_what_there_is_and_a_merge_adds_it_up() -> None:
    whole = PutBudget(6.0, 12.0)
    assert whole.take_early(0.0)
    lower, upper = split_budget(whole, 4, 2, now_s=0.0)
    assert (lower.puts_per_s, lower.burst, lower.tokens) == pytest.approx((4.0, 8.0, 22 / 3))
    assert (upper.puts_per_s, upper.burst, upper.tokens) == pytest.approx((2.0, 4.0, 11 / 3))
    merged = merge_budgets(lower, upper, now_s=0.0)
    assert (merged.puts_per_s, merged.burst, merged.tokens) == pytest.approx((6.0, 12.0, 11.0))


def test_free_puts_stay_free_and_no_budget_stays_none() -> None:
    for part in split_budget(PutBudget(math.inf, 1.0), 1, 1, now_s=0.0):
        assert part.take_early(0.0)
        assert part.take_early(0.0)
    for part in split_budget(PutBudget(0.0, 0.0), 1, 1, now_s=0.0):
        assert not part.take_early(1e6)


def test_a_clock_reading_that_is_a_moment_older_takes_nothing_away() -> None:
    budget = PutBudget(1.0, 1.0)
    assert budget.take_early(10.0)
    budget.refill(10.5)
    budget.refill(10.2)
    assert budget.tokens == pytest.approx(0.5)
    budget.refill(10.6)
    assert budget.tokens == pytest.approx(0.6)


def test_shares_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="a group of 5 of 4 shards"):
        budget_share(5.0, 10.0, 5, 4)
    with pytest.raises(ValueError, match="into 0 and 3"):
        split_budget(PutBudget(1.0, 1.0), 0, 3, now_s=0.0)


@given(st.lists(st.tuples(st.sampled_from(["split", "merge", "take", "due"]), st.floats(0.0, 0.5)), max_size=80))
@settings(max_examples=100)
def test_whatever_splits_and_merges_early_puts_never_exceed_rate_and_savings(steps: list[tuple[str, float]]) -> None:
    parts = [budget_share(5.0, 10.0, 8, 8)]
    counts = [8]
    now_s, taken = 0.0, 0
    for index, (action, gap_s) in enumerate(steps):
        now_s += gap_s
        at = index % len(parts)
        if action == "split" and counts[at] > 1:
            half = counts[at] // 2
            parts[at : at + 1] = split_budget(parts[at], half, half, now_s)
            counts[at : at + 1] = [half, half]
        elif action == "merge" and len(parts) > 1:
            at = min(at, len(parts) - 2)
            parts[at : at + 2] = [merge_budgets(parts[at], parts[at + 1], now_s)]
            counts[at : at + 2] = [sum(counts[at : at + 2])]
        elif action == "take":
            taken += parts[at].take_early(now_s)
        elif action == "due":
            parts[at].take_due(now_s)
        assert sum(part.puts_per_s for part in parts) == pytest.approx(5.0)
        assert sum(part.burst for part in parts) == pytest.approx(10.0)
    # Small parts save up to a whole PUT each, so that they can have one at all.
    assert taken <= 10.0 + 5.0 * now_s + 1e-6
