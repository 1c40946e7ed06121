"""Objects at S3, Google Cloud Storage or Azure, through obstore.

obstore's own retries are off: we count every request, and only we know which outcomes are unknown. A put is one
request and never a multipart upload, because only a single request can be create-only.
"""

import heapq
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions

from braidlog.objects.keys import InvalidKey, check_key
from braidlog.objects.store import (
    AlreadyExists,
    Blob,
    Bytes,
    Conflict,
    ListedOutOfOrder,
    ListPage,
    NotFound,
    ObjectMeta,
    SlowDown,
    StoreDenied,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    Tail,
    TornRead,
)
from braidlog.runtime.errors import BraidError

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore import ObjectMeta as RemoteMeta
    from obstore.store import ObjectStore

_STATUS = re.compile(r"status(?: code)?:? (\d{3})")
_QUERY = re.compile(r"\?\S*")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_CHUNK_KEYS = 1000


class RemoteStore:
    """An obstore store behind our seam."""

    def __init__(self, store: "ObjectStore", *, url: str, lists_in_order: bool = True) -> None:
        self._store = store
        self._url = url
        self._lists_in_order = lists_in_order

    @property
    def url(self) -> str:
        return self._url

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        check_key(key)
        try:
            result = await obstore.put_async(
                self._store, key, _buffer(data), mode="overwrite" if overwrite else "create", use_multipart=False
            )
        except Exception as error:
            raise self._translated(error, key, writing=True) from error
        return result["e_tag"]

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        check_key(key)
        try:
            # A `version` of None raises, so the field is left out.
            result = await obstore.put_async(self._store, key, _buffer(data), mode={"e_tag": etag}, use_multipart=False)
        except Exception as error:
            translated = self._translated(error, key, writing=True)
            if isinstance(translated, AlreadyExists | NotFound):
                raise Conflict(f"{key} is not at version {etag}") from error
            raise translated from error
        return result["e_tag"]

    async def get(self, key: str) -> Blob:
        check_key(key)
        try:
            result = await obstore.get_async(self._store, key)
            data = memoryview(await result.bytes_async())
        except Exception as error:
            raise self._translated(error, key) from error
        if len(data) != result.meta["size"]:
            raise TornRead(f"{key}: {len(data)} bytes came, not {result.meta['size']}")
        return Blob(data=data, etag=result.meta["e_tag"])

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        return (await self.get_ranges(key, [(start, end)]))[0]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        check_key(key)
        for start, end in ranges:
            if not 0 <= start <= end:
                raise ValueError(f"range [{start}, {end})")
        wanted = [(start, end) for start, end in ranges if start < end]
        if len(wanted) < len(ranges):
            # An empty range cannot be requested, but the object must exist and be long enough.
            size = (await self.head(key)).size
            if any(end > size for _, end in ranges):
                raise TornRead(f"{key} has {size} bytes, not {max(end for _, end in ranges)}")
        found: list[memoryview] = []
        if wanted:
            try:
                parts = await obstore.get_ranges_async(
                    self._store, key, starts=[start for start, _ in wanted], ends=[end for _, end in wanted]
                )
            except Exception as error:
                raise self._translated(error, key) from error
            found = [memoryview(part) for part in parts]
        for (start, end), part in zip(wanted, found, strict=True):
            if len(part) != end - start:
                raise TornRead(f"{key}: {len(part)} bytes came for the range [{start}, {end})")
        remaining = iter(found)
        return [next(remaining) if start < end else memoryview(b"") for start, end in ranges]

    async def get_tail(self, key: str, length: int) -> Tail:
        check_key(key)
        if length < 1:
            return Tail(data=b"", size=(await self.head(key)).size)
        try:
            result = await obstore.get_async(self._store, key, options={"range": {"suffix": length}})
            return await self._tail_of(result, key, length)
        except exceptions.NotSupportedError:  # Azure has no such ranges
            return await self._get_tail_by_size(key, length)
        except BraidError:
            raise
        except Exception as error:
            if _status(str(error)) == 416:  # S3 has no range for the end of an empty object
                return await self._get_tail_by_size(key, length)
            raise self._translated(error, key) from error

    async def _tail_of(self, result: "GetResult", key: str, length: int) -> Tail:
        data = memoryview(await result.bytes_async())
        size = result.meta["size"]
        if len(data) > length:  # a server that ignores the range sends the whole object
            data = data[len(data) - length :]
        if len(data) != min(length, size):
            raise TornRead(f"{key}: {len(data)} bytes came for the last {length} of {size}")
        return Tail(data=data, size=size)

    async def _get_tail_by_size(self, key: str, length: int) -> Tail:
        size = (await self.head(key)).size
        if size == 0:
            return Tail(data=b"", size=0)
        return Tail(data=await self.get_range(key, max(0, size - length), size), size=size)

    async def head(self, key: str) -> ObjectMeta:
        check_key(key)
        try:
            return _meta(await obstore.head_async(self._store, key))
        except Exception as error:
            raise self._translated(error, key) from error

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        # obstore matches whole path segments, so the last one, where it is cut short, is matched here.
        folder = prefix.rpartition("/")[0]
        after = after or ""
        in_order = self._lists_in_order  # another list may find out meanwhile that they are not
        offset = passed = max(after, _before(prefix)) if in_order else ""
        found: list[ObjectMeta] = []
        try:
            stream = obstore.list(self._store, folder or None, offset=offset or None, chunk_size=_CHUNK_KEYS)
            async for chunk in stream:
                if not chunk:
                    continue
                if in_order and not _in_order(passed, chunk):
                    self._lists_in_order = False
                    if after:
                        raise ListedOutOfOrder(
                            f"{self._url} does not list keys in their order, so pages before this one may lack some",
                            help="List again from the beginning: from now on all is read and sorted here.",
                        )
                    return await self.list(prefix, limit=limit)
                passed = chunk[-1]["path"]
                found.extend(_meta(meta) for meta in chunk if meta["path"].startswith(prefix) and meta["path"] > after)
                if in_order:
                    if len(found) > limit or _is_past(prefix, passed):
                        break
                elif len(found) > limit + _CHUNK_KEYS:
                    found = heapq.nsmallest(limit + 1, found, key=lambda meta: meta.key)
        except BraidError:
            raise
        except Exception as error:
            raise self._translated(error, prefix) from error
        found.sort(key=lambda meta: meta.key)
        if len(found) > limit:
            return ListPage(objects=tuple(found[:limit]), next_after=found[limit - 1].key if limit else after)
        return ListPage(objects=tuple(found), next_after=None)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        if not keys:
            return
        try:
            await obstore.delete_async(self._store, list(keys))
        except FileNotFoundError as error:
            await self._delete_each(keys, error)
        except Exception as error:
            raise self._translated(error, keys[0]) from error

    async def _delete_each(self, keys: Sequence[str], cause: Exception) -> None:
        """Delete keys one by one.

        This is for stores without bulk deletes that stop at a missing key.
        """
        if any(text in str(cause) for text in _NO_BUCKET):
            raise self._translated(cause, keys[0]) from cause
        for key in keys:
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError:
                continue
            except Exception as error:
                raise self._translated(error, key) from error

    async def close(self) -> None:
        """Do nothing: connections close with the last reference to the client."""

    def _translated(self, error: Exception, key: str, *, writing: bool = False) -> Exception:
        """Return the typed error for what obstore raised.

        It is `StoreTimeout` if a write may have happened.
        """
        text = str(error)
        summary = f"{key}: {_QUERY.sub('', text.partition(chr(10))[0])}"
        status = _status(text)
        if any(name in text for name in _NO_BUCKET):
            return StoreDenied(f"the bucket of {self._url} does not exist", help="Create it, or correct the URL.")
        if isinstance(error, FileNotFoundError):
            return NotFound(f"{key} does not exist")
        if status == 409 and "ConditionalRequestConflict" in text:
            return StoreUnavailable(f"{key}: another write to the same key was under way")
        if isinstance(error, exceptions.AlreadyExistsError):
            return AlreadyExists(f"{key} exists already")
        if isinstance(error, exceptions.PreconditionError):
            return Conflict(f"{key} is at another version")
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or status in (
            401,
            403,
        ):
            return StoreDenied(summary, help=f"May these credentials read, write, list and delete at {self._url}?")
        if "redirect without LOCATION" in text or (status in (301, 307, 400) and "egion" in text):
            return StoreDenied(summary, help="The bucket is in another region: set ?region= or AWS_REGION.")
        if status in (429, 503):
            return SlowDown(summary)
        if status == 416:
            return TornRead(f"{key} is shorter than the range asked for")
        if status is not None and 400 <= status < 500 and status != 408:
            return StoreDenied(summary, help=f"The store at {self._url} refuses the request.")
        if isinstance(error, exceptions.InvalidPathError) or (isinstance(error, ValueError) and "path" in text):
            return InvalidKey(summary)
        if "kind: Builder" in text:
            return StoreDenied(summary, help=f"The endpoint of {self._url} is not one that requests can be sent to.")
        if "kind: Connect" in text or "kind: Dns" in text:
            return StoreUnavailable(summary, help=f"Is the endpoint of {self._url} right, and does it answer?")
        if "169.254.169.254" in text or "credential" in text.lower():
            return StoreDenied(
                summary, help="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role."
            )
        if isinstance(error, exceptions.NotSupportedError):
            return StoreDenied(summary, help="This store cannot do conditional puts, which Braidlog needs.")
        if "InvalidRange" in text or "StartTooLarge" in text or "Invalid range" in text:
            return TornRead(f"{key} is shorter than the range asked for")
        if writing or "kind: Timeout" in text or isinstance(error, TimeoutError):
            return StoreTimeout(summary, help=f"Is {self._url} reachable and quick enough?")
        if status is not None:
            return StoreUnavailable(summary)
        if "kind: Decode" in text or "body" in text:
            return TornRead(summary)
        return StoreError(summary)


def _status(text: str) -> int | None:
    match = _STATUS.search(text)
    return int(match.group(1)) if match else None


def _buffer(data: Bytes) -> Bytes:
    return data if isinstance(data, bytes) else memoryview(data).cast("B")


def _before(prefix: str) -> str:
    """Return a path shortly before all keys with this prefix, to list from.

    It is empty if there is no simple one.
    """
    if not prefix or prefix[-1] == "/":
        return ""
    previous = chr(ord(prefix[-1]) - 1) if prefix[-1].isascii() else ""
    return f"{prefix[:-1]}{previous}~" if previous.isalnum() else ""


def _is_past(prefix: str, path: str) -> bool:
    """Whether no key with this prefix follows the path.

    This holds for stores that list in the order of keys, and for those that list folder by folder.
    """
    folder, _, name = prefix.rpartition("/")
    in_folder = path.removeprefix(f"{folder}/") if folder else path
    part = in_folder.partition("/")[0]
    return part > name and not part.startswith(name)


def _in_order(after: str, chunk: "Sequence[RemoteMeta]") -> bool:
    """Whether the paths go up from `after` on.

    Some servers list folder by folder: `a/b` before `a-b`.
    """
    paths = [meta["path"] for meta in chunk]
    return all(earlier < later for earlier, later in pairwise([after, *paths]))


def _meta(meta: "RemoteMeta") -> ObjectMeta:
    modified_ms = int(meta["last_modified"].timestamp() * 1000)
    return ObjectMeta(key=meta["path"], size=meta["size"], etag=meta["e_tag"], modified_ms=modified_ms)
