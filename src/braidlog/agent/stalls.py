"""Who holds memory that others wait for, and does nothing with it, is disconnected."""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from braidlog.agent.memory import MemoryBudget

LOOK_INTERVAL_S = 5.0
FRAME_INTERVALS_MAX = 12
"""A frame that others wait for has so many intervals to arrive."""


class Progress(NamedTuple):
    """How far a connection has got."""

    frame: memoryview | None
    """The request that is on its way in."""
    frame_filled: int
    unsent_bytes: int
    """Of a large response that is on its way out; 0: there is none."""


class Connection(Protocol):
    def progress(self) -> Progress: ...

    def close(self, reason: str, *, at_once: bool = False) -> None: ...


class Stalls:
    """Looks only while somebody waits: a slow client harms nobody as long as there is room."""

    def __init__(
        self, connections: Callable[[], Iterable[Connection]], requests: MemoryBudget, answers: MemoryBudget
    ) -> None:
        self._connections = connections
        self._requests = requests
        self._answers = answers
        self._before: list[tuple[Connection, Progress]] = []
        self._look_handle: asyncio.TimerHandle | None = None
        requests.on_waiting = answers.on_waiting = self._watch

    def _watch(self) -> None:
        if self._look_handle is None:
            self._before = [(connection, connection.progress()) for connection in self._connections()]
            self._look_handle = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._look_handle = None
        before, self._before = self._before, []
        for connection, then in before:
            now = connection.progress()
            if self._requests.waiting and _is_stalled_in(then, now):
                connection.close("a request that does not arrive, while others wait for its memory", at_once=True)
            elif self._answers.waiting and 0 < then.unsent_bytes == now.unsent_bytes:
                connection.close("a response that is not taken, while others wait for its memory", at_once=True)
        if self._requests.waiting or self._answers.waiting:
            self._watch()

    def close(self) -> None:
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None


def _is_stalled_in(then: Progress, now: Progress) -> bool:
    if then.frame is None or now.frame is not then.frame:
        return False
    return (now.frame_filled - then.frame_filled) * FRAME_INTERVALS_MAX < len(then.frame)
