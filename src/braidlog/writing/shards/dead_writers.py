"""Batches that a shard pulled before it died.

Nothing may overtake them until that shard is fenced off.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from braidlog.control.interface import ControlPlane, FenceAgent
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.order_node import OrderNode

log = structlog.get_logger(__name__)

BACKOFF = Backoff(first_s=0.1, max_s=5.0, share_min=0.5)


class Fence:
    """Asks the control plane to sequence nothing more of a shard that died."""

    def __init__(self, control: ControlPlane, clock: Clock, entropy: Entropy, *, call_timeout_s: float) -> None:
        self._control = control
        self._clock = clock
        self._entropy = entropy
        self._call_timeout_s = call_timeout_s

    async def __call__(self, incarnation: str) -> None:
        """Return when nothing of that writer can be sequenced any more.

        This may take long, because it must be certain.
        """
        failures = 0
        while True:
            try:
                await self._control.fence_agent(FenceAgent(incarnation), timeout_s=self._call_timeout_s)
            except BraidError as error:
                log.warning("could not fence off a dead shard yet", error=str(error), help=error.help)
                await self._clock.sleep(BACKOFF.pause_s(failures, self._entropy))
                failures += 1
            else:
                return


class LostBatches(Protocol):
    """Settles batches whose puller has died."""

    def settle_later(self, incarnation: int, node: OrderNode) -> None:
        """Settle a batch that this writer had pulled, as soon as others may follow it."""
        ...


class ReplayedWriters:
    """Settles the journaled batches of dead shards at once.

    Their files cannot be refused, whenever they are found, so no fence helps. A producer's sequence numbers keep their
    order.
    """

    def settle_later(self, incarnation: int, node: OrderNode) -> None:
        node.settle()


class DeadWriters:
    """Settles the batches of dead shards.

    It must be certain first that they never will be sequenced.
    """

    def __init__(self, fence: Callable[[str], Awaitable[None]], tasks: TaskGroup) -> None:
        """`fence(incarnation)` returns once nothing of that writer can be sequenced."""
        self._fence = fence
        self._tasks = tasks
        self._unsettled: dict[int, list[OrderNode]] = {}
        """Unsettled batches, by the incarnation of the writer that died."""

    def settle_later(self, incarnation: int, node: OrderNode) -> None:
        """Settle a batch that this writer had pulled, as soon as the writer is fenced off."""
        unsettled = self._unsettled.get(incarnation)
        if unsettled is not None:
            unsettled.append(node)
            return
        self._unsettled[incarnation] = [node]
        self._tasks.spawn(self._settle_after_fence(incarnation))

    async def _settle_after_fence(self, incarnation: int) -> None:
        try:
            await self._fence(incarnation.to_bytes(8, "big", signed=True).hex())
        finally:
            for node in self._unsettled.pop(incarnation):
                node.settle()
