"""Objects in this process's memory: for tests, trials and the simulator.

Nothing outlives the process.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

from braidlog.objects.keys import check_key
from braidlog.objects.store import (
    AlreadyExists,
    Blob,
    Bytes,
    Conflict,
    ListPage,
    NotFound,
    ObjectMeta,
    Tail,
    TornRead,
)
from braidlog.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class _Stored:
    view: memoryview
    etag: str
    modified_ms: int


class MemoryBucket:
    """The objects themselves, so that several stores can share them."""

    def __init__(self) -> None:
        self.stored: dict[str, _Stored] = {}
        self.keys: list[str] = []
        self.version = 0


class MemoryStore:
    """Keeps objects in memory, without a copy.

    It needs no threads, so it behaves the same under virtual time.
    """

    def __init__(self, bucket: MemoryBucket, *, url: str, clock: Clock) -> None:
        self._bucket = bucket
        self._url = url
        self._clock = clock

    @property
    def url(self) -> str:
        return self._url

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        check_key(key)
        if not overwrite and key in self._bucket.stored:
            raise AlreadyExists(f"{key} exists already")
        return self._keep(key, data)

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        check_key(key)
        stored = self._bucket.stored.get(key)
        if stored is None or stored.etag != etag:
            raise Conflict(f"{key} is not at version {etag}")
        return self._keep(key, data)

    async def get(self, key: str) -> Blob:
        stored = self._find(key)
        return Blob(data=stored.view, etag=stored.etag)

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        return _slice(key, self._find(key).view, start, end)

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        view = self._find(key).view
        return [_slice(key, view, start, end) for start, end in ranges]

    async def get_tail(self, key: str, length: int) -> Tail:
        view = self._find(key).view
        return Tail(data=view[max(0, len(view) - length) :], size=len(view))

    async def head(self, key: str) -> ObjectMeta:
        return _meta(key, self._find(key))

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        keys = self._bucket.keys
        index = bisect_left(keys, prefix)
        if after is not None:
            index = max(index, bisect_right(keys, after))
        page: list[ObjectMeta] = []
        while index < len(keys) and keys[index].startswith(prefix):
            if len(page) == limit:
                return ListPage(objects=tuple(page), next_after=page[-1].key if page else after)
            page.append(_meta(keys[index], self._bucket.stored[keys[index]]))
            index += 1
        return ListPage(objects=tuple(page), next_after=None)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            if self._bucket.stored.pop(key, None) is not None:
                del self._bucket.keys[bisect_left(self._bucket.keys, key)]

    async def close(self) -> None:
        """Nothing to do: the bucket may be shared."""

    def _keep(self, key: str, data: Bytes) -> str:
        bucket = self._bucket
        bucket.version += 1
        etag = f'"{bucket.version}"'
        if key not in bucket.stored:
            insort(bucket.keys, key)
        bucket.stored[key] = _Stored(memoryview(data).toreadonly().cast("B"), etag, self._clock.wall_ms())
        return etag

    def _find(self, key: str) -> _Stored:
        stored = self._bucket.stored.get(check_key(key))
        if stored is None:
            raise NotFound(f"{key} does not exist")
        return stored


def _slice(key: str, view: memoryview, start: int, end: int) -> memoryview:
    if not 0 <= start <= end:
        raise ValueError(f"range [{start}, {end})")
    if end > len(view):
        raise TornRead(f"{key} has {len(view)} bytes, not {end}")
    return view[start:end]


def _meta(key: str, stored: _Stored) -> ObjectMeta:
    return ObjectMeta(key=key, size=len(stored.view), etag=stored.etag, modified_ms=stored.modified_ms)
