"""What the watchdog sees of stalls, with time that the test passes."""

import asyncio
import threading
import time
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from tests.fakes import FakeClock
from tests.step_meter import StepMeter

from braidlog.runtime.clock import SystemClock
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.watchdog import TICK_S, WARN_INTERVAL_S, WARN_S, Watchdog


def watched(clock: FakeClock) -> Watchdog:
    """As after `start`, but for the timer and the thread."""
    watchdog = Watchdog(clock)
    watchdog._loop = asyncio.get_running_loop()
    watchdog._loop_thread = threading.get_ident()
    watchdog._set_tick()
    return watchdog


async def test_stalls_become_a_histogram_of_seconds() -> None:
    clock = FakeClock()
    watchdog = watched(clock)
    for late_s in (0.0, 0.003, 0.03, 0.7):
        clock.advance(TICK_S + late_s)
        watchdog._tick()
    watchdog.stop()
    metrics = Metrics()
    metrics.register(watchdog)
    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }
    name = "braidlog_event_loop_stall_seconds"
    assert samples[f"{name}_bucket", "0.005"] == 2
    assert samples[f"{name}_bucket", "0.05"] == 3
    assert samples[f"{name}_bucket", "+Inf"] == samples[f"{name}_count", None] == 4
    assert round(samples["braidlog_event_loop_stall_max_seconds", None], 6) == 0.7


async def test_what_holds_up_the_loop_is_told_once_in_a_while(logs: list[dict[str, Any]]) -> None:
    clock = FakeClock()
    watchdog = watched(clock)
    watchdog._look()
    assert not logs
    clock.advance(TICK_S + WARN_S)
    watchdog._look()
    watchdog._look()
    assert [each["event"] for each in logs] == ["the event loop is held up"]
    assert "test_what_holds_up_the_loop" in logs[0]["running"]
    clock.advance(WARN_INTERVAL_S)
    watchdog._look()
    assert len(logs) == 2
    watchdog.stop()


async def test_each_step_is_measured_in_cpu_time() -> None:
    def work() -> None:
        until_s = time.thread_time() + 0.02
        while time.thread_time() < until_s:
            pass

    meter = StepMeter(SystemClock())
    meter.start()
    work()
    await asyncio.sleep(0)
    meter.stop()
    await asyncio.sleep(0)
    turns = meter.turns
    await asyncio.sleep(0)
    assert meter.turns == turns
    assert meter.cpu_s_max >= 0.02
    assert meter.wall_s_max > 0


async def test_it_starts_and_stops() -> None:
    watchdog = Watchdog(SystemClock())
    watchdog.start()
    await asyncio.sleep(0)
    watchdog.stop()
    watchdog._thread.join(60)
    assert not watchdog._thread.is_alive()
