"""The index of aborted transactions: which records readers must skip.

Only readers of committed data skip them.
"""

from braidlog.control.metadata.store import Transaction

_ROWS_PER_QUERY = 256


def find_aborted(tx: Transaction, partition_id: int, start_offset: int, end_offset: int) -> list[tuple[int, int, int]]:
    """Return every aborted transaction with records in the range.

    Each is a producer id, a first offset and a marker offset.
    """
    found: list[tuple[int, int, int]] = []
    marker_from = start_offset
    while True:
        rows = tx.query(
            "SELECT marker_offset, producer_id, first_offset, stable_offset FROM aborted_transactions"
            " WHERE partition_id = ? AND marker_offset >= ? ORDER BY marker_offset LIMIT ?",
            (partition_id, marker_from, _ROWS_PER_QUERY),
        )
        for marker_offset, producer_id, first_offset, stable_offset in rows:
            if first_offset < end_offset:
                found.append((producer_id, first_offset, marker_offset))
            if stable_offset >= end_offset:
                # Every transaction that was open then, or began later, begins at or after this offset.
                return found
            marker_from = marker_offset + 1
        if len(rows) < _ROWS_PER_QUERY:
            return found


def drop_aborted(tx: Transaction, partition_id: int, end_offset: int | None) -> None:
    """Forget transactions whose markers lie below `end_offset`; None: all.

    Their records are gone.
    """
    if end_offset is None:
        tx.execute("DELETE FROM aborted_transactions WHERE partition_id = ?", (partition_id,))
    else:
        tx.execute(
            "DELETE FROM aborted_transactions WHERE partition_id = ? AND marker_offset < ?", (partition_id, end_offset)
        )
