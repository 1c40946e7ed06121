"""Limits the pace of replays, so that live writes do not wait for a backlog."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import ControlUnavailable

COMMITS_AT_ONCE_MAX = 16
"""How many replayed files the sequencer gets at once: no live one waits behind more."""
WAIT_S_MAX = 5.0


class ReplayPace:
    def __init__(self, clock: Clock, *, files_per_s: float) -> None:
        """`files_per_s` 0 means no limit."""
        self._clock = clock
        self._interval_s = 1.0 / files_per_s if files_per_s else 0.0
        self._next_s = 0.0
        self._at_once = asyncio.Semaphore(COMMITS_AT_ONCE_MAX)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        now_s = self._clock.monotonic_s()
        starts_s = max(now_s, self._next_s)
        if starts_s - now_s > WAIT_S_MAX:
            raise ControlUnavailable("too many files are replayed at once", help="They are sequenced one by one.")
        self._next_s = starts_s + self._interval_s
        if starts_s > now_s:
            await self._clock.sleep(starts_s - now_s)
        async with self._at_once:
            yield
