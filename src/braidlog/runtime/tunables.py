"""Tunables of the C library.

It reads them from the environment when a process starts, and never again.
"""

import os
import sys
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
STREAMED_COPY_TUNABLE = "glibc.cpu.x86_non_temporal_threshold"
STREAMED_COPY_BYTES_MIN = 256 * 1024
"""Copies of at least this size bypass the processor's caches. Bytes that were packed into an object are not read again
soon, and memory that is overwritten from end to end need not be read first, which halves the cost of the copy. By
default, glibc starts at three quarters of the last-level cache, which may be hundreds of megabytes."""


def tuned(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a process that moves megabytes.

    A value that is set already stays.
    """
    given = environ.get(VARIABLE, "")
    if not _has_streamed_copies() or STREAMED_COPY_TUNABLE in given:
        return dict(environ)
    chosen = f"{STREAMED_COPY_TUNABLE}={STREAMED_COPY_BYTES_MIN}"
    return {**environ, VARIABLE: f"{given}:{chosen}" if given else chosen}


def restart_tuned() -> None:
    """Restart this program in the same process, unless it is tuned already.

    The arguments stay the same.

    Call it as the first step: nothing is flushed or closed.
    """
    environ = tuned(os.environ)
    if sys.executable and environ != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)


def _has_streamed_copies() -> bool:
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):  # another C library
        return False
