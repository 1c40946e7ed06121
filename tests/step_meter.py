"""How long the steps of an event loop take."""

import asyncio
import time

from braidlog.runtime.clock import Clock


class StepMeter:
    """Measures every turn of the event loop while it runs, and leaves the loop no rest.

    It measures elapsed time and the thread's own CPU time. Other processes on the machine lengthen only the first.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turns = 0
        self.wall_s_max = 0.0
        self.cpu_s_max = 0.0
        self._is_running = False

    def start(self) -> None:
        self._is_running = True
        self._measure(asyncio.get_running_loop(), self._clock.monotonic_s(), time.thread_time())

    def stop(self) -> None:
        self._is_running = False

    def _measure(self, loop: asyncio.AbstractEventLoop, wall_s: float, cpu_s: float) -> None:
        if not self._is_running:
            return
        now_s, now_cpu_s = self._clock.monotonic_s(), time.thread_time()
        self.turns += 1
        self.wall_s_max = max(self.wall_s_max, now_s - wall_s)
        self.cpu_s_max = max(self.cpu_s_max, now_cpu_s - cpu_s)
        loop.call_soon(self._measure, loop, now_s, now_cpu_s)
