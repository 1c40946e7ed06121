"""One Braidlog in this process, and its console, for all tests of the console."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.console.driver import Driver

from braidlog.console.serving import ConsolePlan, run_console
from braidlog.node.serving import serve
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.quantities import Address


@pytest.fixture(scope="session")
def console() -> Iterator[Driver]:
    """The console of a cluster that runs on a thread of its own, because the clients of tests block."""
    started = threading.Event()
    found: list[Driver] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        settings = {
            "store_url": "memory://",
            "metadata_url": "sqlite://",
            "listen": "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "control_listen": "127.0.0.1:0",
            "pipeline": "off",
            "zone": "a",
        }
        async with serve(**settings) as log:
            plan = ConsolePlan(str(log.kafka), Address("127.0.0.1", 0))
            async with run_console(plan, SystemClock(), SystemEntropy()) as address:
                found.append(Driver(address, str(log.kafka)))
                started.set()
                await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert started.wait(90)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
