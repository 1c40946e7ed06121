"""The SQL statements that read and write transactions."""

from collections.abc import Iterable, Sequence

from braidlog.control.groups.store import OffsetKey, StoredOffset
from braidlog.control.metadata.store import Row, Transaction
from braidlog.control.transactions.state import Transactional, TransactionState

_SAVE = (
    "INSERT INTO transactional_ids (transactional_id, producer_id, producer_epoch, last_epoch, previous_producer_id,"
    " timeout_ms, state, started_ms, updated_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (transactional_id) DO UPDATE SET producer_id = excluded.producer_id,"
    " producer_epoch = excluded.producer_epoch, last_epoch = excluded.last_epoch,"
    " previous_producer_id = excluded.previous_producer_id, timeout_ms = excluded.timeout_ms, state = excluded.state,"
    " started_ms = excluded.started_ms, updated_ms = excluded.updated_ms"
)
_BEGIN = "UPDATE transactional_ids SET state = ?, started_ms = ?, updated_ms = ? WHERE transactional_id = ?"
_SAVE_PARTITION = (
    "INSERT INTO transaction_partitions (producer_id, partition_id, first_offset) VALUES (?, ?, ?)"
    " ON CONFLICT (producer_id, partition_id) DO UPDATE SET first_offset = excluded.first_offset"
)
_SAVE_GROUP = (
    "INSERT INTO transaction_groups (producer_id, group_id) VALUES (?, ?)"
    " ON CONFLICT (producer_id, group_id) DO NOTHING"
)
_SAVE_OFFSET = (
    "INSERT INTO transaction_offsets (producer_id, group_id, topic_id, partition_index, committed_offset, leader_epoch,"
    " metadata, committed_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (producer_id, group_id, topic_id, partition_index) DO UPDATE SET"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, committed_ms = excluded.committed_ms"
)
_SAVE_ABORTED = (
    "INSERT INTO aborted_transactions (partition_id, marker_offset, producer_id, first_offset, stable_offset)"
    " VALUES (?, ?, ?, ?, ?)"
)


def save_rows(tx: Transaction, rows: Iterable[Row]) -> None:
    """Write whole rows of `transactional_ids`."""
    tx.executemany(_SAVE, rows)


def begin_rows(tx: Transaction, begun: Iterable[Transactional], now_ms: int) -> None:
    """Mark transactions as ongoing."""
    state = str(TransactionState.ONGOING)
    tx.executemany(_BEGIN, [(state, now_ms, now_ms, each.transactional_id) for each in begun])


def save_partitions(tx: Transaction, rows: Iterable[Row]) -> None:
    """Write rows of producer id, partition id, first offset."""
    tx.executemany(_SAVE_PARTITION, rows)


def save_group(tx: Transaction, producer_id: int, group_id: str, offsets: dict[OffsetKey, StoredOffset]) -> None:
    tx.execute(_SAVE_GROUP, (producer_id, group_id))
    tx.executemany(
        _SAVE_OFFSET,
        [
            (producer_id, group_id, *key, each.offset, each.leader_epoch, each.metadata.encode(), each.committed_ms)
            for key, each in offsets.items()
        ],
    )


def save_aborted(tx: Transaction, rows: Iterable[Row]) -> None:
    """Write rows of aborted transactions.

    Each has a partition id, marker offset, producer id, first offset and stable offset.
    """
    tx.executemany(_SAVE_ABORTED, rows)


def forget_contents(tx: Transaction, producer_ids: Sequence[int]) -> None:
    """Delete the partitions and offsets of transactions that have ended."""
    rows = [(producer_id,) for producer_id in producer_ids]
    for table in ("transaction_partitions", "transaction_groups", "transaction_offsets"):
        tx.executemany(f"DELETE FROM {table} WHERE producer_id = ?", rows)


def forget_ids(tx: Transaction, transactional_ids: Iterable[str]) -> None:
    tx.executemany("DELETE FROM transactional_ids WHERE transactional_id = ?", [(each,) for each in transactional_ids])


def read_transactions(tx: Transaction) -> tuple[list[Transactional], dict[int, int]]:
    """Read all transactional ids, and where each partition's aborted records end.

    A partition has no aborted records after that offset.
    """
    found: dict[int, Transactional] = {}
    for row in tx.query(
        "SELECT transactional_id, producer_id, producer_epoch, last_epoch, previous_producer_id, timeout_ms, state,"
        " started_ms, updated_ms FROM transactional_ids ORDER BY transactional_id"
    ):
        name, producer_id, epoch, last_epoch, previous_id, timeout_ms, state, started_ms, updated_ms = row
        found[producer_id] = Transactional(
            name,
            producer_id,
            epoch,
            last_epoch,
            previous_id,
            timeout_ms,
            TransactionState(state),
            started_ms,
            updated_ms,
        )
    for producer_id, partition_id, first_offset in tx.query(
        "SELECT producer_id, partition_id, first_offset FROM transaction_partitions ORDER BY partition_id, first_offset"
    ):
        found[producer_id].partitions[partition_id] = first_offset
    for producer_id, group_id in tx.query("SELECT producer_id, group_id FROM transaction_groups ORDER BY group_id"):
        found[producer_id].offsets[group_id] = {}
    for producer_id, group_id, topic_id, index, offset, leader_epoch, metadata, committed_ms in tx.query(
        "SELECT producer_id, group_id, topic_id, partition_index, committed_offset, leader_epoch, metadata,"
        " committed_ms FROM transaction_offsets ORDER BY group_id, topic_id, partition_index"
    ):
        stored = StoredOffset(offset, leader_epoch, bytes(metadata).decode(), committed_ms)
        found[producer_id].offsets[group_id][bytes(topic_id), index] = stored
    aborted = tx.query("SELECT partition_id, MAX(marker_offset) FROM aborted_transactions GROUP BY partition_id")
    return list(found.values()), {partition_id: marker_offset + 1 for partition_id, marker_offset in aborted}
