"""Reading files that are objects: whole ranges, and what went wrong in the words of a store."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from braidlog.objects.keys import InvalidKey
from braidlog.objects.store import NotFound, StoreDenied, StoreError, StoreFull, StoreUnavailable, TornRead

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
    """Bytes [start, end) of an object, which are read in the thread of whoever takes them."""

    __slots__ = ("_end", "_fd", "_key", "_root", "_start")

    def __init__(self, path: str, key: str, root: str, start: int, end: int, *, soon: bool) -> None:
        if not 0 <= start <= end:
            raise ValueError(f"range [{start}, {end})")
        self._key, self._root, self._start, self._end = key, root, start, end
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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

    def take(self) -> bytes:
        """Once."""
        try:
            return read_range(self._fd, self._key, self._start, self._end)
        except OSError as error:
            raise translated(error, self._key, self._root) from error
        finally:
            self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
