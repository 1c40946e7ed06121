"""The memory budget: bounded, fair, and never stuck."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.agent.connections.response_memory import ResponseMemory


def test_past_the_limit_requests_wait_their_turn() -> None:
    budget = ResponseMemory(100)
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


def test_thousands_that_give_their_room_back_at_once_do_not_pile_up() -> None:
    budget = ResponseMemory(100)
    assert budget.try_acquire(100)
    for _ in range(5_000):
        budget.acquire_later(1, lambda: budget.release(1))
    budget.release(100)
    assert (budget.used_bytes, budget.waiting) == (0, 0)


def test_a_request_larger_than_the_budget_goes_alone() -> None:
    budget = ResponseMemory(100)
    assert budget.try_acquire(500)
    assert not budget.try_acquire(1)
    budget.release(500)
    assert budget.try_acquire(1)


@given(st.lists(st.integers(1, 150), max_size=50))
def test_everything_is_granted_in_order_and_the_limit_holds(sizes: list[int]) -> None:
    budget = ResponseMemory(100)
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


async def test_who_gives_up_takes_no_room_and_holds_up_nobody() -> None:
    budget = ResponseMemory(100)
    assert budget.try_acquire(60)
    large, small = asyncio.ensure_future(budget.acquire(80)), asyncio.ensure_future(budget.acquire(30))
    await asyncio.sleep(0)
    assert budget.waiting == 2
    large.cancel()
    await small
    assert (budget.used_bytes, budget.waiting) == (90, 0)


async def test_room_that_was_granted_to_who_gives_up_meanwhile_is_given_back() -> None:
    budget = ResponseMemory(100)
    assert budget.try_acquire(60)
    waiting = asyncio.ensure_future(budget.acquire(80))
    await asyncio.sleep(0)
    budget.release(60)  # granted, but not heard of yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (budget.used_bytes, budget.waiting) == (0, 0)
    waiting = asyncio.ensure_future(budget.acquire(200))
    await waiting
    later = asyncio.ensure_future(budget.acquire(80))
    await asyncio.sleep(0)
    later.cancel()
    budget.release(200)  # the other way round
    with pytest.raises(asyncio.CancelledError):
        await later
    assert (budget.used_bytes, budget.waiting) == (0, 0)
