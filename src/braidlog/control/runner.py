"""Runs the control plane: calls with deadlines, changes and repeated steps.

Changes always finish.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar

import structlog

from braidlog.control.metadata.store import MetadataError
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, Fenced

T = TypeVar("T")

_log = structlog.get_logger(__name__)

CHANGES_IN_FLIGHT_MAX = 10_000


Step: TypeAlias = tuple[str, float, Callable[[], Awaitable[object]]]
"""A step that repeats: its name, its interval in seconds, and what it does."""


class Runner:
    def __init__(self, clock: Clock, entropy: Entropy, durable: Callable[[], Awaitable[None]]) -> None:
        """`durable` returns when everything planned is durable.

        No answer may tell of it before.
        """
        self._durable = durable
        self._clock = clock
        self._entropy = entropy
        self._changes: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self.is_running = False
        self.fenced = asyncio.Event()
        """Set when another control plane has taken over: this one must be closed."""

    def start(self, steps: Iterable[Step], lost: asyncio.Event | None = None) -> None:
        """Accept calls from now on, and repeat these steps.

        `lost` is set when the metadata has another holder.
        """
        self.is_running = True
        self._loops = [
            asyncio.create_task(self._repeat(name, interval_s, step), name=name) for name, interval_s, step in steps
        ]
        if lost is not None:
            self._loops.append(asyncio.create_task(self._watch(lost), name="holder of the metadata"))

    async def stop(self) -> None:
        """Refuse new calls, end the steps, and wait for the changes in flight."""
        self.is_running = False
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
            self._loops.clear()
        if self._changes:
            await asyncio.wait(self._changes)

    async def _watch(self, lost: asyncio.Event) -> None:
        """End also when nobody asks for anything that needs the metadata.

        Memory is out of date from then on.
        """
        await lost.wait()
        self.fenced.set()

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
                _log.warning("background step failed, will be retried", step=name, error=str(error), help=error.help)
            except Exception as error:  # noqa: BLE001 - a step that never ran again would be missed much later
                _log.error("background step failed unexpectedly", step=name, exc_info=error)

    async def _change(self, work: Awaitable[T]) -> T:
        """Run to the end even if the caller gives up.

        Half a change would leave memory and metadata apart.
        """
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and isinstance(task.exception(), Fenced):
            self.fenced.set()

    def check_running(self) -> None:
        """Raise `ControlUnavailable` unless calls are accepted.

        Raise `Fenced` once another control plane has taken over.
        """
        if not self.is_running:
            raise ControlUnavailable("the control plane is not running")
        if self.fenced.is_set():
            raise Fenced("another control plane has taken over the metadata")

    async def within(self, timeout_s: float | None, work: Coroutine[Any, Any, T], *, change: bool = False) -> T:
        """Answer a call before its deadline, once everything it may have seen is durable.

        A `change` goes on after the deadline, or when the caller is gone.
        """
        if not self.is_running or (change and len(self._changes) >= CHANGES_IN_FLIGHT_MAX):
            work.close()
            raise ControlUnavailable("the control plane is not running, or is overloaded")
        if self.fenced.is_set():
            work.close()
            self.check_running()
        try:
            async with asyncio.timeout(timeout_s):
                return await self._told(self._change(work) if change else work)
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s} s") from None
        except Fenced:
            self.fenced.set()
            raise

    async def look(self, timeout_s: float | None, read: Callable[[], T]) -> T:
        """Answer a call from memory, once everything it may have seen is durable."""

        async def called() -> T:
            return read()

        return await self.within(timeout_s, called())

    async def _told(self, work: Awaitable[T]) -> T:
        """Return the answer when it may leave the process.

        Memory is ahead of what is durable, and a crash may undo the difference. So an answer waits until everything is
        durable that was planned before it. An error may tell of that as well.
        """
        try:
            answer = await work
        except (MetadataError, Fenced):
            raise  # says nothing about the state
        except BraidError:
            await self._durable()
            raise
        await self._durable()
        self.check_running()
        return answer

    async def within_unseen(self, timeout_s: float | None, work: Coroutine[Any, Any, T]) -> T:
        """Answer a call that sees only what is durable."""
        if not self.is_running or self.fenced.is_set():
            work.close()
            self.check_running()
        try:
            async with asyncio.timeout(timeout_s):
                return await work
        except TimeoutError:
            raise DeadlineExceeded(f"no answer within {timeout_s} s") from None
