"""Stand-ins for what is injected: time that passes only as a test wants it to."""

import asyncio


class FakeClock:
    """Sleeping moves time on at once, so that tests of timeouts and backoff take none.

    With `sleepers_wait`, time stands still until the test moves it, and sleepers wait for that. With `look_s`, so much
    time passes whenever somebody looks at the clock.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, *, sleepers_wait: bool = False, look_s: float = 0.0) -> None:
        self._wall_ms_start = wall_ms
        self._monotonic_s = 0.0
        self._suspended_s = 0.0
        self._look_s = look_s
        self._sleepers_wait = sleepers_wait
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.slept_s: list[float] = []

    def wall_ms(self) -> int:
        return self._wall_ms_start + int(self.boot_s() * 1000)

    def monotonic_s(self) -> float:
        self._monotonic_s += self._look_s
        return self._monotonic_s

    def boot_s(self) -> float:
        return self.monotonic_s() + self._suspended_s

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        if self._sleepers_wait:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sleepers.append((self._monotonic_s + seconds, woken))
            await woken
        else:
            self._monotonic_s += max(0.0, seconds)
            await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        self._monotonic_s += seconds
        due = [woken for end_s, woken in self._sleepers if end_s <= self._monotonic_s]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic_s]
        for woken in due:
            if not woken.done():
                woken.set_result(None)

    def suspend(self, seconds: float) -> None:
        """Let the machine be suspended for so long."""
        self._suspended_s += seconds
