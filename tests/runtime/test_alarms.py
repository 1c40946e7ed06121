"""An alarm on the loop that agents run on, which has handles of two kinds."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from braidlog.runtime.alarms import Alarm

LONG_S = 3600.0


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("move", [Alarm.bring_forward, Alarm.put_off])
@pytest.mark.parametrize("delays_s", [(0.0, 0.0), (0.0, 0.0004), (0.0004, 0.0)])
def test_an_alarm_that_rings_at_once_can_be_moved(
    run: Callable[[Coroutine[Any, Any, None]], None],
    move: Callable[[Alarm, float], None],
    delays_s: tuple[float, float],
) -> None:
    async def test() -> None:
        rung = asyncio.Event()
        alarm = Alarm(rung.set)
        for delay_s in delays_s:
            move(alarm, delay_s)
        assert alarm.is_set
        await rung.wait()
        assert not alarm.is_set

    run(test())


def test_the_sooner_or_the_later_deadline_holds(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def test() -> None:
        sooner, later = asyncio.Event(), asyncio.Event()
        first, last = Alarm(sooner.set), Alarm(later.set)
        first.bring_forward(LONG_S)
        first.bring_forward(0.0)
        first.bring_forward(LONG_S)
        last.put_off(0.0)
        last.put_off(LONG_S)
        last.put_off(0.0)
        await sooner.wait()
        assert last.is_set
        assert not later.is_set()
        last.cancel()
        assert not last.is_set

    run(test())
