"""Write epochs: decide which objects may still be sequenced.

They also say which objects the sweeper may delete, and which writers are fenced.
"""

from collections.abc import Iterable
from typing import Protocol

from braidlog.control.foundation import Foundation
from braidlog.control.metadata.counters import read_counter, write_counter
from braidlog.control.metadata.store import Transaction

_CURRENT = "write_epoch"
_FLOOR = "write_epoch_floor"


class EpochLeases(Protocol):
    """Leases under which objects of older write epochs may still be committed."""

    def lowest_leased_epoch(self) -> int | None:
        """Return the lowest write epoch of all leases; None: there is no lease."""
        ...


class WriteEpochs:
    """Keeps the current write epoch and the floor. Both only grow.

    `current` goes into the keys of new objects. Objects below `floor` are refused for ever.
    """

    def __init__(self, foundation: Foundation) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self.current = 0
        self.floor = 0
        self._fenced: dict[str, int] = {}
        """The write epoch in which each incarnation was fenced."""

    async def load(self) -> None:
        def load(tx: Transaction) -> tuple[int, int, dict[str, int]]:
            fenced: dict[str, int] = dict(tx.query("SELECT incarnation, write_epoch FROM fenced_writers"))
            return read_counter(tx, _CURRENT), read_counter(tx, _FLOOR), fenced

        self.current, self.floor, self._fenced = await self._metadata.read(load)
        if self.current == 0:
            await self.advance()

    async def advance(self) -> int:
        """Begin a new epoch.

        It is durable before anybody hears of it, so that a crash cannot hand it out as new again.
        """
        async with self._state_lock:
            following = self.current + 1
            await self._metadata.plan(lambda tx: write_counter(tx, _CURRENT, following))
            self.current = following
            return following

    async def raise_floor(self, floor: int, leases: Iterable["EpochLeases"]) -> int:
        """Raise the floor to `floor`, but not above the write epoch of any lease.

        Returns the floor. No commit is in flight meanwhile.
        """
        async with self._state_lock:
            leased = (each.lowest_leased_epoch() for each in leases)
            floor = min([floor, *(epoch for epoch in leased if epoch is not None)])
            if floor > self.floor:
                await self._metadata.plan(lambda tx: _write_floor(tx, floor))
                self.floor = floor
                self._fenced = {writer: epoch for writer, epoch in self._fenced.items() if epoch >= floor}
            return self.floor

    async def fence(self, incarnation: str) -> None:
        """Sequence no object of this writer from now on. No commit is in flight meanwhile."""
        async with self._state_lock:
            if incarnation not in self._fenced:
                epoch = self.current
                await self._metadata.plan(lambda tx: _write_fence(tx, incarnation, epoch))
                self._fenced[incarnation] = epoch

    def refusal(self, write_epoch: int, incarnation: str) -> str | None:
        """Return the reason why an object must not be sequenced any more.

        Returns None if it may be.
        """
        if write_epoch < self.floor:
            return f"its write epoch {write_epoch} is below the floor {self.floor}: it may be swept"
        if incarnation in self._fenced:
            return f"its writer {incarnation} was fenced off"
        return None


def _write_floor(tx: Transaction, floor: int) -> None:
    write_counter(tx, _FLOOR, floor)
    tx.execute("DELETE FROM fenced_writers WHERE write_epoch < ?", (floor,))


def _write_fence(tx: Transaction, incarnation: str, write_epoch: int) -> None:
    tx.execute("DELETE FROM fenced_writers WHERE incarnation = ?", (incarnation,))
    tx.execute("INSERT INTO fenced_writers (incarnation, write_epoch) VALUES (?, ?)", (incarnation, write_epoch))
