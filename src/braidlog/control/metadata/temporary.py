"""A folder for an image that nobody keeps.

A process that is killed cannot remove its folder, so the next one does.
"""

import fcntl
import shutil
import tempfile
from pathlib import Path

_PREFIX = "braidlog-metadata-"
_LOCK = "lock"


class TemporaryFolder:
    """A folder that belongs to this process as long as it lives.

    The operating system frees its lock when the process ends, however it ends.
    """

    def __init__(self) -> None:
        _remove_left(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock = (self.path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_left(parent: Path) -> None:
    """Remove the folders of processes that are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # it is in use, somebody else's, or just being made
