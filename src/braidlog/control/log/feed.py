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
from braidlog.control.metadata.store import MetadataStore
from braidlog.runtime.errors import BraidError
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

    def __init__(self, fencing_epoch: int, metadata: MetadataStore, *, events_max: int, ring_bytes_max: int) -> None:
        self._epoch = fencing_epoch
        self._progress = metadata.progress
        self._planned: deque[tuple[int, list[FeedEvent]]] = deque()
        """Events that are not durable yet, each with how many transactions must be."""
        self._planned_count = 0
        self._releasing: asyncio.Task[None] | None = None
        self._events_max = events_max
        self._ring_bytes_max = ring_bytes_max
        self._ring: deque[tuple[FeedEvent, int]] = deque()
        self._ring_bytes = 0
        self._revision = 0
        """The revision of the newest event. The oldest one kept has `revision - len(ring) + 1`."""
        self._waiters = Waiters()

    @property
    def position(self) -> FeedPosition:
        """The number of the newest event that is visible in memory, durable or not."""
        return FeedPosition(self._epoch, self._revision + self._planned_count)

    def publish(self, events: Iterable[FeedEvent]) -> None:
        """Append changes that are planned and visible in memory.

        Readers see them once they are durable.
        """
        if not self._planned and not self._progress.ahead:
            self._append(events)
            return
        planned = list(events)
        if planned:
            self._planned.append((self._progress.planned, planned))
            self._planned_count += len(planned)
            if self._releasing is None:
                self._releasing = asyncio.create_task(self._release(), name="change feed")

    async def _release(self) -> None:
        """Append planned events as soon as they are durable."""
        try:
            while self._planned:
                with suppress(BraidError):
                    await self._progress.wait_for(self._planned[0][0])
                if self._progress.durable < self._planned[0][0]:
                    return  # they never will be: this process ends
                while self._planned and self._planned[0][0] <= self._progress.durable:
                    _, events = self._planned.popleft()
                    self._planned_count -= len(events)
                    self._append(events)
        finally:
            self._releasing = None

    def _append(self, events: Iterable[FeedEvent]) -> None:
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
        # A snapshot may be ahead of the ring by what has just become durable.
        behind = max(0, self._revision - after.revision)
        is_known = after.revision <= self._revision + self._planned_count and behind <= len(self._ring)
        if after.fencing_epoch != self._epoch or not is_known:
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
