"""Memory for requests.

Bytes that have arrived count; bytes that were only announced do not.

A small request is admitted as a whole, within the budget, before it is handled. A large one counts as it arrives, and
without room its connection is not read. The last part of the budget is reserved for small requests, and frames that are
still arriving do not count against them. So no number of large requests keeps a client from sending a small one. Nor
can small requests keep large ones out: a frame that waits goes first, once several budgets full of small requests have
passed it.

Frames that have arrived in part could fill the budget and wait for each other. So one frame at a time gets all the room
that it needs, as soon as the requests being handled leave that much. In the worst case there are half a budget of
unfinished frames and one whole frame beside a budget full of requests.

A frame's buffer is larger than what has arrived of it. While the buffers of all unfinished frames fit the room that is
meant for such frames, a buffer begins large. Past that it begins small and doubles as it is filled.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from braidlog.runtime.buffers import unzeroed

SMALL_SHARE = 8
"""One part in this many is reserved for small requests."""
ARRIVING_SHARE = 2
"""One part in this many may be taken by frames that are not complete yet."""
PATIENCE_BUDGETS = 4
"""How many budgets full of small requests may pass a frame that waits."""
STEP_BYTES = 1024 * 1024
"""How much room a frame that waited gets at a time, and the most that is read at once."""
BUFFER_BYTES_FIRST = 4 * 1024 * 1024
"""The first size of a frame's buffer. For a frame that claims to be larger, the buffer grows as it is filled."""
BUFFER_BYTES_LEAST = 128 * 1024
"""The first size of a frame's buffer while many frames have announced much and sent little."""


class ArrivingFrame:
    """A large request that has not arrived completely, in its own buffer."""

    __slots__ = ("counted_bytes", "filled_bytes", "is_waiting", "length", "view")

    def __init__(self, length: int, start: memoryview, buffer_bytes: int) -> None:
        self.length = length
        self.view = memoryview(unzeroed(buffer_bytes))
        self.filled_bytes = len(start)
        self.view[: self.filled_bytes] = start
        self.counted_bytes = 0
        """The bytes counted in the budget. More than `filled_bytes` if room was granted ahead."""
        self.is_waiting = False
        """Whether the frame waits for room."""

    def grow(self) -> int:
        """Double the buffer, at most to the whole frame. Returns by how many bytes."""
        larger = memoryview(unzeroed(min(self.length, 2 * len(self.view))))
        larger[: self.filled_bytes] = self.view
        more_bytes = len(larger) - len(self.view)
        self.view = larger
        return more_bytes


class RequestMemory:
    """Decides which requests may enter and which connections are read."""

    def __init__(self, bytes_max: int, on_waiting: Callable[["RequestMemory"], None] = lambda memory: None) -> None:
        """`on_waiting` is called whenever somebody has to wait."""
        self.bytes_max = bytes_max
        self._large_bytes_max = bytes_max - bytes_max // SMALL_SHARE
        self._arriving_bytes_max = bytes_max // ARRIVING_SHARE
        self._handled_bytes = 0
        self._arriving_bytes = 0
        self._buffer_bytes = 0
        """The size of all arriving frames' buffers, filled or not."""
        self._small: deque[tuple[int, Callable[[], None]]] = deque()
        self._large: OrderedDict[ArrivingFrame, Callable[[], None]] = OrderedDict()
        self._favoured: ArrivingFrame | None = None
        """The one frame that was given all the room it needs."""
        self._passed_bytes = 0
        """Bytes of small requests admitted while a frame waits, since a frame was last given room."""
        self._is_granting = False
        self._on_waiting = on_waiting

    @property
    def used_bytes(self) -> int:
        return self._handled_bytes + self._arriving_bytes

    @property
    def buffer_bytes(self) -> int:
        return self._buffer_bytes

    @property
    def waiting(self) -> int:
        return len(self._small) + len(self._large)

    # ── whole requests ──

    def try_admit(self, size_bytes: int) -> bool:
        """Take room for a small request if there is room."""
        if not self._small and not self._large and self._handled_bytes + size_bytes <= self.bytes_max:
            self._handled_bytes += size_bytes  # the usual case, kept short: it is taken for every small request
            return True
        if self._small or not self._fits(size_bytes):
            return False
        self._admit(size_bytes)
        return True

    def admit_later(self, size_bytes: int, granted: Callable[[], None]) -> None:
        """Call `granted` once room is taken.

        Small requests get it in the order in which they asked.
        """
        self._small.append((size_bytes, granted))
        self._on_waiting(self)

    def release(self, size_bytes: int) -> None:
        """Give back the room of a request that was answered."""
        self._handled_bytes -= size_bytes
        if self._small or self._large:
            self._grant()

    # ── frames that arrive ──

    def begin(self, length: int, start: memoryview) -> ArrivingFrame:
        """Return a buffer for a frame of which only the start has arrived."""
        buffer_bytes = min(length, BUFFER_BYTES_FIRST)
        if self._buffer_bytes + buffer_bytes > self._arriving_bytes_max:
            buffer_bytes = min(length, max(BUFFER_BYTES_LEAST, len(start)))
        self._buffer_bytes += buffer_bytes
        return ArrivingFrame(length, start, buffer_bytes)

    def unfilled(self, frame: ArrivingFrame) -> memoryview:
        """The part of a frame's buffer for its next bytes."""
        if frame.filled_bytes == len(frame.view):
            self._buffer_bytes += frame.grow()
        return frame.view[frame.filled_bytes : frame.filled_bytes + STEP_BYTES]

    def count(self, frame: ArrivingFrame) -> bool:
        """Count what has arrived of a frame.

        Returns False if it must not be read further before there is room.
        """
        more_bytes = frame.filled_bytes - frame.counted_bytes
        if more_bytes > 0:
            frame.counted_bytes = frame.filled_bytes
            self._arriving_bytes += more_bytes
        elif more_bytes < 0:
            return True
        return not self._large and self._has_room(0)

    def resume_later(self, frame: ArrivingFrame, granted: Callable[[], None]) -> None:
        """Call `granted` once more of a frame may be read."""
        frame.is_waiting = True
        self._large[frame] = granted
        self._on_waiting(self)
        self._grant()

    def complete(self, frame: ArrivingFrame) -> None:
        """Count a frame that has arrived completely as a request being handled."""
        self._handled_bytes += frame.length
        self.drop(frame)

    def drop(self, frame: ArrivingFrame) -> None:
        """Stop counting a frame as arriving: no more of it will be read."""
        self._buffer_bytes -= len(frame.view)
        self._arriving_bytes -= frame.counted_bytes
        frame.counted_bytes = 0
        if frame is self._favoured:
            self._favoured = None
        self._large.pop(frame, None)
        if self._small or self._large:
            self._grant()

    @property
    def _is_overdue(self) -> bool:
        """Whether the first waiting frame was passed by so many that it goes first.

        Only small requests may pass it.
        """
        return bool(self._large) and self._passed_bytes >= PATIENCE_BUDGETS * self.bytes_max

    def _fits(self, size_bytes: int) -> bool:
        limit_bytes = self._bytes_max_beside(next(iter(self._large))) if self._is_overdue else self.bytes_max
        return self._handled_bytes + size_bytes <= limit_bytes or self._handled_bytes == 0

    def _bytes_max_beside(self, frame: ArrivingFrame) -> int:
        """The most that requests being handled may take beside a whole frame."""
        return max(self.bytes_max // SMALL_SHARE, self._large_bytes_max - frame.length)

    def _admit(self, size_bytes: int) -> None:
        self._handled_bytes += size_bytes
        if self._large:
            self._passed_bytes += size_bytes

    def _has_room(self, more_bytes: int) -> bool:
        """Whether this many more bytes of frames may arrive."""
        return (
            self._arriving_bytes + more_bytes <= self._arriving_bytes_max
            and self.used_bytes + more_bytes <= self._large_bytes_max
        )

    def _grant(self) -> None:
        """Give room to everyone for whom there is enough.

        A receiver may give its room back at once, which calls this again. The loop keeps a thousand such receivers from
        becoming a thousand nested calls.
        """
        if self._is_granting:
            return
        self._is_granting = True
        try:
            while (granted := self._next_granted()) is not None:
                granted()
        finally:
            self._is_granting = False

    def _next_granted(self) -> Callable[[], None] | None:
        if self._small and self._fits(self._small[0][0]):
            size_bytes, granted = self._small.popleft()
            self._admit(size_bytes)
            return granted
        if not self._large:
            return None
        frame, granted = next(iter(self._large.items()))
        grant_bytes = self._room_for(frame)
        if not grant_bytes:
            return None
        del self._large[frame]
        frame.is_waiting = False
        frame.counted_bytes += grant_bytes
        self._arriving_bytes += grant_bytes
        self._passed_bytes = 0
        return granted

    def _room_for(self, frame: ArrivingFrame) -> int:
        """How many more bytes of a frame may be read now."""
        rest_bytes = frame.length - frame.counted_bytes
        step_bytes = min(STEP_BYTES, rest_bytes)
        may_be_favoured = self._favoured is None
        if self._is_overdue and may_be_favoured:
            leaves_room = self._handled_bytes <= self._bytes_max_beside(frame)
        elif self._has_room(step_bytes):
            return step_bytes
        else:
            leaves_room = self._handled_bytes + frame.length <= self._large_bytes_max or self._handled_bytes == 0
        if may_be_favoured and leaves_room:
            self._favoured = frame
            return rest_bytes
        return 0
