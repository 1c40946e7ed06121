"""How the control plane runs: calls with a deadline, changes that are seen through, and steps that repeat."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, Fenced

T = TypeVar("T")

_log = structlog.get_logger(__name__)

CHANGES_IN_FLIGHT_MAX = 10_000


class Running:
    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._changes: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._running = False
        self.fenced = asyncio.Event()
        """Set when another control plane has taken over: this one must be closed."""

    def _start_loops(self, steps: list[tuple[str, float, Callable[[], Awaitable[object]]]]) -> None:
        """Each with its name and its interval."""
        self._loops = [
            asyncio.create_task(self._repeat(name, interval_s, step), name=name) for name, interval_s, step in steps
        ]

    async def _stop(self) -> None:
        """Finish what is in flight."""
        self._running = False
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
            self._loops.clear()
        if self._changes:
            await asyncio.wait(self._changes)

    async def _repeat(self, name: str, interval_s: float, step: Callable[[], Awaitable[object]]) -> None:
        entropy = self._entropy.fork(name)
        while True:
            # Jitter, so that the steps of many clusters, or of one, do not fall on the same moment.
            await self._clock.sleep(interval_s * entropy.uniform(0.9, 1.1))
            try:
                await self._change(step())
            except Fenced:
                return
            except BraidError as error:
                _log.warning(
                    "background step failed, will be tried again", step=name, error=str(error), help=error.help
                )
            except Exception as error:  # noqa: BLE001 - a step that never ran again would be missed much later
                _log.error("background step failed in an unforeseen way", step=name, exc_info=error)

    async def _change(self, work: Awaitable[T]) -> T:
        """Run to the end even where the caller gives up: a change half seen would leave memory and metadata apart."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and isinstance(task.exception(), Fenced):
            self.fenced.set()

    async def _within(self, timeout_s: float | None, work: Coroutine[Any, Any, T], *, change: bool = False) -> T:
        if not self._running or (change and len(self._changes) >= CHANGES_IN_FLIGHT_MAX):
            work.close()
            raise ControlUnavailable("the control plane is not running, or has too much to do")
        try:
            async with asyncio.timeout(timeout_s):
                return await (self._change(work) if change else work)
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s} s") from None
        except Fenced:
            self.fenced.set()
            raise
