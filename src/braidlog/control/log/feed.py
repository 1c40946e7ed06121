"""The change feed: durable changes in order, for agents to follow.

Changes are numbered (fencing epoch, revision).
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice

from braidlog.control.interface import (
    AclsChanged,
    FeedEvent,
    FeedPage,
    FeedPosition,
    FeedRequest,
    ObjectSequenced,
    TopicChanged,
    TransactionsEnded,
)
from braidlog.runtime.waiters import Waiters

EVENTS_PER_PAGE_MAX = 2_000
BYTES_PER_PAGE_MAX = 8 * 1024 * 1024


def _cost_bytes(event: FeedEvent) -> int:
    """Estimate the size of an event in memory and on the wire."""
    match event:
        case ObjectSequenced(_, extents):
            return 200 + 160 * len(extents)
        case TransactionsEnded(_, extents, _, aborted):
            return 200 + 300 * len(extents) + 80 * len(aborted)
        case TopicChanged(topic):
            return 400 + 40 * len(topic.partition_ids)
        case AclsChanged(added, removed):
            return 200 + 200 * (len(added) + len(removed))
        case _:
            return 200


class Feed:
    """Keeps the newest events.

    A reader that has fallen behind them, or comes from another epoch, must reload.
    """

    def __init__(self, fencing_epoch: int, *, events_max: int, ring_bytes_max: int) -> None:
        self._epoch = fencing_epoch
        self._events_max = events_max
        self._ring_bytes_max = ring_bytes_max
        self._ring: deque[tuple[FeedEvent, int]] = deque()
        self._ring_bytes = 0
        self._revision = 0
        """The revision of the newest event. The oldest one kept has `revision - len(ring) + 1`."""
        self._waiters = Waiters()

    @property
    def position(self) -> FeedPosition:
        return FeedPosition(self._epoch, self._revision)

    def publish(self, events: Iterable[FeedEvent]) -> None:
        """Append changes that are durable and already visible in memory."""
        ring = self._ring
        for event in events:
            cost = _cost_bytes(event)
            ring.append((event, cost))
            self._ring_bytes += cost
            self._revision += 1
        while ring and (len(ring) > self._events_max or self._ring_bytes > self._ring_bytes_max):
            self._ring_bytes -= ring.popleft()[1]
        self.wake()

    def wake(self) -> None:
        """Answer every waiting reader with what there is."""
        self._waiters.wake_all()

    async def read(self, request: FeedRequest) -> FeedPage:
        """Return the events after a position. Waits up to `wait_ms` if there are none."""
        page = self._page(request.after)
        if page.events or page.reload or request.wait_ms <= 0:
            return page
        with suppress(TimeoutError):
            async with asyncio.timeout(request.wait_ms / 1000):
                await self._waiters.wait()
        return self._page(request.after)

    def _page(self, after: FeedPosition) -> FeedPage:
        behind = self._revision - after.revision
        if after.fencing_epoch != self._epoch or not 0 <= behind <= len(self._ring):
            return FeedPage(self.position, [], reload=True)
        events: list[FeedEvent] = []
        page_bytes = 0
        # Search backwards from the end: the ring is long, and readers are close behind.
        unread = list(islice(reversed(self._ring), behind))
        for event, cost in islice(reversed(unread), EVENTS_PER_PAGE_MAX):
            if events and page_bytes + cost > BYTES_PER_PAGE_MAX:
                break
            events.append(event)
            page_bytes += cost
        return FeedPage(FeedPosition(self._epoch, after.revision + len(events)), events)
