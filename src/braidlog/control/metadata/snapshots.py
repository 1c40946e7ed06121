"""The holder's snapshots of the metadata.

They limit how much of the log a starting process has to read.
"""

import asyncio

import apsw
import structlog

from braidlog.control.metadata.delta_log import TRIM_AFTER_S, DeltaLog
from braidlog.control.metadata.deltas import Delta, Position
from braidlog.control.metadata.image import dump
from braidlog.control.metadata.store import MetadataError
from braidlog.runtime.tasks import TaskGroup

_log = structlog.get_logger(__name__)

SNAPSHOT_DELTAS = 1_000
SNAPSHOT_BYTES = 64 * 1024 * 1024
"""Make a snapshot when this much lies behind the last one. This limits what a starting process has to read."""


class Snapshots:
    """Makes a snapshot when enough deltas lie behind the last one.

    It also trims the log up to an old snapshot.
    """

    def __init__(self, deltas: DeltaLog, tasks: TaskGroup) -> None:
        self._deltas = deltas
        self._tasks = tasks
        self.deltas_behind = 0
        """How many deltas lie behind the last snapshot."""
        self._bytes_behind = 0
        self.running: asyncio.Task[None] | None = None
        """The snapshot that is being made."""

    def count(self, delta: Delta) -> None:
        self.deltas_behind += 1
        self._bytes_behind += len(delta.changes)

    @property
    def is_due(self) -> bool:
        """Whether a snapshot should be made at the next delta, because none is."""
        is_long = self.deltas_behind >= SNAPSHOT_DELTAS or self._bytes_behind >= SNAPSHOT_BYTES
        return is_long and self.running is None

    def make(self, pinned: apsw.Connection, position: Position) -> None:
        """Begin a snapshot in the background, of what the connection sees."""
        self.running = self._tasks.spawn(self._make(pinned, position))

    async def _make(self, pinned: apsw.Connection, position: Position) -> None:
        try:
            self.deltas_behind = self._bytes_behind = 0
            data = await asyncio.get_running_loop().run_in_executor(None, dump, pinned, position)
            await self._deltas.write_snapshot(position.counted_number, data)
            await self._trim()
        except MetadataError as error:
            _log.warning("no snapshot of the metadata could be made", error=str(error), help=error.help)
        finally:
            self.running = None

    async def _trim(self) -> None:
        """Trim the log up to the newest snapshot that is old enough.

        The age is that of the snapshot when the newest one was stored, both by the store's clock: so it counts across
        restarts, and no clock of a process matters. The newest snapshot never ends the log alone: another stays before
        it, with the deltas behind it, in case the newest cannot be read.
        """
        found = await self._deltas.dated_snapshots()
        newest_ms = found[-1][1]
        old = [number for number, at_ms in found[:-1] if newest_ms - at_ms > TRIM_AFTER_S * 1000]
        if old:
            await self._deltas.trim(old[-1])
