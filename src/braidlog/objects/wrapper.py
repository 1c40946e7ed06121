"""The base of wrappers: a store around a store.

Every request goes through one method.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from braidlog.objects.store import Blob, Bytes, ListPage, ObjectMeta, Store, Tail

T = TypeVar("T")

COALESCE_GAP_BYTES = 1024 * 1024
"""Ranges closer than this are fetched by one GET, as the S3, GCS and Azure client does."""


class Operation(Enum):
    PUT = "put"
    UPDATE = "update"
    GET = "get"
    GET_RANGE = "get_range"
    GET_RANGES = "get_ranges"
    GET_TAIL = "get_tail"
    HEAD = "head"
    LIST = "list"
    DELETE = "delete"

    @property
    def writes(self) -> bool:
        return self in (Operation.PUT, Operation.UPDATE)

    @property
    def reads_data(self) -> bool:
        return self in (Operation.GET, Operation.GET_RANGE, Operation.GET_RANGES, Operation.GET_TAIL)


@dataclass(frozen=True, slots=True)
class Request:
    operation: Operation
    key: str
    upload_bytes: int = 0
    request_count: int = 1
    """The number of requests that a remote store gets for it."""


def response_bytes(result: object) -> int:
    """Return how many bytes of objects a result carries."""
    if isinstance(result, Blob | Tail):
        return len(result.data)
    if isinstance(result, bytes | bytearray | memoryview):
        return len(result)
    if isinstance(result, list):
        return sum(len(part) for part in result)
    return 0


def coalesced_count(ranges: Sequence[tuple[int, int]]) -> int:
    """Return how many GETs it takes to read these ranges."""
    count = 0
    covered_end = -1
    for start, end in sorted(ranges):
        if count == 0 or start > covered_end + COALESCE_GAP_BYTES:
            count += 1
            covered_end = end
        else:
            covered_end = max(covered_end, end)
    return count


class StoreWrapper(ABC):
    """Passes every request to `inner` through `_around`, which a wrapper defines."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        request = Request(Operation.PUT, key, upload_bytes=len(data))
        return await self._around(request, lambda: self.inner.put(key, data, overwrite=overwrite))

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        request = Request(Operation.UPDATE, key, upload_bytes=len(data))
        return await self._around(request, lambda: self.inner.update(key, data, etag=etag))

    async def get(self, key: str) -> Blob:
        return await self._around(Request(Operation.GET, key), lambda: self.inner.get(key))

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        return await self._around(Request(Operation.GET_RANGE, key), lambda: self.inner.get_range(key, start, end))

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        request = Request(Operation.GET_RANGES, key, request_count=coalesced_count(ranges))
        return await self._around(request, lambda: self.inner.get_ranges(key, ranges))

    async def get_tail(self, key: str, length: int) -> Tail:
        return await self._around(Request(Operation.GET_TAIL, key), lambda: self.inner.get_tail(key, length))

    async def head(self, key: str) -> ObjectMeta:
        return await self._around(Request(Operation.HEAD, key), lambda: self.inner.head(key))

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        request = Request(Operation.LIST, prefix, request_count=max(1, -(-limit // 1000)))
        return await self._around(request, lambda: self.inner.list(prefix, after=after, limit=limit))

    async def delete(self, keys: Sequence[str]) -> None:
        request = Request(Operation.DELETE, keys[0] if keys else "", request_count=-(-len(keys) // 1000))
        return await self._around(request, lambda: self.inner.delete(keys))

    async def close(self) -> None:
        await self.inner.close()

    @abstractmethod
    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T: ...
