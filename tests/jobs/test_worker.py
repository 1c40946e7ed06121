"""A worker goes on taking jobs, whatever becomes of one try."""

import asyncio
from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.control.interface import ControlPlane
from braidlog.jobs.executor import Executor
from braidlog.jobs.worker import Worker
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable

TRIES = 5


class Refusing:
    """A control plane that has nothing but errors."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.tries = 0
        self.enough = asyncio.Event()

    async def take_jobs(self, request: Any, *, timeout_s: float | None = None) -> Any:
        self.tries += 1
        if self.tries == TRIES:
            self.enough.set()
        raise self._error


@pytest.mark.parametrize("error", [ControlUnavailable("not now"), KeyError("a mistake")])
async def test_jobs_are_asked_for_again_after_a_while(error: Exception) -> None:
    control, clock = Refusing(error), FakeClock()
    worker = Worker(
        cast(ControlPlane, control), cast(Executor, None), clock, SeededEntropy(1), name="worker", kinds=["merge"]
    )
    running, enough = asyncio.ensure_future(worker.run()), asyncio.ensure_future(control.enough.wait())
    await asyncio.wait([running, enough], return_when=asyncio.FIRST_COMPLETED)
    assert control.tries >= TRIES
    assert len(clock.slept_s) >= TRIES - 1
    assert sum(clock.slept_s) > 0
    running.cancel()
    await asyncio.wait([running])
