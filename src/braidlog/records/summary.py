"""What is told of batches without their bytes: to footers, and to the index."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from braidlog.records.batch import BatchHeader, TimestampType, scan_batches


class BatchSummary(NamedTuple):
    """One batch as an object's footer describes it, field by field."""

    length: int
    offset_count: int
    attributes: int
    timestamp_ms_max: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run of batches as an object's footer describes it."""

    length: int
    record_count: int
    timestamp_ms_min: int
    timestamp_ms_max: int
    batches: Sequence[BatchSummary]


def summarize_batch(header: BatchHeader) -> BatchSummary:
    return BatchSummary(
        header.total_bytes,
        header.offset_count,
        header.attributes,
        header.timestamp_ms_highest,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def summarize_run(parts: Iterable[memoryview]) -> RunSummary:
    """Batches back to back, each part holding whole ones. By their headers alone: no record is decoded."""
    batches: list[BatchSummary] = []
    length = record_count = 0
    lowest_ms: int | None = None
    for part in parts:
        length += len(part)
        for _, header in scan_batches(part):
            batches.append(summarize_batch(header))
            record_count += header.record_count
            # Where the base timestamp says when tombstones may go, the highest one is the best that is known.
            own_base = not header.has_delete_horizon and header.timestamp_type is TimestampType.CREATE
            first_ms = header.timestamp_ms_base if own_base else header.timestamp_ms_max
            lowest_ms = first_ms if lowest_ms is None else min(lowest_ms, first_ms)
    highest_ms = max((batch.timestamp_ms_max for batch in batches), default=-1)
    return RunSummary(length, record_count, -1 if lowest_ms is None else lowest_ms, highest_ms, batches)
