"""Shares of the event loop's time.

Long work runs in slices, so that other work can run in between.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TypeVar

from braidlog.runtime.clock import Clock

TURN_S = 0.002
"""The time that all sliced work may take in one turn of the event loop. A slice may overrun it."""
SLICE_LENGTH = 200
"""The number of elements in a slice. One takes up to 20 µs."""

T = TypeVar("T")
R = TypeVar("R")


class Turns:
    """Shares out the event loop's time.

    Work asks before each slice, and waits in line when the turn's time is used up.

    Under a virtual clock no work takes any time, so nobody ever waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_s = 0.0
        self._is_running = False
        """Whether a turn is under way, which ends when the loop gets to `_end_turn`."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._calls: deque[Callable[[], None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def has_time(self) -> bool:
        """Whether this turn of the loop has time for another slice of work."""
        now_s = self._clock.monotonic_s()
        if not self._is_running:
            self._begin_turn(now_s)
        return now_s < self._ends_s

    async def wait(self) -> None:
        """Return when it is the caller's turn.

        It returns at once if the turn has time left and nobody is in line.
        """
        if not self._waiting and self.has_time():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if not self._is_running:
            self._begin_turn(self._clock.monotonic_s())
        await turn

    def call_later(self, work: Callable[[], None]) -> None:
        """Call `work` in the next turn that has time for it.

        Calls keep their order; each turn makes as many as fit, and at least one.
        """
        self._calls.append(work)
        if not self._is_running:
            self._begin_turn(self._clock.monotonic_s())

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items, in slices."""
        for number, item in enumerate(items):
            if number % SLICE_LENGTH == 0:
                await self.wait()
            yield item

    async def map(self, make: Callable[[T], R], items: Iterable[T]) -> tuple[R, ...]:
        """`tuple(map(make, items))`, made in slices."""
        return tuple([make(item) async for item in self.each(items)])

    def _begin_turn(self, now_s: float) -> None:
        self._is_running = True
        self._ends_s = now_s + TURN_S
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_running = False
        if not self._calls and not self._waiting:
            return
        self._begin_turn(self._clock.monotonic_s())
        self._make_calls()
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise the waiter gave up
                # One at a time: whoever is let in may take a whole turn.
                turn.set_result(None)
                return

    def _make_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()
            if not self.has_time():
                return
