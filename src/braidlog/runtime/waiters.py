"""What waits for the same event, and is woken together."""

import asyncio
from typing import Protocol


class Waiter(Protocol):
    """A future, or anything that can be woken like one."""

    def done(self) -> bool: ...

    def set_result(self, result: None, /) -> None: ...


class Waiters(dict[Waiter, None]):
    """An ordered set of waiters.

    `wake_all` empties it and wakes them in the order in which they came.

    It is a dict because fetches enter and leave the sets of many partitions. A dict does both without a Python call.
    """

    __slots__ = ()

    async def wait(self) -> None:
        """Return after the next `wake_all`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self[waiter] = None
        try:
            await waiter
        finally:
            self.pop(waiter, None)

    def wake_all(self) -> None:
        """Wake those that wait now.

        Whoever begins to wait meanwhile is woken the next time.
        """
        if not self:
            return
        waiters = list(self)
        self.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
