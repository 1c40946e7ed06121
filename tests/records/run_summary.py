"""The summary of stored batches, for tests to compare with."""

from collections.abc import Iterable

from braidlog.records.batch import scan_batches
from braidlog.records.summary import RunSummary, SummaryBuilder


def summarize_run(parts: Iterable[memoryview]) -> RunSummary:
    """Sum up batches that lie back to back, each part holding whole ones. No record is decoded."""
    builder = SummaryBuilder()
    for part in parts:
        for _, header in scan_batches(part):
            builder.add(header)
    return builder.finish()
