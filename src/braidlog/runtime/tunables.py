"""Tunables of the C library: it reads them from the environment when a process starts, and never again."""

import os
import sys
from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
STREAMED_COPY_TUNABLE = "glibc.cpu.x86_non_temporal_threshold"
STREAMED_COPY_BYTES_MIN = 256 * 1024
"""Copies from this size on go past the processor's caches. What is packed into an object is not looked at again soon,
and memory that is written to from end to end need not be read first: that makes the copy half as expensive. Left to
itself, glibc begins at three quarters of the processor's last cache, which may be hundreds of megabytes."""


def tuned(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process that moves megabytes. What somebody else has chosen stays as it is."""
    given = environ.get(VARIABLE, "")
    if not _has_streamed_copies() or STREAMED_COPY_TUNABLE in given:
        return dict(environ)
    chosen = f"{STREAMED_COPY_TUNABLE}={STREAMED_COPY_BYTES_MIN}"
    return {**environ, VARIABLE: f"{given}:{chosen}" if given else chosen}


def restart_tuned() -> None:
    """Begin this program again, as the same process and with the same arguments, unless it is tuned already. For its
    first step: nothing is flushed or closed."""
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
