"""Layers of caches in front of a store, each on top of the next.

They are memory, a zone's ring, a disk, and the store itself.

Objects never change once they are written, so what a layer holds is right, and nothing is ever invalidated. Every layer
is optional. A layer that fails passes the request on: a cache must not fail a request that would succeed without it.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from braidlog.objects.store import Bytes, Store
from braidlog.runtime.tasks import TaskGroup

Piece: TypeAlias = tuple[str, int, int]
"""A key, and the half-open range of its bytes."""


class Layer(Protocol):
    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        """Return the bytes [start, end) of an object of `object_size` bytes."""
        ...

    async def put(self, key: str, data: Bytes) -> None:
        """Write a whole object, create-only. It is in the store when this returns."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    hits: int = 0
    misses: int = 0
    """Reads that went on to the layer below."""
    shared: int = 0
    """Reads that waited for another read of the same piece."""
    hit_bytes: int = 0
    size_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        asked = self.hits + self.misses + self.shared
        return (self.hits + self.shared) / asked if asked else 0.0


class StoreLayer:
    """The bottom: the store itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.puts = self.gets = self.put_bytes = self.get_bytes = 0

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        self.gets += 1
        self.get_bytes += end - start
        return await self._store.get_range(key, start, end)

    async def put(self, key: str, data: Bytes) -> None:
        self.puts += 1
        self.put_bytes += len(data)
        await self._store.put(key, data)

    async def close(self) -> None:
        """Do nothing: whoever opened the store closes it."""


class LruIndex:
    """Chooses the pieces to keep within a number of bytes. Pure.

    The least recently used piece goes first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes: OrderedDict[Piece, int] = OrderedDict()
        self.size_bytes = 0

    def fits(self, size_bytes: int) -> bool:
        return size_bytes <= self._bytes_max

    def use(self, piece: Piece) -> bool:
        """Mark a piece as used, and return whether it is kept."""
        if piece not in self._sizes:
            return False
        self._sizes.move_to_end(piece)
        return True

    def add(self, piece: Piece, size_bytes: int) -> list[Piece]:
        """Keep a piece, which must fit, and return the pieces that have to go for it."""
        self.remove(piece)
        self._sizes[piece] = size_bytes
        self.size_bytes += size_bytes
        gone: list[Piece] = []
        while self.size_bytes > self._bytes_max:
            oldest, size = self._sizes.popitem(last=False)
            self.size_bytes -= size
            gone.append(oldest)
        return gone

    def remove(self, piece: Piece) -> None:
        self.size_bytes -= self._sizes.pop(piece, 0)


class MemoryLayer:
    """Keeps the most recently used pieces in memory.

    Concurrent misses share one read of the layer below.
    """

    def __init__(self, below: Layer, *, bytes_max: int, whole: bool = True, on_write: bool = False) -> None:
        """With `whole`, a miss reads the whole object; `on_write` keeps written ones.

        `whole` is for readers that ask for the rest later.
        """
        self._below = below
        self._whole = whole
        self._on_write = on_write
        self._index = LruIndex(bytes_max)
        self._pieces: dict[Piece, memoryview] = {}
        self._loading: dict[Piece, asyncio.Task[memoryview]] = {}
        self._tasks = TaskGroup("cache", errors_are_awaited=True)
        self._hits = self._misses = self._shared = self._hit_bytes = 0

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        whole: Piece = (key, 0, object_size)
        piece = whole if self._whole and self._index.fits(object_size) else (key, start, end)
        for known in dict.fromkeys((piece, whole)):
            if self._index.use(known):
                self._hits += 1
                self._hit_bytes += end - start
                return self._pieces[known][start - known[1] : end - known[1]]
        loading = self._loading.get(piece)
        if loading is None:
            self._misses += 1
            loading = self._loading[piece] = self._tasks.spawn(self._load(piece, object_size))
        else:
            self._shared += 1
        # A reader that gives up must not cancel the read that others wait for.
        return (await asyncio.shield(loading))[start - piece[1] : end - piece[1]]

    async def _load(self, piece: Piece, object_size: int) -> memoryview:
        key, start, end = piece
        try:
            data = memoryview(await self._below.read(key, object_size, start, end))
            self._keep(piece, data)
            return data
        finally:
            del self._loading[piece]

    async def put(self, key: str, data: Bytes) -> None:
        await self._below.put(key, data)
        if self._on_write:
            self._keep((key, 0, len(data)), memoryview(data))

    def insert(self, key: str, data: Bytes) -> None:
        """Keep a whole object that another has written."""
        self._keep((key, 0, len(data)), memoryview(data))

    def _keep(self, piece: Piece, data: memoryview) -> None:
        if self._index.fits(len(data)):
            self._pieces[piece] = data
            for gone in self._index.add(piece, len(data)):
                del self._pieces[gone]

    def statistics(self) -> LayerStatistics:
        return LayerStatistics(self._hits, self._misses, self._shared, self._hit_bytes, self._index.size_bytes)

    async def close(self) -> None:
        await self._tasks.cancel_all()
        await self._below.close()
