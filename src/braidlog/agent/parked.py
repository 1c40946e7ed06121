"""Fetches that wait for records, and the consumers that ask for the same again and again meanwhile.

In an idle system nearly every request is such a fetch, so one that was there before costs next to nothing: it is known
by its bytes, its partitions are watched already, and its answer is written already.
"""

from collections.abc import Callable
from struct import Struct
from typing import Protocol, TypeAlias

from braidlog.agent.connection import ResponseSlot
from braidlog.agent.ticks import Ticks
from braidlog.agent.view import ClusterView, PartitionView
from braidlog.wire.fetch import FetchPartition
from braidlog.wire.header import frame_start

FRAME_BYTES_MAX = 4 * 1024
"""A longer request is not kept to be recognised."""
REPEATED_MAX = 32
"""Kept per connection."""

_CORRELATION_ID = Struct(">i")
_ID_START, _ID_END = 4, 8

Found: TypeAlias = list[tuple[FetchPartition, PartitionView]]


class WaitingFetch(Protocol):
    def go_on(self) -> None:
        """One of its partitions has changed."""

    def answer_nothing_new(self, found: Found) -> None:
        """Its time is up, and none of its partitions has changed."""


Resumed: TypeAlias = Callable[[int, ResponseSlot, float], WaitingFetch]


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
    """A fetch that found nothing new, what it was answered, and how to go on with one that is alike."""

    __slots__ = ("_answer", "_changes", "_is_flexible", "_resumed", "_wait_s", "found")

    def __init__(
        self, changes: int, found: Found, answer: bytes, *, is_flexible: bool, wait_s: float, resumed: Resumed
    ) -> None:
        """`changes` are those of the view, of which `found` and `answer`, a response's body, know the last; `resumed`
        makes a whole fetch of a correlation id, a slot, and how long it may wait yet."""
        self._changes = changes
        self._answer = answer
        self._is_flexible = is_flexible
        self._wait_s = wait_s
        self._resumed = resumed
        self.found = found

    def is_current(self, changes: int) -> bool:
        return self._changes == changes

    def wait(self, watch: "Watch", correlation_id: int, slot: ResponseSlot) -> None:
        watch.add(_Again(self, watch, correlation_id, slot), self._wait_s)

    def go_on(self, correlation_id: int, slot: ResponseSlot, left_s: float) -> None:
        self._resumed(correlation_id, slot, left_s).go_on()

    def answer(self, correlation_id: int, slot: ResponseSlot, changes: int) -> None:
        if self.is_current(changes):
            start = frame_start(correlation_id, self._is_flexible, len(self._answer))
            slot.send_framed(start + self._answer)
        else:
            self._resumed(correlation_id, slot, 0.0).answer_nothing_new(self.found)


class _Again:
    """A fetch like one that was there before. It waits."""

    __slots__ = ("_correlation_id", "_repeated", "_slot", "_watch", "tick")

    def __init__(self, repeated: RepeatedFetch, watch: "Watch", correlation_id: int, slot: ResponseSlot) -> None:
        self._repeated = repeated
        self._watch = watch
        self._correlation_id = correlation_id
        self._slot = slot
        self.tick = 0

    def expire(self) -> None:
        self._repeated.answer(self._correlation_id, self._slot, self._watch.remove(self))

    def go_on(self, left_s: float) -> None:
        self._repeated.go_on(self._correlation_id, self._slot, left_s)


class Watch:
    """What a connection's repeated fetches wait for: a change of the same partitions, in whatever order they name them.
    It stays in place from one fetch to the next."""

    __slots__ = ("_is_left", "_partitions", "_ticks", "_view", "_waiting", "is_over")

    def __init__(self, view: ClusterView, found: Found, ticks: Ticks) -> None:
        self._view = view
        self._ticks = ticks
        self._waiting: dict[_Again, None] = {}
        self._partitions = [partition for _, partition in found]
        self._is_left = False
        self.is_over = False
        for partition in self._partitions:
            partition.waiters[self] = None

    def add(self, fetch: _Again, wait_s: float) -> None:
        self._waiting[fetch] = None
        fetch.tick = self._ticks.add(wait_s, fetch)

    def remove(self, fetch: _Again) -> int:
        """It waits no more. Returns what the view has seen of changes."""
        del self._waiting[fetch]
        if self._is_left:
            self.leave()
        return self._view.changes

    def leave(self) -> None:
        """No further fetch will wait here. Over as soon as none does."""
        self._is_left = True
        if not self._waiting:
            self._end()

    def done(self) -> bool:
        return self.is_over

    def set_result(self, _result: None, /) -> None:
        """A partition has changed."""
        waiting, self._waiting = self._waiting, {}
        self._end()
        for fetch in waiting:
            self._ticks.remove(fetch.tick, fetch)
            fetch.go_on(self._ticks.left_s(fetch.tick))

    def _end(self) -> None:
        self.is_over = True
        for partition in self._partitions:
            partition.waiters.pop(self, None)


class Turning:
    """The partitions of a request that is sent again with each of them in turn at the head."""

    __slots__ = ("_end", "_frame_bytes", "_partitions", "_places", "_size", "_start", "_twice")

    def __init__(self, frame: bytes, partitions: range) -> None:
        """`partitions` is where in the frame each of them begins."""
        self._start, self._end, self._size = partitions.start, partitions.stop, partitions.step
        self._frame_bytes = len(frame)
        self._partitions = frame[self._start : self._end]
        self._twice = 2 * self._partitions
        self._places = {frame[start : start + self._size]: start - self._start for start in partitions}

    def is_turn(self, frame: bytes) -> bool:
        """Whether the frame has the same partitions in the same order, whosever turn it is."""
        start = self._start
        if len(frame) != self._frame_bytes:
            return False
        place = self._places.get(frame[start : start + self._size])
        return place is not None and self._twice.startswith(frame[start : self._end], place)

    def turned_back(self, frame: bytes) -> bytes:
        """The frame as if it were the first one's turn, if it is a turn at all."""
        return frame[: self._start] + self._partitions + frame[self._end :] if self.is_turn(frame) else frame


class RepeatedFetches:
    """Of a connection: a consumer that waits asks the same again, with its partitions in turn at the head."""

    def __init__(self, view: ClusterView, ticks: Ticks) -> None:
        self._view = view
        self._ticks = ticks
        self._watch: Watch | None = None
        self._watched: frozenset[int] = frozenset()
        self._turning: Turning | None = None
        self._known: dict[bytes, RepeatedFetch] = {}
        """By what they came as, but for the correlation id and for whose turn it is. All have the same partitions."""

    def handle_alike(self, frame: memoryview, slot: ResponseSlot) -> bool:
        """Whether such a request was there before, with nothing changed since. Then it is taken care of."""
        if len(frame) > FRAME_BYTES_MAX:
            return False
        repeated = self._known.get(self._identity(bytes(frame)))
        watch = self._watch
        if repeated is None or watch is None:
            return False
        if watch.is_over or not repeated.is_current(self._view.changes):
            self._known.clear()
            return False
        repeated.wait(watch, _CORRELATION_ID.unpack_from(frame, _ID_START)[0], slot)
        return True

    def add(self, frame: memoryview, repeated: RepeatedFetch, turning: range | None) -> None:
        """`turning` is where in the frame each partition begins, if they may come in turn at the head."""
        if len(frame) > FRAME_BYTES_MAX:
            return
        watched = frozenset(partition.partition_id for _, partition in repeated.found)
        if self._watch is None or self._watch.is_over or watched != self._watched:
            self.leave()
            self._watch, self._watched = Watch(self._view, repeated.found, self._ticks), watched
        whole = bytes(frame)
        if turning is None:
            self._turning = None
        elif self._turning is None or not self._turning.is_turn(whole):
            self._turning = Turning(whole, turning)
            self._known.clear()
        if len(self._known) >= REPEATED_MAX:
            del self._known[next(iter(self._known))]
        self._known[self._identity(whole)] = repeated

    def leave(self) -> None:
        """What waits is answered yet; nothing else will."""
        self._known.clear()
        if self._watch is not None:
            self._watch.leave()
            self._watch = None

    def _identity(self, whole: bytes) -> bytes:
        if self._turning is not None:
            whole = self._turning.turned_back(whole)
        return whole[_ID_END:] + whole[:_ID_START]
