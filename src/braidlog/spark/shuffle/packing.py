"""A batch as the bytes of one object: an extent per partition, each an Arrow stream of its own. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from crc32c import crc32c

from braidlog.objects.format import encode_tail
from braidlog.objects.layout import ARROW_STREAM, ExtentEntry, Footer
from braidlog.runtime.limits import OBJECT_BYTES_MAX
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.buffers import Chunk, rows_by_partition
from braidlog.spark.shuffle.notifying import Notification

COMPRESSIONS = ("none", "lz4", "zstd")
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
"""Larger runs of rows are several messages of their stream, so that a reader can pass them on piece by piece."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    key: str
    data: memoryview
    notifications: list[Notification]
    rows_bytes: int
    """What the rows took in memory."""


def pack_batch(
    chunks: Sequence[Chunk],
    *,
    key: str,
    job: str,
    incarnation: str,
    zone: str,
    compression: str,
    nonce: bytes,
    created_ms: int,
) -> PackedBatch:
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    topic_id = blake2b(job.encode(), digest_size=16).digest()
    rows_bytes = sum(chunk.size_bytes for chunk in chunks)
    sink = pa.BufferOutputStream()
    extents: list[ExtentEntry] = []
    for partition, slices in rows_by_partition(chunks):
        position = sink.tell()
        rows = slices[0] if len(slices) == 1 else pa.concat_batches(slices)
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            for part in _messages(rows):
                writer.write_batch(part)
        length = sink.tell() - position
        extents.append(
            ExtentEntry(topic_id, partition, position, length, rows.num_rows, created_ms, created_ms, ARROW_STREAM, [])
        )
    if sink.tell() > OBJECT_BYTES_MAX:
        raise JobError(
            f"a batch of {sink.tell()} bytes is over the limit of {OBJECT_BYTES_MAX}",
            help="A single row that is as large as this cannot be shuffled through the store.",
        )
    sink.write(encode_tail(Footer(nonce, 0, incarnation, created_ms, zone, extents)))
    data = memoryview(sink.getvalue())
    notifications = [
        Notification(
            partition=extent.partition,
            key=key,
            position=extent.position,
            length=extent.length,
            row_count=extent.record_count,
            checksum=crc32c(data[extent.position : extent.position + extent.length]),
            object_bytes=len(data),
            zone=zone,
        )
        for extent in extents
    ]
    return PackedBatch(key, data, notifications, rows_bytes)


def _messages(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    count = min(rows.num_rows, -(-rows.nbytes // MESSAGE_BYTES_MAX))
    if count <= 1:
        return [rows]
    row_count = -(-rows.num_rows // count)
    return [rows.slice(start, row_count) for start in range(0, rows.num_rows, row_count)]
