"""Decodes the extents of a batch into rows, and checks them. Pure."""

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from fastcrc.crc32 import iscsi as crc32c

from braidlog.spark.errors import DataLoss
from braidlog.spark.shuffle.notification import Notification

PASSED_ON_BYTES = 2 * 1024 * 1024
"""Small batches are passed on together, up to about this size."""
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_PREFIX_BYTES = 8
"""A message of a stream begins with a marker and the length of its description."""


class Decoder:
    """Decodes extents, each of which is an Arrow stream and begins with its schema.

    All extents of a shuffle have the same schema, so it is parsed once: opening a stream costs more than decoding a
    small extent.
    """

    def __init__(self) -> None:
        self._schema_message = b""
        self._schema: pa.Schema | None = None
        self.extents = self.rows = 0

    def decode(self, notification: Notification, extent: memoryview) -> list[pa.RecordBatch]:
        if len(extent) != notification.length or crc32c(extent) != notification.checksum:
            raise DataLoss(
                f"partition {notification.partition} of batch {notification.key} is damaged",
                help="The store returned different bytes than were written. braid doctor checks the store.",
            )
        batches = self._batches(extent, notification.row_count)
        row_count = sum(batch.num_rows for batch in batches)
        if row_count != notification.row_count:
            raise DataLoss(
                f"partition {notification.partition} of batch {notification.key} has {row_count} rows"
                f" instead of {notification.row_count}"
            )
        self.extents += 1
        self.rows += row_count
        return batches

    def _batches(self, extent: memoryview, row_count: int) -> list[pa.RecordBatch]:
        schema_end = _PREFIX_BYTES + int.from_bytes(extent[4:_PREFIX_BYTES], "little")
        if extent[:schema_end] != self._schema_message:
            self._schema_message = bytes(extent[:schema_end])
            schema = pa.ipc.read_schema(pa.py_buffer(extent[:schema_end]))
            self._schema = None if has_dictionary(schema) else schema
        if self._schema is not None:
            first = pa.ipc.read_record_batch(pa.py_buffer(extent[schema_end:]), self._schema)
            if first.num_rows == row_count:
                return [first]
        with pa.ipc.open_stream(pa.py_buffer(extent)) as stream:
            return list(stream)


def has_dictionary(schema: pa.Schema) -> bool:
    """Return whether streams of this schema have messages other than rows."""

    def has(kind: pa.DataType) -> bool:
        return pa.types.is_dictionary(kind) or any(has(kind.field(number).type) for number in range(kind.num_fields))

    return any(has(field.type) for field in schema)


class BatchCoalescer:
    """Combines small batches into larger ones.

    Every batch costs its receiver something.
    """

    def __init__(self) -> None:
        self._small: list[pa.RecordBatch] = []
        self._small_bytes = 0

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Add a batch and return what can be passed on now."""
        size_bytes = batch.get_total_buffer_size()
        if size_bytes >= PASSED_ON_BYTES // 4:
            return batch
        self._small.append(batch)
        self._small_bytes += size_bytes
        return self.rest() if self._small_bytes >= PASSED_ON_BYTES else None

    def rest(self) -> pa.RecordBatch | None:
        """Return the rest, or None if there is none."""
        small, self._small, self._small_bytes = self._small, [], 0
        if not small:
            return None
        return small[0] if len(small) == 1 else pa.concat_batches(small)
