"""Records in place: bounds, offsets and keys, to copy records unchanged."""

from dataclasses import dataclass

import numpy as np

from braidlog.records.batch_kernel import Field, index_records
from braidlog.records.compiled import Bytes, Numbers, SmallNumbers
from braidlog.records.opened_extents import Opened


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The records of opened batches, batch after batch."""

    opened: Opened
    offsets: Numbers
    timestamps_ms: Numbers
    places: SmallNumbers
    """Four numbers for each record: its begin, its end and its key's begin in `opened.payload`, and its key's length,
    which is -1 for a null key."""
    is_null: Bytes
    """Whether the value is null: a tombstone."""
    row_starts: SmallNumbers
    """The first record of each batch, and the end of the last."""
    problems: SmallNumbers
    """For each batch a `problems.Problem`, if its records make no sense. Such a batch has no records here."""

    @property
    def count(self) -> int:
        return len(self.offsets)


def index_opened(opened: Opened) -> RawRecords:
    """Find every record.

    Only the fields up to the value's length are read: the rest is copied unread.
    """
    table = opened.table
    total = int(np.maximum(table[:, Field.RECORD_COUNT], 0).sum())
    offsets: Numbers = np.empty(total, dtype=np.int64)
    timestamps_ms: Numbers = np.empty(total, dtype=np.int64)
    places: SmallNumbers = np.empty(4 * total, dtype=np.int32)
    is_null: Bytes = np.empty(total, dtype=np.uint8)
    row_starts: SmallNumbers = np.empty(len(table) + 1, dtype=np.int32)
    problems: SmallNumbers = np.empty(len(table), dtype=np.int32)
    count = index_records(opened.payload, table, offsets, timestamps_ms, places, is_null, row_starts, problems)
    return RawRecords(
        opened, offsets[:count], timestamps_ms[:count], places[: 4 * count], is_null[:count], row_starts, problems
    )
