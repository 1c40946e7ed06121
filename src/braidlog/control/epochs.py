"""Write epochs: which objects may still be sequenced, and which the sweeper may judge. And writers that have died."""

import asyncio
from collections.abc import Callable

from braidlog.control.counters import read_counter, write_counter
from braidlog.control.metadata import MetadataStore, Transaction

_CURRENT = "write_epoch"
_FLOOR = "write_epoch_floor"


class WriteEpochs:
    """`current` goes into the keys of new objects; objects below `floor` are refused for ever. Both only grow."""

    def __init__(self, metadata: MetadataStore, turn: asyncio.Lock) -> None:
        self._metadata = metadata
        self._turn = turn
        self.current = 0
        self.floor = 0
        self.lowest_held: Callable[[], int | None] = lambda: None
        """The lowest epoch of which objects are still to be committed, however long that takes."""
        self._fenced: dict[str, int] = {}
        """By incarnation: the write epoch when it was fenced."""

    async def load(self) -> None:
        def load(tx: Transaction) -> tuple[int, int, dict[str, int]]:
            fenced: dict[str, int] = dict(tx.query("SELECT incarnation, write_epoch FROM fenced_writers"))
            return read_counter(tx, _CURRENT), read_counter(tx, _FLOOR), fenced

        self.current, self.floor, self._fenced = await self._metadata.read(load)
        if self.current == 0:
            await self.advance()

    async def advance(self) -> int:
        """A new epoch, durable before anybody hears of it: after a crash, none is handed out a second time as new."""
        async with self._turn:
            following = self.current + 1
            await self._metadata.transact(lambda tx: write_counter(tx, _CURRENT, following))
            self.current = following
            return following

    async def raise_floor(self, floor: int) -> int:
        """Refuse every object below `floor`, or below what is held, from now on. No commit is in flight meanwhile."""
        async with self._turn:
            held = self.lowest_held()
            if held is not None:
                floor = min(floor, held)
            if floor > self.floor:
                await self._metadata.transact(lambda tx: _write_floor(tx, floor))
                self.floor = floor
                self._fenced = {writer: epoch for writer, epoch in self._fenced.items() if epoch >= floor}
            return self.floor

    async def fence(self, incarnation: str) -> None:
        """Sequence nothing of this writer from now on. No commit is in flight meanwhile."""
        async with self._turn:
            if incarnation not in self._fenced:
                epoch = self.current
                await self._metadata.transact(lambda tx: _write_fence(tx, incarnation, epoch))
                self._fenced[incarnation] = epoch

    def refusal(self, write_epoch: int, incarnation: str) -> str | None:
        """Why an object must not be sequenced any more; None where it may."""
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
