"""Reads ranges of files as objects, and turns errors into those of a store."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from braidlog.objects.keys import InvalidKey
from braidlog.objects.store import Bytes, NotFound, StoreDenied, StoreError, StoreFull, StoreUnavailable, TornRead

AlignedMemory: TypeAlias = Callable[[int], memoryview]
"""Returns writable memory of a size that begins at a page."""

DIRECT_BYTES_MIN = 256 * 1024
"""Smaller reads go through the page cache, which reads ahead."""
BLOCK_BYTES = 4096

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextmanager
def open_file(path: str) -> Iterator[tuple[int, os.stat_result]]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd, _status(fd, path)
    finally:
        os.close(fd)


def _status(fd: int, path: str) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(errno.ENOENT, "not a file", path)
    return status


def read_range(fd: int, key: str, start: int, end: int) -> bytes:
    data = os.pread(fd, end - start, start)
    while len(data) < end - start:
        more = os.pread(fd, end - start - len(data), start + len(data))
        if not more:
            raise TornRead(f"{key} ended at {start + len(data)}, not at {end}")
        data += more
    return data


def translated(error: OSError, key: str, root: str) -> Exception:
    code = error.errno
    if code in (errno.ENOENT, errno.EISDIR):
        return NotFound(f"{key} does not exist")
    if code == errno.ENOTDIR:
        return NotFound(f"{key} does not exist: part of its path is an object")
    if code in _FULL:
        return StoreFull(f"{key}: {error.strerror}", help=f"Make room on the disk of {root}.")
    if code in _DENIED:
        return StoreDenied(f"{key}: {error.strerror}", help=f"This user must be able to write to {root}.")
    if code == errno.ENAMETOOLONG:
        return InvalidKey(f"{key} is too long for a file name", help="Each segment may have 255 bytes.")
    if code in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailable(f"{key}: {error.strerror}", help="Raise the limit of open files (ulimit -n).")
    return StoreError(f"{key}: {error}", help=f"Is the disk of {root} in order?")


class LocalRange:
    """The bytes [start, end) of an object, read in the thread that takes them."""

    __slots__ = ("_end", "_fd", "_key", "_memory", "_root", "_start")

    def __init__(
        self, path: str, key: str, root: str, start: int, end: int, *, soon: bool, memory: AlignedMemory | None = None
    ) -> None:
        if not 0 <= start <= end:
            raise ValueError(f"range [{start}, {end})")
        self._key, self._root, self._start, self._end = key, root, start, end
        self._memory = None if soon or end - start < DIRECT_BYTES_MIN else memory
        self._fd = -1
        try:
            self._fd = self._open(path)
            size = _status(self._fd, path).st_size
            if end > size:
                raise TornRead(f"{key} has {size} bytes, not {end}")
            if soon and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_WILLNEED)
        except OSError as error:
            self.close()
            raise translated(error, key, root) from error
        except BaseException:
            self.close()
            raise

    def _open(self, path: str) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        if self._memory is not None and hasattr(os, "O_DIRECT"):
            try:
                return os.open(path, flags | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        self._memory = None  # this file system does not support it
        return os.open(path, flags)

    def take(self) -> Bytes:
        """Read and return the bytes. May be called once."""
        try:
            if self._memory is not None:
                try:
                    return self._read_direct(self._memory)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    # Some file systems refuse direct reads only here.
                    fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
            return read_range(self._fd, self._key, self._start, self._end)
        except OSError as error:
            raise translated(error, self._key, self._root) from error
        finally:
            self.close()

    def _read_direct(self, memory: AlignedMemory) -> memoryview:
        """Read past the page cache, in whole blocks.

        Bytes that are read once need no copy there: making room for it costs more CPU than reading.
        """
        first = self._start - self._start % BLOCK_BYTES
        wanted = self._end - first
        blocks = memory(-(-wanted // BLOCK_BYTES) * BLOCK_BYTES)
        filled = 0
        while filled < wanted:
            count = os.preadv(self._fd, [blocks[filled:]], first + filled)
            filled += count
            if filled < wanted and (count == 0 or filled % BLOCK_BYTES):
                raise TornRead(f"{self._key} ended at {first + filled}, not at {self._end}")
        return blocks[self._start - first : wanted].toreadonly()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
