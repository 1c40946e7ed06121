"""Parked fetches: they wait for records without a task.

And repeated fetches, which are recognised by their bytes.

In an idle system nearly every request is such a fetch, sent again and again by the same consumer. So a repeated one
costs next to nothing: its partitions are watched already, and its answer is written already.
"""

from collections.abc import Callable
from struct import Struct
from typing import Protocol, TypeAlias

from braidlog.agent.cluster.view import ClusterView, PartitionView
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.read_path.ticks import Ticks
from braidlog.wire.fetch import FetchPartition
from braidlog.wire.header import frame_start

FRAME_BYTES_MAX = 4 * 1024
"""Longer requests are not kept to be recognised."""
REPEATED_MAX = 32
"""How many repeated fetches are kept per connection."""

_CORRELATION_ID = Struct(">i")
_ID_START, _ID_END = 4, 8

Found: TypeAlias = list[tuple[FetchPartition, PartitionView]]


class WaitingFetch(Protocol):
    def go_on(self) -> None:
        """Continue: one of the partitions has changed."""

    def answer_nothing_new(self, found: Found) -> None:
        """Answer: the time is up, and none of the partitions has changed."""


Resumed: TypeAlias = Callable[[int, ResponseSlot, float], WaitingFetch]


class Parked:
    """A fetch that waits, without a task, for a change or the end of its time."""

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
        """Wake up, as a future would: a partition has changed."""
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
    """A fetch that found nothing new, its answer, and how to repeat it."""

    __slots__ = ("_answer", "_changes", "_is_flexible", "_resumed", "_wait_s", "found")

    def __init__(
        self, changes: int, found: Found, answer: bytes, *, is_flexible: bool, wait_s: float, resumed: Resumed
    ) -> None:
        """`found` and `answer`, the body of a response, are as of `changes` of the view.

        `resumed` makes a whole fetch from a correlation id, a slot, and the time that it may still wait.
        """
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
    """A fetch that equals an earlier one, while it waits."""

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
    """Waits for a change of the partitions of a connection's repeated fetches.

    A fetch may name its partitions in any order. The watch stays in place from one fetch to the next.
    """

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
        """Stop waiting for a fetch. Returns the view's number of changes."""
        del self._waiting[fetch]
        if self._is_left:
            self.leave()
        return self._view.changes

    def leave(self) -> None:
        """Take no further fetch. The watch ends as soon as none waits."""
        self._is_left = True
        if not self._waiting:
            self._end()

    def done(self) -> bool:
        return self.is_over

    def set_result(self, _result: None, /) -> None:
        """Wake up, as a future would: a partition has changed."""
        waiting, self._waiting = self._waiting, {}
        self._end()
        for fetch in waiting:
            self._ticks.remove(fetch.tick, fetch)
            fetch.go_on(self._ticks.left_s(fetch.tick))

    def _end(self) -> None:
        self.is_over = True
        for partition in self._partitions:
            partition.waiters.pop(self, None)


class Rotation:
    """Recognises a request that is sent again with its partitions rotated.

    Consumers rotate them so that each is first in turn.
    """

    __slots__ = ("_end", "_frame_bytes", "_partitions", "_places", "_size", "_start", "_twice")

    def __init__(self, frame: bytes, partitions: range) -> None:
        """`partitions` has the position in the frame at which each of them begins."""
        self._start, self._end, self._size = partitions.start, partitions.stop, partitions.step
        self._frame_bytes = len(frame)
        self._partitions = frame[self._start : self._end]
        self._twice = 2 * self._partitions
        self._places = {frame[start : start + self._size]: start - self._start for start in partitions}

    def is_rotation(self, frame: bytes) -> bool:
        """Whether the frame has the same partitions in the same order, rotated or not."""
        start = self._start
        if len(frame) != self._frame_bytes:
            return False
        place = self._places.get(frame[start : start + self._size])
        return place is not None and self._twice.startswith(frame[start : self._end], place)

    def in_first_order(self, frame: bytes) -> bytes:
        """The frame with its partitions in the original order.

        A frame that is no rotation is returned as it is.
        """
        return frame[: self._start] + self._partitions + frame[self._end :] if self.is_rotation(frame) else frame


class RepeatedFetches:
    """A connection's repeated fetches.

    A consumer that waits sends the same request again, perhaps rotated.
    """

    def __init__(self, view: ClusterView, ticks: Ticks) -> None:
        self._view = view
        self._ticks = ticks
        self._watch: Watch | None = None
        self._watched: frozenset[int] = frozenset()
        self._rotation: Rotation | None = None
        self._known: dict[bytes, RepeatedFetch] = {}
        """Fetches by their frame without the correlation id, in the original order. All have the same partitions."""

    def handle_alike(self, frame: memoryview, slot: ResponseSlot) -> bool:
        """Let a request wait if it equals an earlier one and nothing has changed since.

        Returns whether it does.
        """
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

    def add(self, frame: memoryview, repeated: RepeatedFetch, rotation: range | None) -> None:
        """Keep a fetch.

        `rotation` has the position of each partition in the frame, if they may come rotated.
        """
        if len(frame) > FRAME_BYTES_MAX:
            return
        watched = frozenset(partition.partition_id for _, partition in repeated.found)
        if self._watch is None or self._watch.is_over or watched != self._watched:
            self.leave()
            self._watch, self._watched = Watch(self._view, repeated.found, self._ticks), watched
        whole = bytes(frame)
        if rotation is None:
            self._rotation = None
        elif self._rotation is None or not self._rotation.is_rotation(whole):
            self._rotation = Rotation(whole, rotation)
            self._known.clear()
        if len(self._known) >= REPEATED_MAX:
            del self._known[next(iter(self._known))]
        self._known[self._identity(whole)] = repeated

    def leave(self) -> None:
        """Forget all fetches. Those that wait are still answered."""
        self._known.clear()
        if self._watch is not None:
            self._watch.leave()
            self._watch = None

    def _identity(self, whole: bytes) -> bytes:
        if self._rotation is not None:
            whole = self._rotation.in_first_order(whole)
        return whole[_ID_END:] + whole[:_ID_START]
