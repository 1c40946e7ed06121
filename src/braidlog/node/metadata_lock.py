"""The lock on a metadata file: one process holds it while it lives.

Another process can be told to take over. This is a lock of the operating system, on a file beside the metadata. It ends
with its process, however that ends, so it never has to be removed by hand. The file itself stays, and names its last
holder.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import InvalidSetting

log = structlog.get_logger(__name__)

LOCK_SUFFIX = ".lock"
TAKE_OVER_RETRY_S = 0.5


@asynccontextmanager
async def hold_metadata(url: str, who: str, clock: Clock, *, take_over: bool) -> AsyncIterator[None]:
    """Hold the metadata file of a URL while the context lasts.

    Other processes that want it are shown `who`.

    With `take_over`, continue although another process holds the file: that one will be fenced off, and end. The local
    image of metadata in the bucket always belongs to one process alone.
    """
    scheme, _, path = url.partition("://")
    if not path or scheme == "postgresql":
        yield  # in memory, or in the store: there is no file
        return
    place = _lock_file(path)
    lock = os.open(place, os.O_RDWR | os.O_CREAT, 0o644)
    waiting: asyncio.Task[None] | None = None
    try:
        if _try_lock(lock, who):
            pass
        elif scheme == "bucket":
            raise InvalidSetting(
                f"{path} is the image of {_holder(place)}",
                help="Give each process a path of its own, or bucket:// alone.",
            )
        elif take_over:
            log.warning("taking over from another process", holder=_holder(place), metadata=url)
            waiting = asyncio.create_task(_lock_later(lock, who, clock))
        else:
            raise InvalidSetting(
                f"{path} is in use by {_holder(place)}",
                help="Stop that process, or end it from here with --take-over.",
            )
        yield
    finally:
        if waiting is not None:
            waiting.cancel()
        os.close(lock)


def _lock_file(path: str) -> Path:
    """Return the path of the lock file, which lies beside the metadata file.

    This holds whatever name the metadata file was opened by.
    """
    return Path(os.path.realpath(path) + LOCK_SUFFIX)


def _try_lock(lock: int, who: str) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()}, {who}".encode(), 0)
    return True


async def _lock_later(lock: int, who: str, clock: Clock) -> None:
    """Take the lock once its previous holder has ended."""
    while not _try_lock(lock, who):
        await clock.sleep(TAKE_OVER_RETRY_S)


def _holder(place: Path) -> str:
    return place.read_text(errors="replace") or "another process"
