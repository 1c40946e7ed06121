"""Appends what the copy lacks, beyond every offset that was ever told.

First every partition begins a leader epoch. Where offsets were told behind the end of the copy, an empty batch covers
them, so that no offset ever names two records. Then the objects are appended as journal files are: no batch is refused,
and those of idempotent producers are deduplicated and put in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from braidlog.control.catalog_tables import LEADER_EPOCH
from braidlog.control.interface import InitProducerId
from braidlog.control.metadata.counters import read_counter, write_counter
from braidlog.control.metadata.store import Transaction
from braidlog.control.parts import Parts
from braidlog.control.restoring.findings import Findings
from braidlog.records.record import encode_batch
from braidlog.runtime.limits import RECORDS_PER_BATCH_MAX

OBJECTS_PER_STEP = 100
MARKERS_MAX = 1_000
"""Offsets that markers of transactions may have taken, beside those of records."""
_OBJECT_NUMBER = "object_number"
_WRITE_EPOCH = "write_epoch"
_INSERT_EXTENT = (
    "INSERT INTO extents (partition_id, base_offset, end_offset, object_number, position, length, timestamp_ms_min,"
    " timestamp_ms_max, inline_bytes) VALUES (?, ?, ?, ?, 0, ?, -1, -1, ?)"
)


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start_offset, end_offset) of a partition that are never used again."""

    topic: str
    topic_id: bytes
    index: int
    partition_id: int
    start_offset: int
    end_offset: int


def filler(start_offset: int, end_offset: int) -> bytes:
    """Encode batches without records that cover these offsets."""
    batches: list[bytes] = []
    for base in range(start_offset, end_offset, RECORDS_PER_BATCH_MAX):
        delta = min(end_offset - base, RECORDS_PER_BATCH_MAX) - 1
        batches.append(encode_batch([], base_offset=base, last_offset_delta=delta))
    return b"".join(batches)


def begin_epoch(tx: Transaction, leader_epoch: int, findings: Findings) -> list[Gap]:
    """Begin a leader epoch in every partition.

    Where offsets may have been told, it begins with a gap. All extents must have settled.
    """
    gaps: list[Gap] = []
    number = read_counter(tx, _OBJECT_NUMBER, default=1)
    rows = tx.query(
        "SELECT t.name, p.topic_id, p.partition_index, p.partition_id, p.next_offset FROM partitions p"
        " JOIN topics t ON t.topic_id = p.topic_id WHERE p.removed_ms IS NULL ORDER BY t.name, p.partition_index"
    )
    for name, topic_id, index, partition_id, next_offset in rows:
        tx.execute(
            "INSERT INTO leader_epochs (partition_id, leader_epoch, start_offset) VALUES (?, ?, ?)",
            (partition_id, leader_epoch, next_offset),
        )
        told_max = findings.told_max[bytes(topic_id), index]
        if not told_max:
            continue
        end_offset = next_offset + told_max + MARKERS_MAX
        data = filler(next_offset, end_offset)
        tx.execute(_INSERT_EXTENT, (partition_id, next_offset, end_offset, number, len(data), data))
        tx.execute(
            "UPDATE partitions SET next_offset = ?, settled_offset = ?, size_bytes = size_bytes + ?"
            " WHERE partition_id = ?",
            (end_offset, end_offset, len(data), partition_id),
        )
        number += 1
        gaps.append(Gap(name, bytes(topic_id), index, partition_id, next_offset, end_offset))
    write_counter(tx, _OBJECT_NUMBER, number)
    write_counter(tx, LEADER_EPOCH, leader_epoch)
    epoch = max(read_counter(tx, _WRITE_EPOCH), findings.write_epoch_max)
    write_counter(tx, _WRITE_EPOCH, epoch + 1)
    return gaps


async def append_all(parts: Parts, findings: Findings) -> None:
    """Append the objects that were found, and what waits for nothing else."""
    requests = findings.requests
    for start in range(0, len(requests), OBJECTS_PER_STEP):
        await parts.sequencer.append_restored(requests[start : start + OBJECTS_PER_STEP])
    if not findings.journal_file_count:
        await parts.sequencer.append_held()  # what they wait for can be nowhere else


async def raise_transactional_epochs(parts: Parts, timeouts_ms: Sequence[tuple[str, int]]) -> None:
    """Abort open transactions, and fence the producers that began them."""
    for transactional_id, timeout_ms in timeouts_ms:
        await parts.transactions.init(InitProducerId(transactional_id, timeout_ms))
