"""The swap: replaces extents of the index by others with the same offsets.

It replaces all of them at once, or none.

A worker's report is checked against the job as it was planned, before the metadata is touched. What may have changed
since (the index, the floor of write epochs) is checked inside the transaction that makes the change.
"""

from collections import Counter
from dataclasses import dataclass, field

from braidlog.control.interface import (
    COMPACT,
    MERGE,
    CompleteJob,
    IndexedExtent,
    JobPartition,
    JobTask,
    NewExtent,
    Replacement,
)
from braidlog.control.log.index import unreference
from braidlog.control.metadata.store import Row, Transaction
from braidlog.objects.format import CorruptObject, decode_footer_bytes, extents_length
from braidlog.objects.keys import InvalidKey, parse_data_key
from braidlog.objects.layout import KAFKA_BATCHES, ExtentEntry, Footer

LEASE_LOST = "lease-lost"
INDEX_CHANGED = "index-changed"
STALE_EPOCH = "stale-epoch"
INVALID = "invalid"

_ROWS_PER_QUERY = 500


class SwapRefused(Exception):
    """The result of a job is refused, and nothing is changed.

    `reason` is what the worker is told.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(slots=True, eq=False)
class PartitionSwap:
    partition_id: int
    generation: int
    removed: list[list[IndexedExtent]] = field(default_factory=list)
    """For each replacement, the extents that must be in the index, and that it removes."""
    added: list[tuple[NewExtent, ExtentEntry]] = field(default_factory=list)
    end_offset: int = 0

    @property
    def growth_bytes(self) -> int:
        return sum(entry.length for _, entry in self.added) - sum(
            extent.length for run in self.removed for extent in run
        )


@dataclass(slots=True, eq=False)
class Swap:
    """A checked completion, ready for `write_swap`."""

    partitions: list[PartitionSwap]
    objects: list[tuple[str, int, Footer]]

    @property
    def bytes_out(self) -> int:
        return sum(entry.length for partition in self.partitions for _, entry in partition.added)

    @property
    def extents_out(self) -> int:
        return sum(len(partition.added) for partition in self.partitions)


def check_completion(task: JobTask, request: CompleteJob, epoch_floor: int) -> Swap:
    """Check a worker's report against the job. Raises `SwapRefused`."""
    objects = [_check_object(new.key, new.size, new.footer, epoch_floor) for new in request.objects]
    entries = [{(entry.topic_id, entry.partition): entry for entry in footer.extents} for _, _, footer in objects]
    known = {partition.partition_id: partition for partition in task.partitions}
    swaps: dict[int, PartitionSwap] = {}
    for replacement in request.replacements:
        partition = known.get(replacement.partition_id)
        if partition is None:
            raise SwapRefused(INVALID, f"partition {replacement.partition_id} is not part of this job")
        swap = swaps.get(partition.partition_id)
        if swap is None:
            swap = swaps[partition.partition_id] = PartitionSwap(partition.partition_id, partition.generation)
        if replacement.base_offset < swap.end_offset:
            raise SwapRefused(INVALID, "replacements overlap, or are not in order")
        removed = _removed_run(partition, replacement)
        added = _added_extents(partition, replacement, entries)
        removed_bytes, added_bytes = sum(each.length for each in removed), sum(entry.length for _, entry in added)
        if task.kind == MERGE and removed_bytes != added_bytes:
            raise SwapRefused(INVALID, f"{removed_bytes} bytes would be merged into {added_bytes}")
        swap.removed.append(removed)
        swap.added.extend(added)
        swap.end_offset = replacement.end_offset
    if any(entries):
        raise SwapRefused(INVALID, "an object has extents that replace nothing")
    return Swap(list(swaps.values()), objects)


def _check_object(key: str, size: int, encoded: bytes, epoch_floor: int) -> tuple[str, int, Footer]:
    try:
        footer = decode_footer_bytes(encoded)
        epoch = parse_data_key(key).write_epoch
    except (CorruptObject, InvalidKey) as error:
        raise SwapRefused(INVALID, str(error)) from error
    if epoch != footer.write_epoch or extents_length(footer) > size:
        raise SwapRefused(INVALID, f"{key} is not what its footer says")
    if epoch < epoch_floor:
        raise SwapRefused(STALE_EPOCH, f"write epoch {epoch} of {key} is below the floor {epoch_floor}")
    return key, size, footer


def _removed_run(partition: JobPartition, replacement: Replacement) -> list[IndexedExtent]:
    run = [
        extent for extent in partition.extents if replacement.base_offset <= extent.base_offset < replacement.end_offset
    ]
    if not run or run[0].base_offset != replacement.base_offset or run[-1].end_offset != replacement.end_offset:
        raise SwapRefused(INVALID, "a replacement does not begin and end with extents of the job")
    return run


def _added_extents(
    partition: JobPartition, replacement: Replacement, entries: list[dict[tuple[bytes, int], ExtentEntry]]
) -> list[tuple[NewExtent, ExtentEntry]]:
    """Return the new extents with their footer entries.

    Takes the entries out of `entries`: none may be used twice.
    """
    added: list[tuple[NewExtent, ExtentEntry]] = []
    next_offset = replacement.base_offset
    for extent in replacement.extents:
        if extent.base_offset != next_offset or extent.end_offset <= extent.base_offset:
            raise SwapRefused(INVALID, f"offset {next_offset} is in no new extent, or in two")
        place = extent.object_index
        entry = entries[place].pop((partition.topic_id, partition.index), None) if 0 <= place < len(entries) else None
        if entry is None or entry.payload != KAFKA_BATCHES:
            raise SwapRefused(INVALID, f"object {place} has no extent for partition {partition.partition_id}")
        if entry.record_count > extent.end_offset - extent.base_offset:
            raise SwapRefused(INVALID, f"{entry.record_count} records do not fit into a new extent's offsets")
        added.append((extent, entry))
        next_offset = extent.end_offset
    if next_offset != replacement.end_offset:
        raise SwapRefused(INVALID, f"new extents end at {next_offset}, not at {replacement.end_offset}")
    return added


def write_swap(tx: Transaction, swap: Swap, numbers: list[int], now_ms: int) -> None:
    """Write the swap.

    Raises `SwapRefused`, which rolls everything back, if the index has changed.
    """
    counts: Counter[int] = Counter()
    for partition in swap.partitions:
        check_unchanged(tx, partition)
        counts.update(extent.object_number for run in partition.removed for extent in run)
    _insert_objects(tx, swap, numbers, _committed_ms(tx, counts, now_ms))
    for partition in swap.partitions:
        for run in partition.removed:
            tx.execute(
                "DELETE FROM extents WHERE partition_id = ? AND base_offset >= ? AND base_offset < ?",
                (partition.partition_id, run[0].base_offset, run[-1].end_offset),
            )
        tx.executemany(
            "INSERT INTO extents (partition_id, base_offset, end_offset, object_number, position, length,"
            " timestamp_ms_min, timestamp_ms_max) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [_extent_row(partition.partition_id, new, entry, numbers) for new, entry in partition.added],
        )
        tx.execute(
            "UPDATE partitions SET index_generation = index_generation + 1, size_bytes = size_bytes + ?"
            " WHERE partition_id = ?",
            (partition.growth_bytes, partition.partition_id),
        )
    unreference(tx, counts, now_ms)


def check_unchanged(tx: Transaction, partition: PartitionSwap) -> None:
    """Check that the index of a partition is as it was when the job was planned.

    This is the compare of a compare-and-set.
    """
    rows = tx.query(
        "SELECT index_generation FROM partitions WHERE partition_id = ? AND removed_ms IS NULL",
        (partition.partition_id,),
    )
    if not rows:
        raise SwapRefused(INDEX_CHANGED, f"partition {partition.partition_id} was deleted")
    if rows[0][0] != partition.generation:
        raise SwapRefused(
            INDEX_CHANGED,
            f"the index of partition {partition.partition_id} has generation {rows[0][0]}, "
            f"the job of {partition.generation}",
        )
    for run in partition.removed:
        found = tx.query(
            "SELECT partition_id, base_offset, end_offset, object_number, position, length, timestamp_ms_min,"
            " timestamp_ms_max, inline_bytes FROM extents WHERE partition_id = ? AND base_offset >= ?"
            " AND base_offset < ? ORDER BY base_offset",
            (partition.partition_id, run[0].base_offset, run[-1].end_offset),
        )
        if [IndexedExtent(*row) for row in found] != run:
            raise SwapRefused(INDEX_CHANGED, f"extents of partition {partition.partition_id} are gone")


def _committed_ms(tx: Transaction, counts: Counter[int], now_ms: int) -> int:
    """Return the commit time for the new objects.

    Records without a timestamp are as old as it, and must not get younger.
    """
    numbers = list(counts)
    newest: list[int] = []
    for start in range(0, len(numbers), _ROWS_PER_QUERY):
        some = numbers[start : start + _ROWS_PER_QUERY]
        marks = ", ".join("?" * len(some))
        newest.extend(
            row[0]
            for row in tx.query(f"SELECT MAX(committed_ms) FROM objects WHERE number IN ({marks})", some)
            if row[0] is not None
        )
    return max(newest, default=now_ms)


def _insert_objects(tx: Transaction, swap: Swap, numbers: list[int], committed_ms: int) -> None:
    live = Counter(new.object_index for partition in swap.partitions for new, _ in partition.added)
    rows: list[Row] = [
        (number, footer.nonce, key, size, footer.write_epoch, committed_ms, live[place])
        for place, (number, (key, size, footer)) in enumerate(zip(numbers, swap.objects, strict=True))
    ]
    tx.executemany(
        "INSERT INTO objects (number, nonce, object_key, size_bytes, write_epoch, committed_ms, live_count)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def _extent_row(partition_id: int, new: NewExtent, entry: ExtentEntry, numbers: list[int]) -> Row:
    return (
        partition_id,
        new.base_offset,
        new.end_offset,
        numbers[new.object_index],
        entry.position,
        entry.length,
        entry.timestamp_ms_min,
        entry.timestamp_ms_max,
    )


def write_compaction(tx: Transaction, task: JobTask, request: CompleteJob) -> None:
    """Record how far a partition is clean now. The offset never goes back."""
    if task.kind != COMPACT or task.compaction is None:
        return
    [partition] = task.partitions
    end_offset = partition.extents[-1].end_offset
    if request.clean_end_offset >= 0:
        end_offset = min(end_offset, request.clean_end_offset)
    tx.execute(
        "INSERT INTO partition_compactions (partition_id, clean_end_offset, compacted_ms, due_ms)"
        " VALUES (?, ?, ?, ?) ON CONFLICT (partition_id) DO UPDATE SET clean_end_offset ="
        " CASE WHEN excluded.clean_end_offset > partition_compactions.clean_end_offset THEN excluded.clean_end_offset"
        " ELSE partition_compactions.clean_end_offset END, compacted_ms = excluded.compacted_ms,"
        " due_ms = excluded.due_ms",
        (
            partition.partition_id,
            end_offset,
            task.compaction.now_ms,
            request.due_ms if request.due_ms >= 0 else None,
        ),
    )
