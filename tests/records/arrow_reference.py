"""Rows as plain Python reads them, one record at a time: what compiled code is compared with."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from braidlog.records.opened_extents import ExtentBytes
from braidlog.records.placement import place_batches
from braidlog.records.record import decode_batch

Row = dict[str, Any]


def rows_of(
    extents: Sequence[ExtentBytes],
    *,
    topic: str = "t",
    partition: int = 0,
    start_offset: int = 0,
    end_offset: int = 2**63 - 1,
    bytes_max: int = 10_000_000,
) -> list[Row]:
    """Every record of the range, control records too, in all columns."""
    rows: list[Row] = []
    for extent in extents:
        view = memoryview(extent.data)
        for position, header, offset in place_batches(view, extent.base_offset):
            batch = view[position : position + header.total_bytes]
            rows += [
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": topic,
                    "partition": partition,
                    "offset": record.offset - header.base_offset + offset,
                    "timestamp": record.timestamp_ms,
                    "timestampType": int(header.timestamp_type),
                    "headers": [{"key": name, "value": content} for name, content in record.headers],
                    "tombstone": record.value is None,
                    "producer_id": header.producer_id,
                    "producer_epoch": header.producer_epoch,
                    "is_transactional": header.is_transactional,
                    "is_control": header.is_control,
                }
                for record in decode_batch(batch, bytes_max=bytes_max)
            ]
    return [row for row in rows if start_offset <= row["offset"] < end_offset]


def rows_in(table: pa.Table) -> list[Row]:
    """A table as rows, timestamps as milliseconds: Python's own times do not reach as far."""
    table.validate(full=True)
    if "timestamp" in table.column_names:
        place = table.column_names.index("timestamp")
        table = table.set_column(place, "timestamp", table["timestamp"].cast(pa.int64()))
    rows: list[Row] = table.to_pylist()
    return rows
