"""Records where they lie: bounds, offsets and keys, so that those that stay can be copied as they are."""

from dataclasses import dataclass

import numpy as np

from braidlog.records.compiled import Bytes, Numbers, SmallNumbers
from braidlog.records.kernel import Field, index_records
from braidlog.records.opened import Opened


@dataclass(frozen=True, slots=True)
class RawRecords:
    """The records of what was opened, batch after batch."""

    opened: Opened
    offsets: Numbers
    timestamps_ms: Numbers
    places: SmallNumbers
    """Four numbers for each record, positions in `opened.payload`: its begin, its end, its key's begin, and its key's
    length, which is -1 for a null key."""
    is_null: Bytes
    """Whether the value is null: a tombstone."""
    row_starts: SmallNumbers
    """The first record of each batch, and the end of the last."""
    problems: SmallNumbers
    """Of each batch, `kernel.Problem` if its records make no sense. It has none here then."""

    @property
    def count(self) -> int:
        return len(self.offsets)


def index_opened(opened: Opened) -> RawRecords:
    """Find every record. Of each only the fields up to the value's length are looked at: the rest is copied unread."""
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
