"""Write epochs: which objects may still be sequenced, and which the sweeper may judge."""

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

    async def load(self) -> None:
        def load(tx: Transaction) -> tuple[int, int]:
            return read_counter(tx, _CURRENT), read_counter(tx, _FLOOR)

        self.current, self.floor = await self._metadata.read(load)
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
                await self._metadata.transact(lambda tx: write_counter(tx, _FLOOR, floor))
                self.floor = floor
            return self.floor
