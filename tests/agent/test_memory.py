"""The memory budget: bounded, fair, and never stuck."""

from hypothesis import given
from hypothesis import strategies as st

from braidlog.agent.memory import MemoryBudget


def test_past_the_limit_requests_wait_their_turn() -> None:
    budget = MemoryBudget(100)
    granted: list[str] = []
    assert budget.try_acquire(80)
    assert not budget.try_acquire(30)
    budget.acquire_later(30, lambda: granted.append("first"))
    # A small one may not overtake: the large one would starve.
    assert not budget.try_acquire(1)
    budget.acquire_later(1, lambda: granted.append("second"))
    budget.release(80)
    assert granted == ["first", "second"]
    assert budget.used_bytes == 31


def test_a_request_larger_than_the_budget_goes_alone() -> None:
    budget = MemoryBudget(100)
    assert budget.try_acquire(500)
    assert not budget.try_acquire(1)
    budget.release(500)
    assert budget.try_acquire(1)


@given(st.lists(st.integers(1, 150), max_size=50))
def test_everything_is_granted_in_order_and_the_limit_holds(sizes: list[int]) -> None:
    budget = MemoryBudget(100)
    held: list[int] = []
    order: list[int] = []

    def grant(at: int, size: int) -> None:
        held.append(size)
        order.append(at)
        assert sum(held) <= 100 or len(held) == 1

    for at, size in enumerate(sizes):
        if budget.try_acquire(size):
            grant(at, size)
        else:
            budget.acquire_later(size, lambda at=at, size=size: grant(at, size))  # type: ignore[misc]
    while held:
        budget.release(held.pop(0))
    assert order == list(range(len(sizes)))
    assert budget.used_bytes == 0
