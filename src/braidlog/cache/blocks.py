"""Blocks of objects in memory: least recently used out first, and concurrent misses share one GET.

With neighbours, an object that another agent of the zone owns is asked of that one: only the bytes that are wanted, so
that nobody sends whole blocks to everybody. What is this agent's own, it reads in blocks.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from braidlog.cache.neighbours import Neighbours
from braidlog.objects.store import Bytes, Store
from braidlog.runtime.tasks import TaskGroup

BLOCK_BYTES = 8 * 1024 * 1024
"""An object of the usual size fits in one block, so that one GET serves the consumers of all its partitions."""
_WHOLE = -1
"""In place of a block's number: all of the object."""
_PIECE = -2
"""In place of a block's number: some bytes of an object, which the name has as well."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    hits: int
    misses: int
    """Reads that found the block neither here nor on its way."""
    shared: int
    """Reads that waited for a GET that another one had started."""
    size_bytes: int
    blocks: int
    asked: int = 0
    """Misses that a neighbour answered, so that the store was not asked."""


class BlockCache:
    """Object data never changes, so a block is either right or absent: nothing is ever invalidated."""

    def __init__(
        self, store: Store, *, bytes_max: int, gets_in_flight_max: int = 64, neighbours: Neighbours | None = None
    ) -> None:
        self._store = store
        self._neighbours = neighbours
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._size_bytes = 0
        self._loading: dict[tuple[str, int], asyncio.Task[memoryview]] = {}
        self._gets = asyncio.Semaphore(gets_in_flight_max)
        self._tasks = TaskGroup("block cache", errors_are_awaited=True)
        self._hits = self._misses = self._shared = self._asked = 0

    def insert(self, key: str, data: Bytes) -> None:
        """Take in a whole object that was just written: its readers are already waiting for it. It stays in one piece,
        so that nothing of it ever has to be put together again."""
        self._keep((key, _WHOLE), memoryview(data))

    async def read(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        """The bytes [start, end) of an object."""
        found = self.hit(key, start, end)
        if found is not None:
            return found
        owner = self._neighbours.owner_of(key) if self._neighbours is not None else None
        if owner is not None:
            name = (f"{key} {start}-{end}", _PIECE)
            return self._found(name) or await self._shared_load(
                name, self._ask(owner, name, key, object_size, start, end)
            )
        return await self.read_own(key, object_size, start, end)

    def hit(self, key: str, start: int, end: int) -> memoryview | None:
        """As `read`, where nobody has to be asked; None where somebody has to."""
        found = self.kept(key, start, end)
        if found is not None:
            self._hits += 1
        return found

    def kept(self, key: str, start: int, end: int) -> memoryview | None:
        """The bytes, if they are here in one piece, as they are unless they lie in several blocks."""
        whole = self._blocks.get((key, _WHOLE))
        if whole is not None:
            self._blocks.move_to_end((key, _WHOLE))
            return whole[start:end]
        number = start // BLOCK_BYTES
        block = self._blocks.get((key, number))
        if block is None or number != (end - 1) // BLOCK_BYTES:
            return None
        self._blocks.move_to_end((key, number))
        return block[start - number * BLOCK_BYTES : end - number * BLOCK_BYTES]

    async def read_own(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        """The same from here or from the store, whoever owns the object."""
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
        return self._found(name) or await self._shared_load(name, self._load(key, number, object_size))

    async def _shared_load(self, name: tuple[str, int], load: Coroutine[Any, Any, memoryview]) -> memoryview:
        loading = self._loading.get(name)
        if loading is None:
            self._misses += 1
            loading = self._loading[name] = self._tasks.spawn(load)
        else:
            load.close()
            self._shared += 1
        # A reader that gives up must not take the GET away from the others.
        return await asyncio.shield(loading)

    async def _load(self, key: str, number: int, object_size: int) -> memoryview:
        try:
            start = number * BLOCK_BYTES
            end = min(start + BLOCK_BYTES, object_size)
            data: Bytes | None = None
            if self._neighbours is not None:
                data = await self._neighbours.ask_writer(key, object_size, start, end)
            if data is None:
                async with self._gets:
                    data = await self._store.get_range(key, start, end)
            else:
                self._asked += 1
            block = memoryview(data)
            self._keep((key, number), block)
            return block
        finally:
            del self._loading[(key, number)]

    async def _ask(
        self, owner: str, name: tuple[str, int], key: str, object_size: int, start: int, end: int
    ) -> memoryview:
        try:
            assert self._neighbours is not None
            data = await self._neighbours.ask(owner, key, object_size, start, end)
            if data is None:
                return await self.read_own(key, object_size, start, end)
            self._asked += 1
            piece = memoryview(data)
            self._keep(name, piece)
            return piece
        finally:
            del self._loading[name]

    def _keep(self, name: tuple[str, int], block: memoryview) -> None:
        known = self._blocks.pop(name, None)
        if known is not None:
            self._size_bytes -= len(known)
        self._blocks[name] = block
        self._size_bytes += len(block)
        while self._size_bytes > self._bytes_max and self._blocks:
            self._size_bytes -= len(self._blocks.popitem(last=False)[1])

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(self._hits, self._misses, self._shared, self._size_bytes, len(self._blocks), self._asked)

    async def close(self) -> None:
        await self._tasks.cancel_all()
