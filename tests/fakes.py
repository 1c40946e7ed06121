"""Stand-ins for what is injected: time that passes only when someone waits for it."""

import asyncio


class FakeClock:
    """Sleeping moves time on at once, so that tests of timeouts and backoff take none."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms_start = wall_ms
        self._monotonic_s = 0.0
        self.slept_s: list[float] = []

    def wall_ms(self) -> int:
        return self._wall_ms_start + int(self._monotonic_s * 1000)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self._monotonic_s += max(0.0, seconds)
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        self._monotonic_s += seconds
