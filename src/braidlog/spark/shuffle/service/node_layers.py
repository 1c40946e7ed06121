"""The caches of a node: one for all of its tasks, in the process beside them."""

from pathlib import Path

from braidlog.cache.disk import DiskLayer
from braidlog.cache.layers import Layer, MemoryLayer, StoreLayer
from braidlog.objects.store import Bytes, Store
from braidlog.spark.shuffle.caches import ShuffleCache


class NodeLayers:
    """The store behind the node's memory and disk, if it has them."""

    def __init__(self, store: Store, cache: ShuffleCache, folder: Path) -> None:
        """`folder` is for the pieces on disk."""
        self.bottom = StoreLayer(store)
        self._cache = cache
        self._disk: DiskLayer | None = None
        self._memory: MemoryLayer | None = None
        self.top: Layer = self.bottom
        if cache.disk_bytes:
            self.top = self._disk = DiskLayer(self.bottom, folder, bytes_max=cache.disk_bytes)
        if cache.memory_bytes:
            # Whole batches: other partitions of a batch are read soon, by this node's tasks or by the zone's.
            self.top = self._memory = MemoryLayer(self.top, bytes_max=cache.memory_bytes)

    def keep(self, key: str, data: Bytes) -> None:
        """Keep a batch that was just written, if that is wanted."""
        if not self._cache.on_write:
            return
        if self._memory is not None:
            self._memory.insert(key, data)
        if self._disk is not None:
            self._disk.insert(key, data)

    async def close(self) -> None:
        await self.top.close()


class KeepingWriter:
    """Writes batches of the node's own zone, and keeps them for their readers."""

    def __init__(self, layers: NodeLayers, name: str) -> None:
        self._layers = layers
        self.name = name
        """The node's name, which the keys of its batches carry."""

    async def put(self, key: str, data: Bytes) -> None:
        await self._layers.bottom.put(key, data)
        # A copy, because the batch is a part of memory that is used again.
        self._layers.keep(key, bytes(data))
