"""The index of aborted transactions: which records of a range a reader of committed data must leave out."""

from braidlog.control.metadata import Transaction

_ROWS_PER_QUERY = 256


def find_aborted(tx: Transaction, partition_id: int, start_offset: int, end_offset: int) -> list[tuple[int, int, int]]:
    """Producer id, first offset and marker of every aborted transaction that has records in the range."""
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
                # All that was open then began at or behind this offset, and what comes later does too.
                return found
            marker_from = marker_offset + 1
        if len(rows) < _ROWS_PER_QUERY:
            return found


def drop_aborted(tx: Transaction, partition_id: int, end_offset: int | None) -> None:
    """Forget transactions whose markers lie below `end_offset` (None: all), because their records are gone."""
    if end_offset is None:
        tx.execute("DELETE FROM aborted_transactions WHERE partition_id = ?", (partition_id,))
    else:
        tx.execute(
            "DELETE FROM aborted_transactions WHERE partition_id = ? AND marker_offset < ?", (partition_id, end_offset)
        )
