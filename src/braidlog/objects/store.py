"""The store seam: what Braidlog asks of an object store, and its errors.

Every backend and every wrapper (meter, latency model, faults, retries) implements `Store`, so they stack in any order.
Ranges are half-open. Keys are relative to the URL that the store was opened with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from braidlog.runtime.errors import BraidError, Remedy

Bytes: TypeAlias = bytes | bytearray | memoryview


class StoreError(BraidError):
    """Something went wrong at the object store."""

    remedy = Remedy.RETRY


class NotFound(StoreError):
    """No object has this key."""

    remedy = Remedy.REFRESH


class AlreadyExists(StoreError):
    """A create-only put found an existing object."""

    remedy = Remedy.REFRESH


class Conflict(StoreError):
    """A conditional update found another version than the one it named."""

    remedy = Remedy.REFRESH


class ListedOutOfOrder(StoreError):
    """Pages of a listing may have left out keys. The listing must begin again."""

    remedy = Remedy.REFRESH


class SlowDown(StoreError):
    """The store asks for fewer requests (503, 429). Nothing was written."""


class StoreUnavailable(StoreError):
    """The store did not accept the request. Nothing was written."""


class StoreTimeout(StoreError):
    """No answer in time. A put may have taken effect, or may still take effect."""

    remedy = Remedy.CHECK_OUTCOME


class StoreDenied(StoreError):
    """Credentials, permissions, or a bucket that does not exist."""

    remedy = Remedy.FIX_INPUT


class StoreFull(StoreError):
    """No room is left (a full disk, a quota). Nothing was written."""


class TornRead(StoreError):
    """Fewer bytes came back than the range asked for."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    key: str
    size: int
    etag: str | None
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Blob:
    data: Bytes
    etag: str | None


@dataclass(frozen=True, slots=True)
class Tail:
    data: Bytes
    size: int
    """The size of the whole object."""


@dataclass(frozen=True, slots=True)
class ListPage:
    objects: tuple[ObjectMeta, ...]
    next_after: str | None
    """Pass it as `after` to get the next page; None on the last one."""


class Store(Protocol):
    @property
    def url(self) -> str:
        """The store's URL, without credentials."""
        ...

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        """Write a whole object, durably and atomically, and return its etag.

        Create-only unless `overwrite`: raises `AlreadyExists`. The data must not change afterwards: it may be kept.
        """
        ...

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        """Replace an object only if its etag is still `etag`; raises `Conflict` otherwise."""
        ...

    async def get(self, key: str) -> Blob: ...

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        """Return all bytes of [start, end). Raises `TornRead` if the object is shorter."""
        ...

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]: ...

    async def get_tail(self, key: str, length: int) -> Tail:
        """Return the last `length` bytes (fewer if the object is smaller), in one request."""
        ...

    async def head(self, key: str) -> ObjectMeta: ...

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        """List keys that start with `prefix`, in order, strictly after `after`.

        The prefix is a plain string match.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. A missing key is no error."""
        ...

    async def close(self) -> None: ...
