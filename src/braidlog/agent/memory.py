"""The admit stage's memory budget: past it the agent stops reading sockets. Nothing is dropped, nothing grows."""

from collections import deque
from collections.abc import Callable


class MemoryBudget:
    """Bytes of requests that the agent holds, from their arrival until they are answered."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def try_acquire(self, size_bytes: int) -> bool:
        """Take room, if there is any. A single request always fits into an empty budget, however large it is."""
        if self._waiting or (self._used_bytes + size_bytes > self.bytes_max and self._used_bytes > 0):
            return False
        self._used_bytes += size_bytes
        return True

    def acquire_later(self, size_bytes: int, granted: Callable[[], None]) -> None:
        """Call `granted` once the room is taken, first come first served."""
        self._waiting.append((size_bytes, granted))

    def release(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting:
            wanted_bytes, granted = self._waiting[0]
            if self._used_bytes + wanted_bytes > self.bytes_max and self._used_bytes > 0:
                return
            self._waiting.popleft()
            self._used_bytes += wanted_bytes
            granted()
