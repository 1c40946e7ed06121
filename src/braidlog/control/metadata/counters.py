"""Numbers that are never handed out twice, reserved durably in blocks."""

from braidlog.control.metadata.store import MetadataStore, Transaction


def read_counter(tx: Transaction, name: str, default: int = 0) -> int:
    rows = tx.query("SELECT value FROM counters WHERE name = ?", (name,))
    return int(rows[0][0]) if rows else default


def write_counter(tx: Transaction, name: str, value: int) -> None:
    tx.execute(
        "INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, value),
    )


class NumberBlocks:
    """Hands out numbers from blocks that are reserved durably.

    After `await reserve(n)`, the next n calls of `take()` return a number each.
    """

    def __init__(self, metadata: MetadataStore, name: str, block_size: int) -> None:
        self._metadata = metadata
        self._name = name
        self._block_size = block_size
        self._next = 0
        self._end = 0

    async def reserve(self, count: int) -> None:
        if self._end - self._next >= count:
            return
        size = max(count, self._block_size)

        def reserve_block(tx: Transaction) -> int:
            start = read_counter(tx, self._name, default=1)
            write_counter(tx, self._name, start + size)
            return start

        start = await self._metadata.plan(reserve_block)
        # The rest of the previous block is given up: numbers may have gaps.
        self._next, self._end = start, start + size

    def take(self) -> int:
        if self._next >= self._end:
            raise RuntimeError(f"no {self._name} was reserved")
        number = self._next
        self._next += 1
        return number
