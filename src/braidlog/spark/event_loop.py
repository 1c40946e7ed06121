"""The event loop of a Spark process.

One thread runs it for all code that Spark calls.

Spark calls our code from ordinary threads, but the stores and the control plane speak asyncio. So each process has one
event loop in a thread of its own, and keeps its connections open between tasks.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

KEPT_MAX = 8


class EventLoopThread:
    """Runs coroutines for ordinary threads. Use `event_loop_thread`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="braidlog", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine and return at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end.

        Must not be called from the event loop, which would wait for itself.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Turn an asynchronous generator into an ordinary one.

        Closes it when the caller stops early.
        """

        async def following() -> tuple[T] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        try:
            while (found := self.run(following())) is not None:
                yield found[0]
        finally:
            self.run(items.aclose())


_threads: dict[int, EventLoopThread] = {}
_threads_lock = threading.Lock()


def event_loop_thread() -> EventLoopThread:
    """Return this process's event loop thread.

    A forked process gets one of its own: threads do not survive a fork.
    """
    with _threads_lock:
        found = _threads.get(os.getpid())
        if found is None:
            found = _threads[os.getpid()] = EventLoopThread()
        return found


class Closable(Protocol):
    async def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Closable)


class PerProcess(Generic[K, C]):
    """Keeps the newest connections of this process, one for each key.

    A forked process makes its own: those of its parent belong to an event loop that does not run here.
    """

    def __init__(self, make: Callable[[K], C]) -> None:
        self._make = make
        self._kept: dict[tuple[int, K], C] = {}
        self._lock = threading.Lock()

    def get(self, key: K) -> C:
        with self._lock:
            found = self._kept.get((os.getpid(), key))
            if found is None:
                while len(self._kept) >= KEPT_MAX:
                    self._drop_oldest()
                found = self._kept[(os.getpid(), key)] = self._make(key)
            return found

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._kept))
        dropped = self._kept.pop(oldest)
        if oldest[0] == os.getpid():
            event_loop_thread().start(dropped.close())
