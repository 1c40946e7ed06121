"""A process's clock: the loop's virtual time, and a wall clock that may be wrong."""

import asyncio

from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.process import Process

EPOCH_MS = 1_767_225_600_000
"""Every simulated run begins on the first of January 2026."""


class SimClock:
    def __init__(self, loop: VirtualLoop, process: Process | None = None) -> None:
        self._loop = loop
        self._process = process

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + (self._process.skew_ms if self._process is not None else 0)

    def monotonic_s(self) -> float:
        return self._loop.time()

    def boot_s(self) -> float:
        return self.monotonic_s()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
