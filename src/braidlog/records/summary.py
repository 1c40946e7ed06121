"""Summaries of batches, for footers and for the index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from braidlog.records.batch import BatchHeader


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


class SummaryBuilder:
    """Sums up batches one by one."""

    def __init__(self) -> None:
        self.length = 0
        self._record_count = 0
        self._lowest_ms: int | None = None
        self._highest_ms = -1
        self._batches: list[BatchSummary] = []

    @property
    def batch_count(self) -> int:
        return len(self._batches)

    def add(self, header: BatchHeader) -> None:
        summary = summarize_batch(header)
        self._batches.append(summary)
        self.length += summary.length
        self._record_count += header.record_count
        first_ms = header.timestamp_ms_lowest
        self._lowest_ms = first_ms if self._lowest_ms is None else min(self._lowest_ms, first_ms)
        self._highest_ms = max(self._highest_ms, summary.timestamp_ms_max)

    def finish(self) -> RunSummary:
        lowest_ms = -1 if self._lowest_ms is None else self._lowest_ms
        return RunSummary(self.length, self._record_count, lowest_ms, self._highest_ms, self._batches)
