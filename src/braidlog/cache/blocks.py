"""Blocks of objects in memory: least recently used out first, and concurrent misses share one GET."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from braidlog.objects.store import Bytes, Store
from braidlog.runtime.tasks import TaskGroup

BLOCK_BYTES = 8 * 1024 * 1024
"""An object of the usual size fits in one block, so that one GET serves the consumers of all its partitions."""
_WHOLE = -1
"""In place of a block's number: all of the object."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    hits: int
    misses: int
    """Reads that found the block neither here nor on its way."""
    shared: int
    """Reads that waited for a GET that another one had started."""
    size_bytes: int
    blocks: int


class BlockCache:
    """Object data never changes, so a block is either right or absent: nothing is ever invalidated."""

    def __init__(self, store: Store, *, bytes_max: int, gets_in_flight_max: int = 64) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._size_bytes = 0
        self._loading: dict[tuple[str, int], asyncio.Task[memoryview]] = {}
        self._gets = asyncio.Semaphore(gets_in_flight_max)
        self._tasks = TaskGroup("block cache", errors_are_awaited=True)
        self._hits = self._misses = self._shared = 0

    def insert(self, key: str, data: Bytes) -> None:
        """Take in a whole object that was just written: its readers are already waiting for it. It stays in one piece,
        so that nothing of it ever has to be put together again."""
        self._keep((key, _WHOLE), memoryview(data))

    async def read(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        """The bytes [start, end) of an object."""
        whole = self._found((key, _WHOLE))
        if whole is not None:
            return whole[start:end]
        first, last = start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES
        if first == last:
            block = await self._block(key, first, object_size)
            return block[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
        blocks = await asyncio.gather(*(self._block(key, number, object_size) for number in range(first, last + 1)))
        return memoryview(b"".join(blocks))[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]

    def _found(self, name: tuple[str, int]) -> memoryview | None:
        block = self._blocks.get(name)
        if block is not None:
            self._blocks.move_to_end(name)
            self._hits += 1
        return block

    async def _block(self, key: str, number: int, object_size: int) -> memoryview:
        name = (key, number)
        block = self._found(name)
        if block is not None:
            return block
        loading = self._loading.get(name)
        if loading is None:
            self._misses += 1
            loading = self._tasks.spawn(self._load(key, number, object_size))
            self._loading[name] = loading
        else:
            self._shared += 1
        # A reader that gives up must not take the GET away from the others.
        return await asyncio.shield(loading)

    async def _load(self, key: str, number: int, object_size: int) -> memoryview:
        try:
            start = number * BLOCK_BYTES
            async with self._gets:
                data: Bytes = await self._store.get_range(key, start, min(start + BLOCK_BYTES, object_size))
            block = memoryview(data)
            self._keep((key, number), block)
            return block
        finally:
            del self._loading[(key, number)]

    def _keep(self, name: tuple[str, int], block: memoryview) -> None:
        known = self._blocks.pop(name, None)
        if known is not None:
            self._size_bytes -= len(known)
        self._blocks[name] = block
        self._size_bytes += len(block)
        while self._size_bytes > self._bytes_max and self._blocks:
            self._size_bytes -= len(self._blocks.popitem(last=False)[1])

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(self._hits, self._misses, self._shared, self._size_bytes, len(self._blocks))

    async def close(self) -> None:
        await self._tasks.cancel_all()
