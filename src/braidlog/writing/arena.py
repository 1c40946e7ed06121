"""Memory for whole objects: page-aligned.

It is reused as soon as nothing refers to it.

An aligned buffer goes to a disk without another copy. Fresh memory from the system costs more than everything else that
happens to a record (on a virtual machine up to a CPU second per gigabyte), so regions are kept and reused.
"""

import contextlib
import mmap
import sys

REGION_BYTES = 32 * 1024 * 1024
ALIGNMENT_BYTES = 4096

_UNUSED_REFERENCES = 2
"""The references to a mapping that only its `_Region` holds: that one, and the one that `getrefcount` itself has."""


def fresh_memory(size_bytes: int) -> mmap.mmap:
    """Map new memory, in huge pages where the system has them: those cost a fifth."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return mmap.mmap(-1, size_bytes)
    mapping = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class _Region:
    """One mapping, and how much of it was handed out.

    Every view that was handed out holds a reference to the mapping, and so does every slice of a view, for example in
    the cache or in a response. So the reference count says whether the region is in use.
    """

    __slots__ = ("mapping", "used_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.mapping = fresh_memory(size_bytes)
        self.used_bytes = 0

    @property
    def is_free(self) -> bool:
        return sys.getrefcount(self.mapping) == _UNUSED_REFERENCES


class Arena:
    """Hands out memory for objects, and reuses it.

    Nobody gives memory back by a call: a region is free again when no view into it is left.
    """

    def __init__(self, *, free_bytes_max: int, region_bytes: int = REGION_BYTES) -> None:
        """`free_bytes_max`: how much unused memory to keep."""
        self._region_bytes = region_bytes
        self._free_regions_max = free_bytes_max // region_bytes
        self._current = _Region(region_bytes)
        self._full: list[_Region] = []

    def take(self, size_bytes: int) -> memoryview:
        """Return writable memory that nobody else has."""
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
