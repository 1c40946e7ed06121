"""Disconnects clients that hold memory others wait for, without progress."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from braidlog.agent.connections.request_memory import ArrivingFrame

LOOK_INTERVAL_S = 5.0
FRAME_INTERVALS_MAX = 12
"""How many intervals a frame may take to arrive while others wait for memory."""


class Progress(NamedTuple):
    """How far a connection has come with its request and its response."""

    frame: ArrivingFrame | None
    """The large request that is arriving."""
    frame_filled: int
    unsent_bytes: int
    """The bytes of a large response that are not sent yet; 0 if there is none."""


class Connection(Protocol):
    def progress(self) -> Progress: ...

    def close(self, reason: str, *, at_once: bool = False) -> None: ...


class Memory(Protocol):
    @property
    def waiting(self) -> int:
        """How many wait for room."""


class Stalls:
    """Looks for stalled clients, but only while somebody waits.

    As long as there is room, a slow client harms nobody.
    """

    def __init__(self, connections: Iterable[Connection]) -> None:
        self._connections = connections
        self._requests: Memory | None = None
        """The memory for requests, once somebody has waited for it. The next one is that for responses."""
        self._responses: Memory | None = None
        self._before: list[tuple[Connection, Progress]] = []
        self._look_handle: asyncio.TimerHandle | None = None

    def request_waits(self, memory: Memory) -> None:
        """A request waits for memory."""
        self._requests = memory
        self._watch()

    def response_waits(self, memory: Memory) -> None:
        """A response waits for memory."""
        self._responses = memory
        self._watch()

    def _watch(self) -> None:
        if self._look_handle is None:
            self._before = [(connection, connection.progress()) for connection in self._connections]
            self._look_handle = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._look_handle = None
        before, self._before = self._before, []
        for connection, then in before:
            now = connection.progress()
            if _is_waited_for(self._requests) and _is_stalled_in(then, now):
                connection.close("its request does not arrive, and others wait for the memory", at_once=True)
            elif _is_waited_for(self._responses) and 0 < then.unsent_bytes == now.unsent_bytes:
                connection.close("it does not take its response, and others wait for the memory", at_once=True)
        if _is_waited_for(self._requests) or _is_waited_for(self._responses):
            self._watch()

    def close(self) -> None:
        if self._look_handle is not None:
            self._look_handle.cancel()
            self._look_handle = None


def _is_stalled_in(then: Progress, now: Progress) -> bool:
    if then.frame is None or now.frame is not then.frame:
        return False
    return (now.frame_filled - then.frame_filled) * FRAME_INTERVALS_MAX < then.frame.length


def _is_waited_for(memory: Memory | None) -> bool:
    return memory is not None and memory.waiting > 0
