"""Memory for responses: without room, a large response is not made yet.

Nothing is dropped, nothing grows.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class ResponseMemory:
    """Bytes of large responses that the agent holds until they are sent."""

    def __init__(self, bytes_max: int, on_waiting: Callable[["ResponseMemory"], None] = lambda memory: None) -> None:
        """`on_waiting` is called whenever somebody has to wait."""
        self.bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._on_waiting = on_waiting
        self._is_granting = False

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_acquire(self, size_bytes: int) -> bool:
        """Take room if there is room.

        A single response always fits into an empty budget, however large it is.
        """
        if self._waiting or (self._used_bytes + size_bytes > self.bytes_max and self._used_bytes > 0):
            return False
        self._used_bytes += size_bytes
        return True

    def acquire_later(self, size_bytes: int, granted: Callable[[], None]) -> None:
        """Call `granted` once the room is taken, in the order of the calls."""
        self._waiting.append((size_bytes, granted))
        self._on_waiting(self)

    async def acquire(self, size_bytes: int) -> None:
        """Return once the room is taken. A caller that is cancelled meanwhile takes none."""
        if self.try_acquire(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size_bytes, lambda: None if turn.done() else turn.set_result(None))
        self._waiting.append(waiting)
        self._on_waiting(self)
        try:
            await turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self.release(0)  # whoever waits behind it may fit now
            else:
                self.release(size_bytes)
            raise

    def resize(self, taken_bytes: int, size_bytes: int) -> None:
        """Correct the size of room that was taken.

        A larger response exists already, so it does not wait.
        """
        self.release(taken_bytes - size_bytes)

    def release(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        if self._is_granting:  # a receiver gives its room back at once: the loop below continues
            return
        self._is_granting = True
        try:
            while self._waiting:
                wanted_bytes, granted = self._waiting[0]
                if self._used_bytes + wanted_bytes > self.bytes_max and self._used_bytes > 0:
                    return
                self._waiting.popleft()
                self._used_bytes += wanted_bytes
                granted()
        finally:
            self._is_granting = False
