"""Memory for whole objects: page-aligned, and used again as soon as nobody looks at it any more.

An aligned buffer goes to a disk without another copy. Memory that is fresh from the system costs more than everything
else that happens to a record (on a virtual machine up to a CPU second per gigabyte), so regions are kept and recycled.
"""

import contextlib
import mmap
import sys

REGION_BYTES = 32 * 1024 * 1024
ALIGNMENT_BYTES = 4096

_UNUSED_REFERENCES = 2
"""Of a mapping that only its `_Region` holds, and `getrefcount` while it looks."""


def fresh_memory(size_bytes: int) -> mmap.mmap:
    """In huge pages where the system has them: those are handed out at a fifth of the cost."""
    if sys.platform != "linux":
        return mmap.mmap(-1, size_bytes)
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class _Region:
    """Every view that was handed out holds a reference to the mapping, and so does every slice of it, wherever it got
    to: into the cache, into a response on its way. So the count of references says whether anybody is left."""

    __slots__ = ("mapping", "used_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.mapping = fresh_memory(size_bytes)
        self.used_bytes = 0

    @property
    def is_free(self) -> bool:
        return sys.getrefcount(self.mapping) == _UNUSED_REFERENCES


class Arena:
    """Hands out memory; nobody needs to give it back."""

    def __init__(self, *, free_bytes_max: int, region_bytes: int = REGION_BYTES) -> None:
        """`free_bytes_max`: memory that is kept although nothing is in it."""
        self._region_bytes = region_bytes
        self._free_regions_max = free_bytes_max // region_bytes
        self._current = _Region(region_bytes)
        self._full: list[_Region] = []

    def take(self, size_bytes: int) -> memoryview:
        """Writable memory that nobody else has."""
        if size_bytes > self._region_bytes // 2:
            return memoryview(fresh_memory(size_bytes))
        if self._current.used_bytes + size_bytes > self._region_bytes:
            self._full.append(self._current)
            self._current = self._free_region()
        region = self._current
        start = region.used_bytes
        region.used_bytes += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return memoryview(region.mapping)[start : start + size_bytes]

    def _free_region(self) -> _Region:
        free = [region for region in self._full if region.is_free]
        if not free:
            return _Region(self._region_bytes)
        dropped = free[1 + self._free_regions_max :]
        self._full = [region for region in self._full if region is not free[0] and region not in dropped]
        free[0].used_bytes = 0
        return free[0]

    @property
    def region_count(self) -> int:
        return 1 + len(self._full)
