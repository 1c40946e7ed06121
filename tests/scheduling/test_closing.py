"""The batcher's decision and the PUT budget, as pure functions of time and counters."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import Close, CloseThresholds, Wait, decide_close

MIB = 1024 * 1024
THRESHOLDS = CloseThresholds(size_bytes=4 * MIB, interval_s=0.25, in_flight_max=4, early_in_flight_max=2)


def decide(budget: PutBudget, **given_values: object) -> Close | Wait:
    values: dict[str, object] = {"now_s": 10.0, "backlog_bytes": 1, "oldest_s": 10.0, "in_flight": 0, **given_values}
    return decide_close(THRESHOLDS, budget, **values)  # type: ignore[arg-type]


def empty_budget() -> PutBudget:
    budget = PutBudget(puts_per_s=5.0, burst=1.0)
    assert budget.take_early(10.0)
    return budget


def test_a_lone_write_goes_at_once_while_the_budget_lasts() -> None:
    assert decide(PutBudget(5.0, 1.0)) == Close(1)


def test_past_the_budget_it_waits_for_the_next_put_or_the_interval_whichever_is_sooner() -> None:
    assert decide(empty_budget()) == Wait(0.2)
    assert decide(empty_budget(), oldest_s=9.9) == Wait(9.9 + 0.25 - 10.0)


def test_the_interval_closes_whatever_the_budget_says() -> None:
    assert decide(empty_budget(), oldest_s=9.75, backlog_bytes=77) == Close(77)


def test_size_closes_in_equal_chunks_without_a_small_rest() -> None:
    assert decide(empty_budget(), backlog_bytes=4 * MIB) == Close(4 * MIB)
    assert decide(empty_budget(), backlog_bytes=9 * MIB) == Close(9 * MIB // 2)
    assert decide(empty_budget(), backlog_bytes=5 * MIB) == Close(5 * MIB)


def test_nothing_closes_while_all_uploads_are_taken() -> None:
    assert decide(PutBudget(5.0, 1.0), backlog_bytes=99 * MIB, in_flight=4) == Wait(None)


def test_behind_other_uploads_a_small_backlog_waits_for_its_interval() -> None:
    assert decide(PutBudget(5.0, 1.0), in_flight=2) == Wait(0.25)


def test_an_object_is_under_way_until_it_is_acknowledged() -> None:
    assert decide(PutBudget(5.0, 1.0), in_flight=0, unanswered=2) == Wait(0.25)
    assert decide(PutBudget(5.0, 1.0), in_flight=0, unanswered=1) == Close(1)


def test_behind_other_objects_one_may_grow_where_the_thresholds_say_so() -> None:
    growing = replace(THRESHOLDS, size_bytes_behind=8 * MIB)

    def decide_growing(backlog_bytes: int, unanswered: int) -> Close | Wait:
        return decide_close(
            growing,
            empty_budget(),
            now_s=10.0,
            backlog_bytes=backlog_bytes,
            oldest_s=10.0,
            in_flight=0,
            unanswered=unanswered,
        )

    assert decide_growing(5 * MIB, unanswered=1) == Close(5 * MIB)
    assert decide_growing(5 * MIB, unanswered=2) == Wait(0.25)
    assert decide_growing(9 * MIB, unanswered=2) == Close(9 * MIB)


def test_flushing_waits_for_nothing() -> None:
    assert decide(empty_budget(), backlog_bytes=5, flush=True) == Close(5)


def test_a_budget_of_nothing_never_allows_an_early_close() -> None:
    budget = PutBudget(puts_per_s=0.0, burst=0.0)
    assert not budget.take_early(0.0)
    assert budget.next_early_s(1e9) == math.inf


def test_where_puts_are_free_every_early_close_is_affordable() -> None:
    budget = PutBudget(puts_per_s=math.inf, burst=1.0)
    assert all(budget.take_early(now_s) for now_s in (0.0, 0.0, 0.0, 1.0))
    assert budget.next_early_s(1.0) == 0.0


@given(st.lists(st.floats(0.0, 0.5), min_size=1, max_size=200), st.floats(0.5, 50.0), st.floats(1.0, 20.0))
def test_early_puts_never_exceed_rate_and_burst(gaps_s: list[float], puts_per_s: float, burst: float) -> None:
    budget = PutBudget(puts_per_s, burst)
    now_s = 0.0
    taken = 0
    for gap_s in gaps_s:
        now_s += gap_s
        taken += budget.take_early(now_s)
    assert taken <= burst + puts_per_s * now_s + 1e-6


@given(st.integers(1, 64 * MIB), st.integers(0, 5), st.floats(0.0, 1.0))
def test_a_close_never_takes_more_than_there_is_and_no_chunk_is_far_from_the_threshold(
    backlog_bytes: int, in_flight: int, age_s: float
) -> None:
    decision = decide(empty_budget(), backlog_bytes=backlog_bytes, in_flight=in_flight, oldest_s=10.0 - age_s)
    if isinstance(decision, Close):
        assert 0 < decision.bytes_target <= backlog_bytes
        assert decision.bytes_target <= 1.5 * THRESHOLDS.size_bytes
