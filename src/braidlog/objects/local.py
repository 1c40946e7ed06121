"""Objects as files, for one machine: durable, and complete or absent.

They are durable before they are acknowledged.

A put writes a temporary file in `<root>/.braidlog/`, syncs it, links it to its name (which fails where the name is
taken) and syncs the folder. After a power loss there is nothing or the whole object, and at worst a temporary file
that is never listed, and that a writer removes a day later. The modification time comes from the injected clock,
with random digits below the millisecond: with inode and size it is the etag, so that no two versions of a file share
one even where the file system's own clock stands still. Replacing and deleting hold a lock file, so that of several
processes only one wins.
"""

import asyncio
import errno
import fcntl
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from braidlog.objects.files import (
    BLOCK_BYTES,
    DIRECT_BYTES_MIN,
    AlignedMemory,
    LocalRange,
    open_file,
    read_range,
    translated,
)
from braidlog.objects.keys import InvalidKey, check_key
from braidlog.objects.store import (
    AlreadyExists,
    Blob,
    Bytes,
    Conflict,
    ListPage,
    ObjectMeta,
    StoreDenied,
    StoreTimeout,
    Tail,
    TornRead,
)
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy

T = TypeVar("T")

OWN_FOLDER = ".braidlog"
"""Temporary files and the lock lie here. No key may begin with it."""
LEFTOVER_AGE_MS = 24 * 3600 * 1000
"""Older temporary files that nobody holds are leftovers of a crash."""
THREADS_MAX = 8
_TEMPORARY_NAME = re.compile(r"[0-9a-f]{16}-[0-9]+")
_DIRECT_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Write:
    key: str
    path: str
    temporary: str
    modified_ns: int
    data: Bytes


class LocalStore:
    """A folder as an object store."""

    def __init__(self, root: Path, *, clock: Clock, entropy: Entropy) -> None:
        self._root = os.path.abspath(root)
        self._url = Path(self._root).as_uri()
        self._clock = clock
        self._entropy = entropy
        self._own_folder = os.path.join(self._root, OWN_FOLDER)
        self._temporary_name = os.path.join(self._own_folder, entropy.token(8).hex())
        self._temporary_count = 0
        self._leftovers_due_ms = 0
        self._synced_folders: set[str] = set()
        self._direct_flag: int = getattr(os, "O_DIRECT", 0)
        self._aligned_buffers: list[mmap.mmap] = []
        self._executor = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="braidlog-file")

    @property
    def url(self) -> str:
        return self._url

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        write = self._prepare(key, data)
        return await self._run(key, lambda: self._replace(write, None) if overwrite else self._create(write))

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        write = self._prepare(key, data)
        return await self._run(key, lambda: self._replace(write, etag))

    async def get(self, key: str) -> Blob:
        path = self._path(key)

        def get() -> Blob:
            with open_file(path) as (fd, status):
                return Blob(data=read_range(fd, key, 0, status.st_size), etag=_etag(status))

        return await self._run(key, get)

    async def get_range(self, key: str, start: int, end: int) -> Bytes:
        return (await self.get_ranges(key, [(start, end)]))[0]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        path = self._path(key)
        for start, end in ranges:
            if not 0 <= start <= end:
                raise ValueError(f"range [{start}, {end})")

        def get_ranges() -> list[Bytes]:
            with open_file(path) as (fd, status):
                for _, end in ranges:
                    if end > status.st_size:
                        raise TornRead(f"{key} has {status.st_size} bytes, not {end}")
                return [read_range(fd, key, start, end) for start, end in ranges]

        return await self._run(key, get_ranges)

    def open_range(
        self, key: str, start: int, end: int, *, soon: bool = False, memory: AlignedMemory | None = None
    ) -> LocalRange:
        """Open a range for a caller whose thread can wait for the disk.

        It has a tenth of the cost of an event loop.

        Errors are those of `get_range`. With `soon`, the disk starts reading at once, not when the range is taken.
        Large ranges are read into `memory` past the page cache, unless they are wanted soon.
        """
        return LocalRange(self._path(key), key, self._root, start, end, soon=soon, memory=memory)

    async def get_tail(self, key: str, length: int) -> Tail:
        path = self._path(key)

        def get_tail() -> Tail:
            with open_file(path) as (fd, status):
                size = status.st_size
                return Tail(data=read_range(fd, key, max(0, size - length), size), size=size)

        return await self._run(key, get_tail)

    async def head(self, key: str) -> ObjectMeta:
        path = self._path(key)

        def head() -> ObjectMeta:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a file", path)
            return _meta(key, status)

        return await self._run(key, head)

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        def list_page() -> ListPage:
            page: list[ObjectMeta] = []
            for key in self._walk("", prefix, after or ""):
                if len(page) == limit:
                    return ListPage(objects=tuple(page), next_after=page[-1].key if page else after)
                try:
                    page.append(_meta(key, os.stat(os.path.join(self._root, key))))
                except FileNotFoundError:
                    continue  # it was deleted after its folder was read
            return ListPage(objects=tuple(page), next_after=None)

        return await self._run(prefix, list_page)

    async def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        if paths:
            await self._run(keys[0], lambda: self._delete(paths))

    async def close(self) -> None:
        """Wait for requests that are under way."""
        await asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)

    async def _run(self, key: str, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, call)
        except OSError as error:
            raise translated(error, key, self._root) from error

    def _path(self, key: str) -> str:
        check_key(key)
        if key.startswith(OWN_FOLDER) and key.split("/", 1)[0] == OWN_FOLDER:
            raise InvalidKey(f"key {key!r} begins with {OWN_FOLDER}", help="That folder is for temporary files.")
        return os.path.join(self._root, key)

    def _prepare(self, key: str, data: Bytes) -> _Write:
        """Draw from clock and entropy here: the order of threads is not repeatable."""
        path = self._path(key)
        self._temporary_count += 1
        temporary = f"{self._temporary_name}-{self._temporary_count}"
        now_ms = self._clock.wall_ms()
        if now_ms >= self._leftovers_due_ms:
            # At the first write and then now and then: so opening a store stays quick, and readers remove nothing.
            self._leftovers_due_ms = now_ms + LEFTOVER_AGE_MS
            self._executor.submit(self._remove_leftovers, (now_ms - LEFTOVER_AGE_MS) * 1_000_000)
        modified_ns = now_ms * 1_000_000 + self._entropy.below(1_000_000)
        return _Write(key, path, temporary, modified_ns, data)

    # What follows runs in the executor's threads.

    def _create(self, write: _Write) -> str:
        with self._temporary(write) as status:
            try:
                self._link(write, cached=True)
            except FileNotFoundError:
                # Its last object was deleted, and the folder with it. Under the lock nobody removes folders.
                with self._locked():
                    self._link(write, cached=False)
            _unlink(write.temporary)
        return _etag(status)

    def _link(self, write: _Write, *, cached: bool) -> None:
        folder = os.path.dirname(write.path)
        self._make_folders(write.key, folder, cached=cached)
        try:
            os.link(write.temporary, write.path)
        except FileExistsError:
            if os.path.isdir(write.path):
                raise _folder_error(write.key) from None
            # The caller may rely on an object that exists, so it must be durable from here on.
            _sync_folder(folder)
            raise AlreadyExists(f"{write.key} exists already") from None
        _sync_name(write.key, folder)

    def _replace(self, write: _Write, expected_etag: str | None) -> str:
        folder = os.path.dirname(write.path)
        with self._temporary(write) as status, self._locked():
            try:
                current: os.stat_result | None = os.stat(write.path)
            except (FileNotFoundError, NotADirectoryError):
                current = None
            if current is not None and stat.S_ISDIR(current.st_mode):
                raise _folder_error(write.key)
            if expected_etag is not None and (current is None or _etag(current) != expected_etag):
                raise Conflict(f"{write.key} is not at version {expected_etag}")
            if current is None:
                self._make_folders(write.key, folder, cached=False)
            os.rename(write.temporary, write.path)
            # Within the lock, so that the next reader of the new version may rely on it.
            _sync_name(write.key, folder)
        return _etag(status)

    def _delete(self, paths: Sequence[str]) -> None:
        folders: dict[str, None] = {}
        with self._locked():
            for path in paths:
                try:
                    os.unlink(path)
                except OSError:
                    if os.path.isfile(path):
                        raise
                else:
                    folders[os.path.dirname(path)] = None
            for folder in folders:
                self._sync_or_remove(folder)

    def _sync_or_remove(self, folder: str) -> None:
        """Make deletions durable, and remove the folder if it is empty."""
        while True:
            if folder != self._root:
                self._forget(folder)
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    return
                except OSError:
                    pass  # not empty
                else:
                    folder = os.path.dirname(folder)
                    continue
            _sync_folder(folder)
            return

    @contextmanager
    def _temporary(self, write: _Write) -> Iterator[os.stat_result]:
        """Write the data to a synced temporary file.

        The file is removed if the caller does not link it to a name.

        It is locked until then, so it is no leftover however long this process is paused or clocks jump.
        """
        data = memoryview(write.data)
        fd = self._open_own(write.temporary, os.O_WRONLY | os.O_EXCL)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # this file system has no locks, so leftovers are not removed
            written = self._write_direct(fd, data) if len(data) >= DIRECT_BYTES_MIN else 0
            while written < len(data):  # one write takes at most 2 GiB, and less if the disk is nearly full
                written += os.write(fd, data[written:])
            os.utime(fd, ns=(write.modified_ns, write.modified_ns))
            _sync(fd)
            yield os.fstat(fd)
        except BaseException:
            _unlink(write.temporary)
            raise
        finally:
            os.close(fd)

    def _remove_leftovers(self, modified_before_ns: int) -> None:
        """Remove temporary files of dead processes; ones that must stay do no harm."""
        try:
            names = os.listdir(self._own_folder)
        except OSError:
            return
        for name in names:
            if _TEMPORARY_NAME.fullmatch(name):
                _remove_leftover(os.path.join(self._own_folder, name), modified_before_ns)

    def _write_direct(self, fd: int, data: memoryview) -> int:
        """Write all whole blocks past the page cache, and return the bytes written.

        The log's own cache holds what was just written. A second copy in the page cache costs more CPU than the rest of
        a put, and evicts what is read. The rest of the last block is left to an ordinary write.
        """
        if self._direct_flag == 0:
            return 0
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        end = len(data) - len(data) % BLOCK_BYTES
        written = 0
        try:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | self._direct_flag)
            try:
                written = os.write(fd, data[:end])  # without a copy if the caller's memory is aligned
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                written = self._write_aligned(fd, data[:end])
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct_flag = 0  # this file system cannot
            os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return written

    def _write_aligned(self, fd: int, data: memoryview) -> int:
        """Write through a page-aligned buffer, as writes past the page cache require."""
        try:
            buffer = self._aligned_buffers.pop()
        except IndexError:
            buffer = mmap.mmap(-1, _DIRECT_CHUNK_BYTES)
        written = 0
        try:
            with memoryview(buffer) as aligned:
                while written < len(data):
                    length = min(_DIRECT_CHUNK_BYTES, len(data) - written)
                    aligned[:length] = data[written : written + length]
                    taken = os.write(fd, aligned[:length])
                    written += taken
                    if taken % BLOCK_BYTES:
                        break  # the rest is left to ordinary writes
        finally:
            self._aligned_buffers.append(buffer)
        return written

    def _open_own(self, path: str, flags: int) -> int:
        """Open a file in our own folder, which the first write creates."""
        flags |= os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o644)
        except (FileNotFoundError, NotADirectoryError):
            try:
                self._make_folders("", self._own_folder, cached=False)
                return os.open(path, flags, 0o644)
            except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
                raise StoreDenied(
                    f"{self._root} is not a folder, and cannot be made one: {error.strerror}",
                    help="Name a folder that is there, or that can be made.",
                ) from error

    def _make_folders(self, key: str, folder: str, *, cached: bool) -> None:
        """Create a folder and its parents, each durable in the one above.

        Folders that exist already are synced once, too: another process may just have created them.
        """
        if cached and folder in self._synced_folders:
            return
        if folder == self._root:
            os.makedirs(folder, exist_ok=True)
        else:
            self._make_folders(key, os.path.dirname(folder), cached=cached)
            try:
                os.mkdir(folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(folder).st_mode):
                    raise InvalidKey(f"part of {key} is an object", help="No key may be another's folder.") from None
        try:
            _sync_folder(os.path.dirname(folder))
        except PermissionError:
            if folder != self._root:
                raise
        self._synced_folders.add(folder)

    def _forget(self, folder: str) -> None:
        while folder != self._root:
            self._synced_folders.discard(folder)
            folder = os.path.dirname(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = self._open_own(os.path.join(self._own_folder, "lock"), os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        """Yield matching keys in `folder` (empty or ending in a slash), in key order."""
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                # A folder is ordered with its slash: `a-b` comes before `a/b`, and `a0` after it.
                names = sorted(
                    folder + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "") for entry in entries
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name[-1] != "/":
                if name > after and name.startswith(prefix):
                    yield name
            elif (
                name != f"{OWN_FOLDER}/"
                and (name.startswith(prefix) or prefix.startswith(name))
                and (name > after or after.startswith(name))
            ):
                yield from self._walk(name, prefix, after)


def _sync(fd: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync leaves the data in the drive's own memory
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_name(key: str, folder: str) -> None:
    """Make a new name durable. A failure does not undo the write: it is visible."""
    try:
        _sync_folder(folder)
    except FileNotFoundError:
        pass  # the object was deleted at once, and the folder with it
    except OSError as error:
        raise StoreTimeout(f"{key} was written, but may not outlive a power loss: {error}") from error


def _folder_error(key: str) -> InvalidKey:
    return InvalidKey(f"{key} is a folder", help="No key may be another's folder.")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _remove_leftover(path: str, modified_before_ns: int) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.fstat(fd).st_mtime_ns < modified_before_ns:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    except OSError:
        pass
    finally:
        os.close(fd)


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def _meta(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(key=key, size=status.st_size, etag=_etag(status), modified_ms=status.st_mtime_ns // 1_000_000)
