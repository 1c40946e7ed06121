"""Aborted transactions: what readers and compaction must know of them."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class AbortedTransaction(NamedTuple):
    """A producer's transactional batches that readers of committed data skip.

    They are the batches of `producer_id` in [first_offset, marker_offset).
    """

    producer_id: int
    first_offset: int
    marker_offset: int


class AbortedTransactions:
    """Tells which batches belong to an aborted transaction.

    A producer's transactions do not overlap.
    """

    def __init__(self, transactions: Iterable[AbortedTransaction] = ()) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for transaction in sorted(transactions, key=lambda each: each.first_offset):
            self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def holds(self, producer_id: int, offset: int) -> bool:
        """Whether this producer's transactional batch at `offset` was aborted."""
        transactions = self._by_producer.get(producer_id)
        if transactions is None:
            return False
        place = bisect_right(transactions, offset, key=lambda each: each.first_offset)
        return place > 0 and offset < transactions[place - 1].marker_offset
