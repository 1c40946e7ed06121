"""An asyncio event loop in virtual time: it moves the clock instead of waiting.

One thread, one order of events, no sockets and no threads: the same seed gives the same history. The simulated network
stands behind `create_server` and `create_connection`, so code under test opens sockets as it always does.
"""

import asyncio
import heapq
import inspect
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from braidlog.runtime.entropy import Entropy
from braidlog.sim.virtual.process import CURRENT, Process

if TYPE_CHECKING:
    from braidlog.sim.virtual.network import Network

T = TypeVar("T")

EXECUTOR_S_MIN, EXECUTOR_S_MAX = 0.0002, 0.004
"""The time that blocking work takes, such as a synced transaction or a small file."""


STEPS_MAX = 2_000_000
"""Forty times as many as an ordinary run takes."""


class Deadlock(Exception):
    """No event is left, and the run is not over."""


class Runaway(Exception):
    """The run has had too many events, and is not over."""


class VirtualLoop(asyncio.AbstractEventLoop):
    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy.fork("event loop")
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = 0
        self._steps = 0
        self.steps_max = STEPS_MAX
        """Raise it for scenarios that are long on purpose."""
        self._closed = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.network: Network | None = None
        self.failures: list[dict[str, Any]] = []
        """Uncaught errors of processes that are still alive."""

    # ── time and callbacks ──

    def time(self) -> float:
        return self._now_s

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._closed:
            self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + max(delay, 0.0), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._closed:
            self._order += 1
            heapq.heappush(self._timers, (when, self._order, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when its time comes."""

    # ── running ──

    def run_until_complete(self, future: Generator[Any, None, T] | Coroutine[Any, Any, T] | Any) -> T:
        asyncio._set_running_loop(self)
        try:
            main: asyncio.Future[T] = future if asyncio.isfuture(future) else self.create_task(future)  # type: ignore[arg-type]
            while not main.done():
                self._step()
            return main.result()
        finally:
            asyncio._set_running_loop(None)

    def _step(self) -> None:
        self._steps += 1
        if self._steps > self.steps_max:
            raise Runaway(f"not over after {self.steps_max} steps, at {self._now_s:.0f} s")
        if not self._ready:
            self._advance()
        handle = self._ready.popleft()
        if handle._cancelled:
            return
        process: Process | None = handle._context.get(CURRENT)  # type: ignore[attr-defined]
        if process is not None:
            if not process.is_alive:
                return
            if process.is_paused:
                process.parked.append(handle)
                return
        handle._run()

    def _advance(self) -> None:
        while self._timers:
            when, _, handle = heapq.heappop(self._timers)
            if handle._cancelled:
                continue
            self._now_s = max(self._now_s, when)
            self._ready.append(handle)
            return
        raise Deadlock("every task waits, and nothing will ever wake one")

    def resume(self, process: Process) -> None:
        """Resume a paused process. The callbacks that piled up run first, in their order."""
        process.is_paused = False
        self._ready.extend(process.parked)
        process.parked = []

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def stop(self) -> None:
        raise NotImplementedError("a virtual run ends when its main coroutine does")

    def run_forever(self) -> None:
        raise NotImplementedError("a virtual run has an end")

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        tasks, self._tasks = self._tasks, []
        # Unfinished coroutines are closed here, while their `finally` blocks find a loop that does nothing any more.
        asyncio._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    self._end(task)
        finally:
            asyncio._set_running_loop(None)

    def _end(self, task: asyncio.Task[Any]) -> None:
        coroutine = task.get_coro()
        if not task.done() and inspect.iscoroutine(coroutine):
            try:
                coroutine.close()
            except Exception:  # noqa: BLE001 - a dead process' last words
                return

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass

    # ── futures and tasks ──

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        # Kept to the end: if a killed process's coroutine were collected as garbage, its `finally` blocks would run, in
        # the context of whichever process is running then.
        self._tasks.append(task)
        if len(self._tasks) % 4096 == 0:
            self._tasks = [known for known in self._tasks if not known.done()]
        return task

    def spawn_in(self, process: Process, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that belongs to a process, and dies with it."""
        return self.create_task(coroutine, context=process.context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def get_task_factory(self) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = CURRENT.get()
        if not self._closed and (process is None or process.is_alive):
            self.failures.append(context)

    # ── blocking work ──

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run blocking work either at once or at the end of its time.

        A process that is killed meanwhile has done either all of it, without hearing so, or nothing.
        """
        done: asyncio.Future[T] = self.create_future()
        delay_s = self._entropy.uniform(EXECUTOR_S_MIN, EXECUTOR_S_MAX)

        def work() -> tuple[T | None, BaseException | None]:
            try:
                return func(*args), None
            except BaseException as error:  # noqa: BLE001 - it is the future's to raise
                return None, error

        def finish(outcome: tuple[T | None, BaseException | None] | None) -> None:
            value, error = outcome if outcome is not None else work()
            if not done.done():
                if error is not None:
                    done.set_exception(error)
                else:
                    done.set_result(value)  # type: ignore[arg-type]

        first = work() if self._entropy.below(2) else None
        self.call_later(delay_s, finish, first, context=copy_context())
        return done

    # ── the network ──

    def _net(self) -> "Network":
        if self.network is None:
            raise OSError("this loop has no network")
        return self.network

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return self._net().listen(protocol_factory, host, port, start_serving=options.get("start_serving", True))

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> tuple[Any, Any]:
        return await self._net().connect(protocol_factory, host, port)
