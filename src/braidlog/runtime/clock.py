"""Time, as a component that is injected.

Durations come from `monotonic_s`, timestamps that people or Kafka records carry from `wall_ms`. Under the simulator
both follow virtual time, so no other module may ask the operating system what time it is.
"""

import asyncio
import time
from typing import Protocol

# On Linux the monotonic clock stands still while the machine is suspended. macOS has no CLOCK_BOOTTIME, but its
# CLOCK_MONOTONIC continues, unlike the clock behind `time.monotonic` there.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary moment. Never goes back."""
        ...

    def boot_s(self) -> float:
        """Like `monotonic_s`, but continues while the machine is suspended.

        It is for promises that others rely on.
        """
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_s(self) -> float:
        return time.clock_gettime(_BOOT_CLOCK)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
