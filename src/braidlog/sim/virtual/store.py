"""A simulated object store.

There is one bucket, and each process has an unreliable connection to it. A request takes effect at one moment and is
answered at a later one. The answer may be lost, the caller may be gone by then, and a put may take effect long after
its caller has given it up.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from math import exp
from typing import TypeVar

from braidlog.objects.store import (
    AlreadyExists,
    Blob,
    Bytes,
    Conflict,
    ListPage,
    NotFound,
    ObjectMeta,
    SlowDown,
    StoreTimeout,
    StoreUnavailable,
    Tail,
    TornRead,
)
from braidlog.runtime.entropy import Entropy
from braidlog.sim.virtual.clock import EPOCH_MS
from braidlog.sim.virtual.loop import VirtualLoop

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
LATE_PUT_S_MAX = 125.0


@dataclass(slots=True)
class StoreWeather:
    """How the store behaves now."""

    put_s_median: float = 0.05
    get_s_median: float = 0.01
    error: float = 0.0
    slow_down: float = 0.0
    lost_answer: float = 0.0
    """The request takes effect, but its answer is lost."""
    late_put: float = 0.0
    """The put takes effect only after its caller has given up."""
    torn_read: float = 0.0


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    etag: str
    modified_ms: int


class Bucket:
    """The contents of the store, which survive every process."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._context = Context()
        self._versions = 0
        self.objects: dict[str, _Stored] = {}
        self.puts = 0
        self.late_puts = 0
        """Puts that are still to take effect after their callers have given up."""
        self.watchers: list[Callable[[str], None]] = []
        """Called with the key of each put, at the moment when it takes effect and before its caller knows."""

    def after(self, delay_s: float, effect: Callable[[], T], answer_s: float = 0.0) -> asyncio.Future[T]:
        """Apply a request, even if its caller dies meanwhile, and answer a while later."""
        done: asyncio.Future[T] = self._loop.create_future()

        def answer(result: T | None, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
                done.exception()
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def happen() -> None:
            try:
                result, error = effect(), None
            except Exception as problem:  # noqa: BLE001 - it is the caller's to handle
                result, error = None, problem
            self._loop.call_later(answer_s, answer, result, error, context=self._context)

        self._loop.call_later(delay_s, happen, context=self._context)
        return done

    def land_late(self, delay_s: float, put: Callable[[], T]) -> None:
        def land() -> T:
            self.late_puts -= 1
            return put()

        self.late_puts += 1
        self.after(delay_s, land)

    def put(self, key: str, data: bytes, *, overwrite: bool, etag: str | None = None) -> str:
        known = self.objects.get(key)
        if etag is not None:
            if known is None or known.etag != etag:
                raise Conflict(f"{key} is not at version {etag}")
        elif known is not None and not overwrite:
            raise AlreadyExists(key)
        self._versions += 1
        self.puts += 1
        stored = _Stored(data, str(self._versions), EPOCH_MS + int(self._loop.time() * 1000))
        self.objects[key] = stored
        for watcher in list(self.watchers):
            watcher(key)
        return stored.etag

    def get(self, key: str) -> _Stored:
        if key not in self.objects:
            raise NotFound(key)
        return self.objects[key]


class SimStore:
    """One process's connection to the bucket."""

    def __init__(self, bucket: Bucket, loop: VirtualLoop, entropy: Entropy, weather: StoreWeather) -> None:
        self._bucket = bucket
        self._loop = loop
        self._entropy = entropy
        self._weather = weather

    @property
    def url(self) -> str:
        return "s3://simulated"

    def _latency_s(self, median_s: float) -> float:
        """Draw a log-normal time.

        One in twenty takes twice as long, and a few much longer.
        """
        return median_s * exp(0.42 * self._entropy.normal())

    async def _request(self, name: str, median_s: float, effect: Callable[[], T]) -> T:
        weather = self._weather
        luck = self._entropy.uniform(0.0, 1.0)
        latency_s = self._latency_s(median_s)
        if (luck := luck - weather.error) < 0:
            await asyncio.sleep(latency_s)
            raise StoreUnavailable(f"{name}: the simulated store refuses")
        if (luck := luck - weather.slow_down) < 0:
            await asyncio.sleep(latency_s)
            raise SlowDown(f"{name}: the simulated store is too busy")
        if (luck := luck - weather.lost_answer) < 0:
            self._bucket.after(latency_s, effect)
            await asyncio.sleep(REQUEST_TIMEOUT_S)
            raise StoreTimeout(f"{name}: no answer")
        if name == "put" and luck - weather.late_put < 0:
            self._bucket.land_late(self._entropy.uniform(REQUEST_TIMEOUT_S, LATE_PUT_S_MAX), effect)
            await asyncio.sleep(REQUEST_TIMEOUT_S)
            raise StoreTimeout(f"{name}: no answer")
        return await self._bucket.after(latency_s * 0.8, effect, latency_s * 0.2)

    async def _write(self, name: str, effect: Callable[[], T]) -> T:
        return await self._request(name, self._weather.put_s_median, effect)

    async def _read(self, name: str, effect: Callable[[], T]) -> T:
        if self._weather.torn_read and self._entropy.uniform(0.0, 1.0) < self._weather.torn_read:
            await asyncio.sleep(self._latency_s(self._weather.get_s_median))
            raise TornRead(f"{name}: the answer ended early")
        return await self._request(name, self._weather.get_s_median, effect)

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        copy = bytes(data)
        return await self._write("put", lambda: self._bucket.put(key, copy, overwrite=overwrite))

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        copy = bytes(data)
        return await self._write("update", lambda: self._bucket.put(key, copy, overwrite=True, etag=etag))

    async def get(self, key: str) -> Blob:
        stored = await self._read("get", lambda: self._bucket.get(key))
        return Blob(stored.data, stored.etag)

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        return (await self.get_ranges(key, [(start, end)]))[0]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        stored = await self._read("get_ranges", lambda: self._bucket.get(key))
        if any(end > len(stored.data) for _, end in ranges):
            raise TornRead(f"{key} has {len(stored.data)} bytes only")
        return [stored.data[start:end] for start, end in ranges]

    async def get_tail(self, key: str, length: int) -> Tail:
        stored = await self._read("get_tail", lambda: self._bucket.get(key))
        return Tail(stored.data[-length:] if length else b"", len(stored.data))

    async def head(self, key: str) -> ObjectMeta:
        return _meta(key, await self._read("head", lambda: self._bucket.get(key)))

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        def effect() -> ListPage:
            keys = sorted(
                key for key in self._bucket.objects if key.startswith(prefix) and (after is None or key > after)
            )
            found = tuple(_meta(key, self._bucket.objects[key]) for key in keys[:limit])
            return ListPage(found, keys[limit - 1] if len(keys) > limit else None)

        return await self._read("list", effect)

    async def delete(self, keys: Sequence[str]) -> None:
        wanted = list(keys)

        def effect() -> None:
            for key in wanted:
                self._bucket.objects.pop(key, None)

        await self._write("delete", effect)

    async def close(self) -> None:
        pass


def _meta(key: str, stored: _Stored) -> ObjectMeta:
    return ObjectMeta(key, len(stored.data), stored.etag, stored.modified_ms)
