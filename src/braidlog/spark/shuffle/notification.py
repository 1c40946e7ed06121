"""Notifications: where the rows of one partition lie in a batch.

Nothing else travels between tasks. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

NOTIFICATION_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("row_count", pa.int64(), nullable=False),
        pa.field("checksum", pa.int64(), nullable=False),
        pa.field("object_bytes", pa.int64(), nullable=False),
        pa.field("zone", pa.string(), nullable=False),
    ]
)

NOTIFICATION_DDL = (
    "partition int not null, key string not null, position bigint not null, length bigint not null,"
    " row_count bigint not null, checksum bigint not null, object_bytes bigint not null, zone string not null"
)
"""The same schema in Spark's syntax."""


@dataclass(frozen=True, slots=True, order=True)
class Notification:
    """Says where one partition's rows lie in a batch.

    They are the bytes [position, position + length) of the object `key`.
    """

    partition: int
    key: str
    position: int
    length: int
    row_count: int
    checksum: int
    """CRC32C of those bytes."""
    object_bytes: int
    zone: str
    """The zone in which the batch was written."""

    @property
    def end(self) -> int:
        return self.position + self.length


def to_arrow(notifications: Sequence[Notification]) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([getattr(each, field.name) for each in notifications], type=field.type)
            for field in NOTIFICATION_SCHEMA
        ],
        schema=NOTIFICATION_SCHEMA,
    )


def from_arrow(rows: pa.RecordBatch) -> Iterable[Notification]:
    columns = [rows.column(name).to_pylist() for name in NOTIFICATION_SCHEMA.names]
    return (Notification(*values) for values in zip(*columns, strict=True))
