"""Steps that repeat, whatever becomes of one of them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from tests.fakes import FakeClock

from braidlog.control.runner import Runner
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable, Fenced

Step: TypeAlias = Callable[[], Awaitable[None]]

INTERVAL_S = 10.0


async def nothing_planned() -> None:
    """What is planned is durable at once."""


def failing(error: Exception, rounds: int, done: asyncio.Event) -> tuple[list[Exception], Step]:
    failed: list[Exception] = []

    async def step() -> None:
        failed.append(error)
        if len(failed) == rounds:
            done.set()
        raise error

    return failed, step


@pytest.mark.parametrize("error", [ControlUnavailable("not now"), KeyError("a mistake")])
async def test_a_step_that_fails_is_tried_again_in_the_next_round(clock: FakeClock, error: Exception) -> None:
    runner = Runner(clock, SeededEntropy(1), nothing_planned)
    done = asyncio.Event()
    failed, step = failing(error, 3, done)
    runner.start([("step", INTERVAL_S, step)])
    waiting = asyncio.create_task(done.wait())
    await asyncio.wait([*runner._loops, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert len(failed) == 3
    assert min(clock.slept_s) >= 0.9 * INTERVAL_S
    assert not runner.fenced.is_set()
    waiting.cancel()
    await runner.stop()


async def test_a_step_that_is_fenced_is_the_last(clock: FakeClock) -> None:
    runner = Runner(clock, SeededEntropy(1), nothing_planned)
    failed, step = failing(Fenced("too late"), 3, asyncio.Event())
    runner.start([("step", INTERVAL_S, step)])
    await asyncio.wait(runner._loops)
    assert len(failed) == 1
    assert runner.fenced.is_set()
    await runner.stop()
