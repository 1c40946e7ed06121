"""The state that a Python worker keeps for shuffles between its tasks.

It consists of stores, caches and memory.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from braidlog.cache.layers import Layer
from braidlog.objects.local import LocalStore
from braidlog.objects.open import open_store
from braidlog.objects.retries import RetryingStore
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.spark.errors import JobError
from braidlog.spark.event_loop import PerProcess, event_loop_thread
from braidlog.spark.shuffle.batcher import arena_for
from braidlog.spark.shuffle.caches import ShuffleCache
from braidlog.spark.shuffle.service.client import NodeService
from braidlog.spark.shuffle.service.settings import NodeSettings
from braidlog.writing.arena import Arena

T = TypeVar("T")

READ_MEMORY_BYTES = 16 * 1024 * 1024


class PythonWorker:
    """Keeps a store, its caches and memory for the shuffle tasks of this process.

    Use `python_worker`.
    """

    def __init__(self, store_url: str) -> None:
        if store_url.startswith("memory:"):
            raise JobError(
                "a store in memory can only be read by its own process",
                help="Shuffle through file:///folder (a folder that all executors share) or s3://bucket/prefix.",
            )
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self.loop = event_loop_thread()
        self._arenas: dict[int, Arena] = {}
        self.read_memory = Arena(free_bytes_max=READ_MEMORY_BYTES, region_bytes=READ_MEMORY_BYTES)
        """Memory for reads of files, used only by the thread of `read_in`."""
        self.read_in = ThreadPoolExecutor(1, thread_name_prefix="braidlog-read")
        self._layers: dict[tuple[ShuffleCache, str], Layer] = {}
        self._shared: dict[type[Any], Any] = {}
        self._services: dict[NodeSettings, NodeService] = {}
        self.store: Store = self.loop.run(self._open(store_url))

    async def layer(self, cache: ShuffleCache, zone: str) -> Layer:
        """Return the store behind its caches, which the tasks of this process share."""
        found = self._layers.get((cache, zone))
        if found is None:
            found = cache.build(self.store, zone, clock=self.clock, entropy=self.entropy.fork("cache"))
            self._layers[(cache, zone)] = found
        return found

    async def node_service(self, settings: NodeSettings) -> NodeService:
        """Return the client of the process that this node's tasks share."""
        found = self._services.get(settings)
        if found is None:
            found = NodeService(settings, clock=self.clock, entropy=self.entropy.fork("service"))
            self._services[settings] = found
        return found

    def arena(self, batch_bytes: int) -> Arena:
        """Return memory for batches, which outlives the tasks that fill it."""
        if batch_bytes not in self._arenas:
            self._arenas.clear()
            self._arenas[batch_bytes] = arena_for(batch_bytes)
        return self._arenas[batch_bytes]

    def shared(self, kind: type[T]) -> T:
        """Return the object of this class that the tasks of this process share.

        It is made when it is first needed.
        """
        if kind not in self._shared:
            self._shared[kind] = kind()
        found: T = self._shared[kind]
        return found

    def local_store(self, cache: ShuffleCache, zone: str) -> LocalStore | None:
        """Return the store itself if it is a folder without a cache in front of it."""
        if cache.is_of_nodes or cache.members_of(zone) or not isinstance(self.store, RetryingStore):
            return None
        return self.store.inner if isinstance(self.store.inner, LocalStore) else None

    async def _open(self, store_url: str) -> Store:
        return open_store(store_url, clock=self.clock, entropy=self.entropy.fork("store"))

    async def close(self) -> None:
        self.read_in.shutdown(wait=False)
        for service in self._services.values():
            await service.close()
        for layer in self._layers.values():
            await layer.close()
        await self.store.close()


_workers: PerProcess[str, PythonWorker] = PerProcess(PythonWorker)


def python_worker(store_url: str) -> PythonWorker:
    """Return what this process keeps for shuffles through a store.

    Tasks that run one after another share it.
    """
    return _workers.get(store_url)
