"""Deadlines that need not be exact.

Who waits until about the same moment is woken together.

Hundreds of consumers that wait for records would otherwise wake an idle agent hundreds of times a second, and waking up
costs more than answering. Answered together, they also ask again together.
"""

import asyncio
from math import ceil
from typing import Protocol

FINE_S = 0.005
COARSE_S = 0.1
COARSE_FROM_S = 0.5
"""Waits of this length and more end at the nearest coarse tick, so at most a tenth sooner or later than asked for."""

_FINE_PER_COARSE = round(COARSE_S / FINE_S)


class Expiring(Protocol):
    def expire(self) -> None:
        """End the wait: the time is up."""


class Ticks:
    def __init__(self) -> None:
        self._due: dict[int, dict[Expiring, None]] = {}
        """Those that wait, by tick. A tick counts fine intervals since the event loop's time began."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, wait_s: float, expiring: Expiring) -> int:
        """Call `expire` when about `wait_s` have passed. Returns the tick."""
        loop = self._loop
        if loop is None:  # looked up once, because each lookup is a system call
            loop = self._loop = asyncio.get_running_loop()
        now_s = loop.time()
        tick = ceil((now_s + wait_s) / FINE_S)
        if wait_s >= COARSE_FROM_S:
            tick = round(tick / _FINE_PER_COARSE) * _FINE_PER_COARSE
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}
            loop.call_later(max(0.0, tick * FINE_S - now_s), self._end, tick)
        due[expiring] = None
        return tick

    def left_s(self, tick: int) -> float:
        """The time until a tick."""
        return max(0.0, tick * FINE_S - asyncio.get_running_loop().time())

    def remove(self, tick: int, expiring: Expiring) -> None:
        """Stop waiting. Does nothing if the time is up already."""
        due = self._due.get(tick)
        if due is not None:
            due.pop(expiring, None)

    def _end(self, tick: int) -> None:
        for expiring in self._due.pop(tick):
            expiring.expire()
