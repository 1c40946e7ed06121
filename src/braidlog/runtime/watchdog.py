"""How long the event loop is blocked, and by what.

Everything in a process shares its loop: clients, heartbeats, health checks. No step may take longer than 20 ms,
whatever a client sends. `Watchdog` runs in every process and looks ten times a second, so it sees all stalls that
matter to an operator.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidlog.runtime.clock import Clock
from braidlog.runtime.tally import Tally, histogram

log = structlog.get_logger(__name__)

TICK_S = 0.1
LOOK_S = 0.5
WARN_S = 1.0
"""A step that takes longer than this is logged, with the stack that was running."""
WARN_INTERVAL_S = 60.0
STACK_FRAMES_MAX = 12


class Watchdog(Collector):
    """Measures how late ticks are.

    A thread beside the loop logs the running stack when a tick does not come at all.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stalls = Tally()
        self._stall_s_max = 0.0
        self._due_s = 0.0
        self._warned_s = -WARN_INTERVAL_S
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="braidlog-watchdog", daemon=True)

    def start(self) -> None:
        """Watch the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._set_tick()
        self._thread.start()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._stopped.set()

    def collect(self) -> Iterator[Metric]:
        yield histogram(
            "braidlog_event_loop_stall_seconds",
            "How late the event loop ran what was due, measured ten times a second.",
            {"": self._stalls},
        )
        yield GaugeMetricFamily(
            "braidlog_event_loop_stall_max_seconds",
            "The longest stall of the event loop since the start.",
            value=self._stall_s_max,
        )

    def _set_tick(self) -> None:
        assert self._loop is not None
        self._due_s = self._clock.monotonic_s() + TICK_S
        self._handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        late_s = max(0.0, self._clock.monotonic_s() - self._due_s)
        self._stalls.observe(late_s)
        self._stall_s_max = max(self._stall_s_max, late_s)
        self._set_tick()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        now_s = self._clock.monotonic_s()
        late_s = now_s - self._due_s  # read once: the loop may go on while this thread looks
        if late_s < WARN_S or now_s - self._warned_s < WARN_INTERVAL_S:
            return
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return
        self._warned_s = now_s
        stack = traceback.format_list(traceback.extract_stack(frame)[-STACK_FRAMES_MAX:])
        log.warning("the event loop is held up", stalled_s=round(late_s, 1), running="".join(stack).rstrip())
