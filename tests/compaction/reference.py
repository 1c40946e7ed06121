"""Compaction as a dictionary would do it: slow, obvious, and apart from what it checks."""

from dataclasses import dataclass, field

from braidlog.compaction.rules import Rules
from braidlog.records.batch import BatchHeader
from braidlog.records.placement import place_batches
from braidlog.records.record import Record, decode_batch

BYTES_MAX = 10_000_000


@dataclass
class PlacedBatch:
    header: BatchHeader
    """With the offset that it has in the log."""
    records: list[Record]


def read_log(extents: list[tuple[int, bytes]]) -> list[PlacedBatch]:
    """All batches of extents given as (base offset, bytes)."""
    found: list[PlacedBatch] = []
    for base_offset, data in extents:
        view = memoryview(data)
        for position, header, offset in place_batches(view, base_offset):
            shift = offset - header.base_offset
            records = decode_batch(view[position : position + header.total_bytes], bytes_max=BYTES_MAX)
            found.append(
                PlacedBatch(
                    header._replace(base_offset=offset),
                    [record._replace(offset=record.offset + shift) for record in records],
                )
            )
    return found


@dataclass
class Expected:
    records: list[tuple[Record, BatchHeader]] = field(default_factory=list)
    """Every record that stays, with the header that its batch had."""
    empty_batches: list[int] = field(default_factory=list)
    """Last offsets of batches that stay though they are empty."""


def is_aborted(rules: Rules, header: BatchHeader) -> bool:
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset < each.marker_offset
        for each in rules.aborted
    )


def compact(log: list[PlacedBatch], rules: Rules, *, dirty_offset: int, end_offset: int) -> Expected:
    """What is left of the log, if all keys up to `end_offset` are compacted."""
    latest: dict[bytes, int] = {}
    for batch in log:
        if batch.header.is_control or is_aborted(rules, batch.header):
            continue
        if batch.header.end_offset <= rules.log_start_offset:
            continue
        for record in batch.records:
            if dirty_offset <= record.offset < end_offset and record.key is not None:
                latest[record.key] = max(record.offset, latest.get(record.key, 0))
    expected = Expected()
    for batch in log:
        header = batch.header
        left = 0
        for record in batch.records:
            if stays(record, header, rules, latest, end_offset):
                expected.records.append((record, header))
                left += 1
        last = rules.last_batches.get(header.producer_id)
        if left == 0 and last is not None and last.last_offset == header.end_offset - 1:
            expected.empty_batches.append(header.end_offset - 1)
    return expected


def stays(record: Record, header: BatchHeader, rules: Rules, latest: dict[bytes, int], end_offset: int) -> bool:
    if header.is_control:
        return True
    if is_aborted(rules, header) or record.offset < rules.log_start_offset:
        return False
    if record.offset >= end_offset:
        return True
    if record.key is None or latest.get(record.key, -1) > record.offset:
        return False
    time_is_over = (
        header.has_delete_horizon
        and header.timestamp_ms_base <= rules.now_ms
        and header.end_offset <= rules.tombstones_end_offset
    )
    return record.value is not None or not time_is_over
