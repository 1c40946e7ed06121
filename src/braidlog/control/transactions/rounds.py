"""Changes to transactions, many in one metadata transaction.

Those that arrive while one is in flight share the next.

Each change is planned in memory and touches one transactional id. A round has at most one change of each id, so that no
plan depends on another one of its round.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from braidlog.control.interface import TransactionsEnded
from braidlog.control.log.recent import RecentExtents
from braidlog.control.metadata.store import Transaction
from braidlog.control.partitions import PartitionState
from braidlog.control.transactions.plans import EndPlan
from braidlog.runtime.errors import ControlUnavailable

T = TypeVar("T")

CHANGES_PER_ROUND_MAX = 500
CHANGES_WAITING_MAX = 20_000


class Round:
    """Changes that are written in one transaction, and applied once that is durable."""

    def __init__(self, partitions: Mapping[int, PartitionState], number: int, now_ms: int) -> None:
        self.now_ms = now_ms
        self.ends = EndPlan(partitions, number, now_ms)
        self._writes: list[Callable[[Transaction], None]] = []
        self._applies: list[Callable[[], None]] = []

    def add(self, write: Callable[[Transaction], None], apply: Callable[[], None]) -> None:
        """Add a change.

        `write` runs off the event loop, `apply` on it, once everything is durable.
        """
        self._writes.append(write)
        self._applies.append(apply)

    @property
    def is_empty(self) -> bool:
        return not self._writes and self.ends.is_empty

    def write(self, tx: Transaction) -> None:
        for write in self._writes:
            write(tx)
        self.ends.write(tx)

    def apply(self, recent: RecentExtents) -> list[TransactionsEnded]:
        events = self.ends.apply(recent)
        for apply in self._applies:
            apply()
        return events


@dataclass(slots=True, eq=False)
class _Waiting:
    transactional_id: str
    plan: Callable[[Round], Any]
    done: asyncio.Future[Any]


class RoundQueue:
    """Runs changes in the order of their arrival.

    `run` is called with the state lock held, for the plans of one round. It returns their answers when all of them are
    durable, and raises if none is.
    """

    def __init__(
        self, state_lock: asyncio.Lock, run: Callable[[list[Callable[[Round], Any]]], Awaitable[list[Any]]]
    ) -> None:
        self._state_lock = state_lock
        self._run = run
        self._queue: deque[_Waiting] = deque()
        self._worker: asyncio.Task[None] | None = None

    async def submit(self, transactional_id: str, plan: Callable[[Round], T]) -> T:
        """Return the answer of a plan once it is durable.

        A plan that changes nothing costs nothing.
        """
        if len(self._queue) >= CHANGES_WAITING_MAX:
            raise ControlUnavailable(
                f"{len(self._queue)} changes to transactions wait", help="The metadata store is too slow."
            )
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # If the caller has gone away, nobody retrieves an error.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._queue.append(_Waiting(transactional_id, plan, done))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="transactions")
        return await asyncio.shield(done)

    async def close(self) -> None:
        """Wait for the rounds in flight."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        try:
            while self._queue:
                async with self._state_lock:
                    await self._run_round(self._take_round())
        finally:
            self._worker = None

    def _take_round(self) -> list[_Waiting]:
        taken: dict[str, _Waiting] = {}
        left: list[_Waiting] = []
        while self._queue and len(taken) < CHANGES_PER_ROUND_MAX:
            waiting = self._queue.popleft()
            if waiting.transactional_id in taken:
                left.append(waiting)
            else:
                taken[waiting.transactional_id] = waiting
        self._queue.extendleft(reversed(left))
        return list(taken.values())

    async def _run_round(self, chosen: list[_Waiting]) -> None:
        try:
            answers = await self._run([waiting.plan for waiting in chosen])
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the answer to every caller of the round
            for waiting in chosen:
                if not waiting.done.done():
                    waiting.done.set_exception(error)
            return
        for waiting, answer in zip(chosen, answers, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(answer)
