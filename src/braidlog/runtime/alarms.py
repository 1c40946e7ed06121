"""A callback that runs once, at a deadline that may still be moved."""

import asyncio
from collections.abc import Callable


class Alarm:
    """Rings at most once for each time that it is set.

    Deadlines are in the event loop's time.

    It remembers its deadline itself, because an event loop's handle may not know it: uvloop answers a delay of less
    than half a millisecond with a plain `Handle`, which has no `when`.
    """

    __slots__ = ("_callback", "_deadline_s", "_handle")

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._handle: asyncio.Handle | None = None
        self._deadline_s = 0.0

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def bring_forward(self, delay_s: float) -> None:
        """Ring after `delay_s`, unless the alarm is set to ring sooner."""
        deadline_s = asyncio.get_running_loop().time() + delay_s
        if self._handle is None or deadline_s < self._deadline_s:
            self._set(deadline_s, delay_s)

    def put_off(self, delay_s: float) -> None:
        """Ring after `delay_s`, unless the alarm is set to ring later."""
        deadline_s = asyncio.get_running_loop().time() + delay_s
        if self._handle is None or deadline_s > self._deadline_s:
            self._set(deadline_s, delay_s)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _set(self, deadline_s: float, delay_s: float) -> None:
        self.cancel()
        self._deadline_s = deadline_s
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._handle = None
        self._callback()
