"""What a Python process of Spark needs for shuffles: an event loop in a thread of its own, and stores that its tasks
share."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from braidlog.cache.layers import Layer
from braidlog.objects.local import LocalStore
from braidlog.objects.open import open_store
from braidlog.objects.retrying import RetryingStore
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.batcher import BatcherSettings, arena_for
from braidlog.spark.shuffle.caching import ShuffleCache
from braidlog.spark.shuffle.joining import NodeService
from braidlog.writing.arena import Arena

T = TypeVar("T")

_WORKERS_MAX = 8
READ_MEMORY_BYTES = 16 * 1024 * 1024


class Worker:
    """Use `worker_for`. Safe from any thread."""

    def __init__(self, store_url: str) -> None:
        if store_url.startswith("memory:"):
            raise JobError(
                "a store in memory can be read by its own process alone",
                help="Shuffle through file:///folder (a folder that all executors share) or s3://bucket/prefix.",
            )
        self.clock: Clock = SystemClock()
        self.entropy: Entropy = SystemEntropy()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="braidlog-shuffle", daemon=True).start()
        self._arenas: dict[int, Arena] = {}
        self.read_memory = Arena(free_bytes_max=READ_MEMORY_BYTES, region_bytes=READ_MEMORY_BYTES)
        """For what is read of files, by the thread of `read_in`."""
        self.read_in = ThreadPoolExecutor(1, thread_name_prefix="braidlog-read")
        self._layers: dict[tuple[ShuffleCache, str], Layer] = {}
        self._shared: dict[type[Any], Any] = {}
        self._store_url = store_url
        self._services: dict[tuple[BatcherSettings, ShuffleCache], NodeService] = {}
        self.store: Store = self.run(self._open(store_url))

    async def layer(self, cache: ShuffleCache, zone: str) -> Layer:
        """The caches in front of the store, which the tasks of this process share."""
        found = self._layers.get((cache, zone))
        if found is None:
            found = cache.build(self.store, zone, clock=self.clock, entropy=self.entropy.fork("cache"))
            self._layers[(cache, zone)] = found
        return found

    async def node_service(self, settings: BatcherSettings, cache: ShuffleCache) -> NodeService:
        """The process beside the tasks of this node that fills their batches together."""
        found = self._services.get((settings, cache))
        if found is None:
            found = NodeService(
                self._store_url, settings, cache, clock=self.clock, entropy=self.entropy.fork("service")
            )
            self._services[(settings, cache)] = found
        return found

    def arena(self, batch_bytes: int) -> Arena:
        """Memory for batches, which outlives the tasks that fill it."""
        if batch_bytes not in self._arenas:
            self._arenas.clear()
            self._arenas[batch_bytes] = arena_for(batch_bytes)
        return self._arenas[batch_bytes]

    def shared(self, kind: type[T]) -> T:
        """What the tasks of this process have in common, made when it is first asked for."""
        if kind not in self._shared:
            self._shared[kind] = kind()
        found: T = self._shared[kind]
        return found

    def local_store(self, cache: ShuffleCache, zone: str) -> LocalStore | None:
        """The store itself, where it is a folder and nothing is in front of it."""
        if cache.memory_bytes or cache.members_of(zone) or not isinstance(self.store, RetryingStore):
            return None
        return self.store.inner if isinstance(self.store.inner, LocalStore) else None

    async def _open(self, store_url: str) -> Store:
        return open_store(store_url, clock=self.clock, entropy=self.entropy.fork("store"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """An asynchronous generator as an ordinary one. Whoever stops early ends it."""

        async def following() -> tuple[T] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        try:
            while (found := self.run(following())) is not None:
                yield found[0]
        finally:
            self.run(items.aclose())

    def drop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop)

    async def _close(self) -> None:
        self.read_in.shutdown(wait=False)
        for service in self._services.values():
            await service.close()
        for layer in self._layers.values():
            await layer.close()
        await self.store.close()


_workers: dict[tuple[int, str], Worker] = {}
_workers_lock = threading.Lock()


def worker_for(store_url: str) -> Worker:
    """This process's worker. A forked process does not use its parent's: the loop's thread is not there."""
    with _workers_lock:
        key = (os.getpid(), store_url)
        worker = _workers.get(key)
        if worker is None:
            while len(_workers) >= _WORKERS_MAX:
                oldest = next(iter(_workers))
                dropped = _workers.pop(oldest)
                if oldest[0] == os.getpid():
                    dropped.drop()
            worker = _workers[key] = Worker(store_url)
        return worker
