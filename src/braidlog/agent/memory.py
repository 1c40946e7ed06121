"""Memory budgets: past them sockets are not read and answers are not made. Nothing is dropped, nothing grows."""

import asyncio
from collections import deque
from collections.abc import Callable


class MemoryBudget:
    """Bytes that the agent holds: of requests until they are answered, or of answers until they are sent."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._used_bytes = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.on_waiting: Callable[[], None] = lambda: None
        """Called when somebody has to wait."""

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
        self.on_waiting()

    async def acquire(self, size_bytes: int) -> None:
        """Return once the room is taken. Who gives up meanwhile has taken none."""
        if self.try_acquire(size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (size_bytes, lambda: None if turn.done() else turn.set_result(None))
        self._waiting.append(waiting)
        self.on_waiting()
        try:
            await turn
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                self.release(0)  # whoever stood behind it may fit
            else:
                self.release(size_bytes)
            raise

    def release(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting:
            wanted_bytes, granted = self._waiting[0]
            if self._used_bytes + wanted_bytes > self.bytes_max and self._used_bytes > 0:
                return
            self._waiting.popleft()
            self._used_bytes += wanted_bytes
            granted()
