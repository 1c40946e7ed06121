"""Deadlines that are kept together."""

import asyncio
from collections.abc import Callable

from braidlog.agent.read_path.ticks import COARSE_FROM_S, COARSE_S, FINE_S, Ticks


class Waiting:
    def __init__(self, ended: Callable[[], None]) -> None:
        self.expire = ended


async def test_long_waits_end_together_and_about_in_time() -> None:
    loop, ticks, ended = asyncio.get_running_loop(), Ticks(), asyncio.Event()
    called: list[tuple[str, float]] = []
    started_s = loop.time()

    def note(name: str) -> None:
        called.append((name, loop.time()))
        if len(called) == 3:
            ended.set()

    first = ticks.add(COARSE_FROM_S, Waiting(lambda: note("first")))
    second = ticks.add(COARSE_FROM_S + FINE_S / 10, Waiting(lambda: note("second")))
    short = ticks.add(2 * FINE_S, Waiting(lambda: note("short")))
    assert second - first in (0, round(COARSE_S / FINE_S))
    assert short < first
    await asyncio.wait_for(ended.wait(), 10)
    assert [name for name, _ in called] == ["short", "first", "second"]
    assert called[0][1] - started_s >= 2 * FINE_S - 0.001
    assert called[1][1] - started_s >= COARSE_FROM_S - COARSE_S / 2 - 0.001
    assert not ticks._due


async def test_what_was_removed_does_not_expire() -> None:
    ticks, ended = Ticks(), asyncio.Event()
    called: list[str] = []
    removed = Waiting(lambda: called.append("removed"))
    tick = ticks.add(FINE_S, removed)
    ticks.remove(tick, removed)
    ticks.remove(tick, removed)
    ticks.remove(tick + 1, removed)
    ticks.add(2 * FINE_S, Waiting(ended.set))
    await asyncio.wait_for(ended.wait(), 10)
    assert called == []
