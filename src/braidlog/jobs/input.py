"""The input of a job: reads extents in order, in bounded memory.

It makes few requests.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from braidlog.control.interface import IndexedExtent, JobTask
from braidlog.objects.store import Bytes, Store
from braidlog.runtime.errors import BraidError, Remedy

READ_AHEAD_BYTES = 64 * 1024 * 1024
READS_IN_FLIGHT_MAX = 16


class DamagedInput(BraidError):
    """An extent differs from what the index says. The job leaves it as it is."""

    remedy = Remedy.GIVE_UP


class JobInput:
    """Reads extents of a task.

    One request reads extents that lie together in one object.
    """

    def __init__(self, store: Store, task: JobTask) -> None:
        self._store = store
        self._keys = {stored.number: stored.key for stored in task.objects}
        self._in_flight = asyncio.Semaphore(READS_IN_FLIGHT_MAX)

    async def read(self, extents: Sequence[IndexedExtent]) -> list[Bytes]:
        """Return the bytes of these extents, in the given order."""
        by_object: dict[int, list[int]] = {}
        found: list[Bytes] = [b""] * len(extents)
        for place, extent in enumerate(extents):
            if extent.inline is not None:
                found[place] = extent.inline
            else:
                by_object.setdefault(extent.object_number, []).append(place)

        async def read_object(number: int, places: list[int]) -> None:
            ranges = [(extents[at].position, extents[at].position + extents[at].length) for at in places]
            async with self._in_flight:
                parts = await self._store.get_ranges(self._keys[number], ranges)
            for at, part in zip(places, parts, strict=True):
                found[at] = part

        reads = [asyncio.ensure_future(read_object(number, places)) for number, places in by_object.items()]
        try:
            await asyncio.gather(*reads)
        finally:
            for read in reads:
                read.cancel()
        return found

    async def stream(
        self, extents: Sequence[IndexedExtent], *, bytes_max: int = READ_AHEAD_BYTES
    ) -> AsyncIterator[tuple[IndexedExtent, Bytes]]:
        """Yield the extents in order, with about `bytes_max` in memory at a time."""
        start = 0
        while start < len(extents):
            end, size_bytes = start, 0
            while end < len(extents) and (end == start or size_bytes + extents[end].length <= bytes_max):
                size_bytes += extents[end].length
                end += 1
            chosen = extents[start:end]
            for extent, data in zip(chosen, await self.read(chosen), strict=True):
                yield extent, data
            start = end
