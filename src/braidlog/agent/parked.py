"""Fetches that wait for records, and the consumers that ask for the same again and again meanwhile."""

from collections.abc import Callable
from struct import Struct
from typing import Protocol, TypeAlias

from braidlog.agent.connection import ResponseSlot
from braidlog.agent.ticks import Ticks
from braidlog.agent.view import PartitionView
from braidlog.wire.fetch import FetchPartition

FRAME_BYTES_MAX = 4 * 1024
"""A longer request is not kept to be recognised."""
REPEATED_MAX = 32
"""Kept per connection."""

_CORRELATION_ID = Struct(">i")
_ID_START, _ID_END = 4, 8

Found: TypeAlias = list[tuple[FetchPartition, PartitionView]]
Again: TypeAlias = "Callable[[RepeatedFetch, int, ResponseSlot], None]"


class WaitingFetch(Protocol):
    def go_on(self) -> None:
        """One of its partitions has changed."""

    def answer_nothing_new(self, found: Found) -> None:
        """Its time is up, and nothing has changed."""


class Parked:
    """A fetch that waits for a change of its partitions, without a task: it goes on then, or ends with its time."""

    __slots__ = ("_fetch", "_found", "_tick", "_ticks")

    def __init__(self, fetch: WaitingFetch, found: Found, ticks: Ticks, timeout_s: float) -> None:
        self._fetch = fetch
        self._found = found
        self._ticks = ticks
        for _, partition in found:
            partition.waiters[self] = None
        self._tick: int | None = ticks.add(timeout_s, self)

    def done(self) -> bool:
        return self._tick is None

    def set_result(self, _result: None, /) -> None:
        """A partition has changed."""
        self._end()
        self._fetch.go_on()

    def expire(self) -> None:
        if self._tick is not None:
            self._end()
            self._fetch.answer_nothing_new(self._found)

    def _end(self) -> None:
        if self._tick is not None:
            self._ticks.remove(self._tick, self)
            self._tick = None
        for _, partition in self._found:
            partition.waiters.pop(self, None)


class RepeatedFetch:
    """A fetch that found nothing new, and what it was answered."""

    __slots__ = ("_again", "_changes", "answer", "found")

    def __init__(self, changes: int, found: Found, answer: bytes, again: Again) -> None:
        """`changes` are those of the view, of which `found` and `answer`, a response's body, know the last; `again`
        takes over a request that is alike, of which it gets the correlation id and the slot."""
        self._changes = changes
        self._again = again
        self.found = found
        self.answer = answer

    def is_current(self, changes: int) -> bool:
        return self._changes == changes

    def repeat(self, frame: memoryview, slot: ResponseSlot) -> None:
        self._again(self, _CORRELATION_ID.unpack_from(frame, _ID_START)[0], slot)


class RepeatedFetches:
    """Of a connection: a consumer that waits asks the same again, with its partitions in turn at the head."""

    def __init__(self) -> None:
        self._known: dict[bytes, RepeatedFetch] = {}
        """By what they came as, but for the correlation id."""

    def handle_alike(self, frame: memoryview, changes: int, slot: ResponseSlot) -> bool:
        """Whether such a request was there before, with nothing changed since. Then it is taken care of."""
        if len(frame) > FRAME_BYTES_MAX:
            return False
        repeated = self._known.get(_identity(frame))
        if repeated is None:
            return False
        if not repeated.is_current(changes):
            self._known.clear()
            return False
        repeated.repeat(frame, slot)
        return True

    def add(self, frame: memoryview, repeated: RepeatedFetch) -> None:
        if len(frame) <= FRAME_BYTES_MAX:
            if len(self._known) >= REPEATED_MAX:
                del self._known[next(iter(self._known))]
            self._known[_identity(frame)] = repeated


def _identity(frame: memoryview) -> bytes:
    return bytes(frame[_ID_END:]) + bytes(frame[:_ID_START])
