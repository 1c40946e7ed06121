"""Which transactions are planned, and which of them are durable.

A planned transaction has run: later transactions and reads of this process see it. It is durable once no crash can
undo it. Transactions become durable in the order in which they were planned. Until then nobody may be told of them.
"""

import asyncio
from collections import deque

from braidlog.runtime.waiters import Waiters


class Progress:
    """Counts transactions in the order in which they ran."""

    def __init__(self) -> None:
        self.planned = 0
        self.durable = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Those that wait, each with the number of transactions that must be durable."""
        self._moved = Waiters()
        self._failure: Exception | None = None
        """Why planned transactions cannot be stored now."""
        self._end: Exception | None = None

    @property
    def ahead(self) -> int:
        """How many transactions are planned, but not durable."""
        return self.planned - self.durable

    @property
    def failure(self) -> Exception | None:
        return self._failure

    def plan(self, number: int) -> None:
        """Note that so many transactions have run."""
        self.planned = max(self.planned, number)

    def reach(self, number: int) -> None:
        """Note that so many transactions are durable."""
        self.plan(number)
        self.durable = max(self.durable, number)
        self._failure = None
        while self._waiting and self._waiting[0][0] <= self.durable:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
        self._moved.wake_all()

    def fail(self, failure: Exception) -> None:
        """Tell those that wait that nobody knows the outcome.

        The transactions stay planned, and whoever stores them goes on trying.
        """
        self._failure = failure
        self._refuse(failure)
        self._moved.wake_all()

    def retry(self) -> None:
        """Forget the failure, because the store has answered since."""
        self._failure = None

    def end(self, error: Exception) -> None:
        """Note that nothing planned will be known to be durable any more."""
        self._end = self._end or error
        self._refuse(self._end)
        self._moved.wake_all()

    def _refuse(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

    async def wait(self) -> None:
        """Return when everything that is planned now is durable.

        Raises if it cannot be stored now, or never.
        """
        if self.durable >= self.planned:
            return
        if (error := self._end or self._failure) is not None:
            raise error
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self.planned, future))
        await future

    async def moved(self) -> None:
        """Return after the next change."""
        await self._moved.wait()

    async def wait_for(self, number: int) -> None:
        """Return when so many transactions are durable, however long it takes.

        Raises only when that can never be.
        """
        while self.durable < number:
            if self._end is not None:
                raise self._end
            await self._moved.wait()
