"""Tells glibc to keep freed memory. Megabyte frames would otherwise come fresh from the kernel each time, and the page
faults cost more than everything else that happens to them."""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

KEPT_BYTES = 512 * 1024 * 1024
"""Free memory at the top of the heap above this goes back to the system."""
TOP_PAD_BYTES = 16 * 1024 * 1024
MMAP_BYTES_MIN = 256 * 1024 * 1024


def keep_freed_memory(arenas_max: int | None = None) -> bool:
    """Call once, before the first large allocation. False where the C library is not glibc, and nothing is changed.

    Each thread may get an arena of its own, which keeps what it has freed for itself: with several threads that read in
    turn, the memory of one read is kept as often as there are threads. `arenas_max` bounds that.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    options = [
        (_M_MMAP_THRESHOLD, MMAP_BYTES_MIN),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_TOP_PAD, TOP_PAD_BYTES),
    ]
    if arenas_max is not None:
        options.append((_M_ARENA_MAX, arenas_max))
    return all(mallopt(option, value) == 1 for option, value in options)
