"""Time, as a component that is injected.

Durations come from `monotonic_s`, timestamps that people or Kafka records carry from `wall_ms`. Under the simulator
both follow virtual time, so no other module may ask the operating system what time it is.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment. Never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
