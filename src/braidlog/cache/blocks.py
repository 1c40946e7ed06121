"""Blocks of objects in memory; concurrent misses share one GET.

The least recently used blocks go first.

With neighbours, an agent asks the owner of an object for just the bytes that it wants, so that no whole blocks travel
between agents. It reads the objects that it owns itself in blocks.
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
"""In place of a block's number: the whole object."""
_PIECE = -2
"""In place of a block's number: some bytes of an object. The name then holds their range."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    hits: int
    misses: int
    """Reads that found the block neither in the cache nor being loaded."""
    shared: int
    """Reads that waited for a GET that another read had started."""
    size_bytes: int
    blocks: int
    asked: int = 0
    """Misses that a neighbour answered, so that the store was not asked."""


class BlockCache:
    """Keeps blocks of objects, and loads those that are missing.

    Object data never changes, so a block is right, absent, or short because a reader named a wrong object size. Blocks
    that turn out to be damaged are read again from the store."""

    def __init__(
        self, store: Store, *, bytes_max: int, gets_in_flight_max: int = 64, neighbours: Neighbours | None = None
    ) -> None:
        self._store = store
        self._neighbours = neighbours
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._size_bytes = 0
        self._loading: dict[tuple[str, int, int], asyncio.Task[memoryview]] = {}
        """Loads under way, by the block's name and its length as its first reader knew it."""
        self._gets = asyncio.Semaphore(gets_in_flight_max)
        self._tasks = TaskGroup("block cache", errors_are_awaited=True)
        self._hits = self._misses = self._shared = self._asked = 0

    def insert(self, key: str, data: Bytes) -> None:
        """Take in a whole object that was just written.

        Its readers are already waiting for it. It stays in one piece, so that no read has to join blocks.
        """
        self._keep((key, _WHOLE), memoryview(data))

    async def read(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        """Return the bytes [start, end) of an object."""
        found = self.hit(key, start, end)
        if found is not None:
            return found
        owner = self._neighbours.owner_of(key) if self._neighbours is not None else None
        if owner is not None:
            name = (f"{key} {start}-{end}", _PIECE)
            return self._found(name) or await self._shared_load(
                (*name, end - start), self._ask(owner, name, key, object_size, start, end)
            )
        return await self.read_own(key, object_size, start, end)

    def hit(self, key: str, start: int, end: int) -> memoryview | None:
        """Like `read`, but from memory alone: None if the bytes are not here in one piece."""
        found = self.kept(key, start, end)
        if found is not None:
            self._hits += 1
        return found

    def kept(self, key: str, start: int, end: int) -> memoryview | None:
        """Return the bytes, without a copy, if memory holds them in one piece."""
        whole = self._blocks.get((key, _WHOLE))
        if whole is not None:
            self._blocks.move_to_end((key, _WHOLE))
            return whole[start:end]
        number = start // BLOCK_BYTES
        block = self._blocks.get((key, number))
        if block is None or end - number * BLOCK_BYTES > len(block):
            return None
        self._blocks.move_to_end((key, number))
        return block[start - number * BLOCK_BYTES : end - number * BLOCK_BYTES]

    async def read_own(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        """Like `read`, but from this cache or the store, whoever owns the object."""
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
        length = min(BLOCK_BYTES, object_size - number * BLOCK_BYTES)
        block = self._found((key, number))
        if block is not None and len(block) >= length:
            return block
        return await self._shared_load((key, number, length), self._load(key, number, length))

    async def read_again(self, key: str, object_size: int, start: int, end: int) -> memoryview:
        """Like `read`, but from the store, because the cached bytes are damaged."""
        self._forget((key, _WHOLE))
        self._forget((f"{key} {start}-{end}", _PIECE))
        for number in range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
            self._forget((key, number))
            length = min(BLOCK_BYTES, object_size - number * BLOCK_BYTES)
            self._keep((key, number), await self._get(key, number, length))
        return await self.read_own(key, object_size, start, end)

    async def _shared_load(self, name: tuple[str, int, int], load: Coroutine[Any, Any, memoryview]) -> memoryview:
        loading = self._loading.get(name)
        if loading is None:
            self._misses += 1
            loading = self._loading[name] = self._tasks.spawn(load)
        else:
            load.close()
            self._shared += 1
        # A reader that gives up must not cancel the GET that others wait for.
        return await asyncio.shield(loading)

    async def _load(self, key: str, number: int, length: int) -> memoryview:
        try:
            start = number * BLOCK_BYTES
            data: Bytes | None = None
            if self._neighbours is not None:
                data = await self._neighbours.ask_writer(key, start + length, start, start + length)
            if data is not None:
                self._asked += 1
            block = memoryview(data) if data is not None else await self._get(key, number, length)
            known = self._blocks.get((key, number))
            if known is None or len(known) < length:
                self._keep((key, number), block)
            return block
        finally:
            del self._loading[key, number, length]

    async def _get(self, key: str, number: int, length: int) -> memoryview:
        start = number * BLOCK_BYTES
        async with self._gets:
            return memoryview(await self._store.get_range(key, start, start + length))

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
            del self._loading[(*name, end - start)]

    def _forget(self, name: tuple[str, int]) -> None:
        known = self._blocks.pop(name, None)
        if known is not None:
            self._size_bytes -= len(known)

    def _keep(self, name: tuple[str, int], block: memoryview) -> None:
        self._forget(name)
        self._blocks[name] = block
        self._size_bytes += len(block)
        while self._size_bytes > self._bytes_max and self._blocks:
            self._size_bytes -= len(self._blocks.popitem(last=False)[1])

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(self._hits, self._misses, self._shared, self._size_bytes, len(self._blocks), self._asked)

    async def close(self) -> None:
        await self._tasks.cancel_all()
