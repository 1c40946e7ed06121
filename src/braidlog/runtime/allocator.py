"""Tells glibc to keep freed memory.

Megabyte frames would otherwise come fresh from the kernel each time, and the page faults cost more than everything else
that happens to them.
"""

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
    """Tell glibc to keep freed memory.

    Returns False, and changes nothing, with another C library.

    Call it once, before the first large allocation. Each thread may get an arena of its own, which keeps what that
    thread has freed: with several threads that read in turn, each keeps the memory of one read. `arenas_max` bounds
    that.
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
