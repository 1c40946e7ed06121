"""Encodes a batch as one object. Pure.

It has one extent per partition, each an Arrow stream of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from fastcrc.crc32 import iscsi as crc32c

from braidlog.objects.format import encode_tail
from braidlog.objects.layout import ARROW_STREAM, ExtentEntry, Footer
from braidlog.runtime.limits import OBJECT_BYTES_MAX
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.buffers import Chunk, rows_by_partition
from braidlog.spark.shuffle.decoder import END_OF_STREAM, has_dictionary
from braidlog.spark.shuffle.notification import Notification
from braidlog.writing.arena import Arena

COMPRESSIONS = ("none", "lz4", "zstd")
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
"""Larger extents are split into several messages, so that a reader can pass them on one by one."""


@dataclass(frozen=True, slots=True)
class PackedBatch:
    key: str
    data: memoryview
    notifications: list[Notification]
    rows_bytes: int
    """The size of the rows in memory."""
    owners: list[int]
    """The owner of the rows of each notification."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """The name of a batch, and what its footer says about its writer."""

    key: str
    job: str
    incarnation: str
    zone: str
    nonce: bytes
    created_ms: int


def pack_batch(
    chunks: Sequence[Chunk],
    identity: BatchIdentity,
    *,
    compression: str,
    arena: Arena,
    owners: Sequence[int] | None = None,
) -> PackedBatch:
    """Pack rows into the bytes of one object, with one extent for each partition.

    With `owners`, one for each chunk, every owner's rows of a partition become an extent of their own.
    """
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    topic_id = blake2b(identity.job.encode(), digest_size=16).digest()
    created_ms = identity.created_ms
    rows_bytes = sum(chunk.size_bytes for chunk in chunks)
    streams = [
        (partition, owner, slices[0] if len(slices) == 1 else pa.concat_batches(slices))
        for partition, owner, slices in rows_by_partition(chunks, owners)
    ]
    memory = arena.take(_bytes_max(rows_bytes, streams))
    sink = pa.FixedSizeBufferWriter(pa.py_buffer(memory))
    written = _Streams(sink, streams[0][2].schema, options)
    extents: list[ExtentEntry] = []
    for partition, _, rows in streams:
        position = sink.tell()
        written.write(rows)
        length = sink.tell() - position
        extents.append(
            ExtentEntry(topic_id, partition, position, length, rows.num_rows, created_ms, created_ms, ARROW_STREAM, [])
        )
    if sink.tell() > OBJECT_BYTES_MAX:
        raise JobError(
            f"a batch of {sink.tell()} bytes is over the limit of {OBJECT_BYTES_MAX}",
            help="A single row of this size cannot be shuffled through the store.",
        )
    footer = Footer(identity.nonce, 0, identity.incarnation, created_ms, identity.zone, extents)
    sink.write(encode_tail(footer))
    data = memory[: sink.tell()].toreadonly()
    notifications = [
        Notification(
            partition=extent.partition,
            key=identity.key,
            position=extent.position,
            length=extent.length,
            row_count=extent.record_count,
            checksum=crc32c(data[extent.position : extent.position + extent.length]),
            object_bytes=len(data),
            zone=identity.zone,
        )
        for extent in extents
    ]
    return PackedBatch(identity.key, data, notifications, rows_bytes, [owner for _, owner, _ in streams])


class _Streams:
    """Writes Arrow streams one after the other, each with its schema and its end.

    One Arrow writer serves all streams, because making a writer takes longer than writing a few rows.
    """

    def __init__(self, sink: pa.NativeFile, schema: pa.Schema, options: pa.ipc.IpcWriteOptions) -> None:
        self._sink = sink
        self._options = options
        self._schema_message = schema.serialize()
        # Dictionaries are messages of their own before the rows, and an Arrow writer does not repeat them.
        self._alone = has_dictionary(schema)
        self._writer: pa.RecordBatchStreamWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        if self._alone:
            with pa.ipc.new_stream(self._sink, rows.schema, options=self._options) as writer:
                for part in _messages(rows):
                    writer.write_batch(part)
            return
        if self._writer is None:
            # A new writer writes the schema before the first rows.
            self._writer = pa.ipc.new_stream(self._sink, rows.schema, options=self._options)
        else:
            self._sink.write(self._schema_message)
        for part in _messages(rows):
            self._writer.write_batch(part)
        self._sink.write(END_OF_STREAM)


def _bytes_max(rows_bytes: int, streams: Sequence[tuple[int, int, pa.RecordBatch]]) -> int:
    """Compute the largest possible size of the object.

    The size of the rows in memory is exact except for padding. Compression that does not help adds a little to each
    buffer. Every message describes all buffers of its columns.
    """
    schema = streams[0][2].schema
    description_bytes: int = schema.serialize().size
    buffers = _buffer_count(schema)
    messages = rows_bytes // MESSAGE_BYTES_MAX + 2 * len(streams)
    return int(rows_bytes * 1.01) + len(streams) * (description_bytes + 256) + messages * (512 + 256 * buffers) + 65_536


def _buffer_count(schema: pa.Schema) -> int:
    def of(kind: pa.DataType) -> int:
        return 3 + sum(of(kind.field(number).type) for number in range(kind.num_fields))

    return sum(of(field.type) for field in schema)


def _messages(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    if rows.get_total_buffer_size() <= MESSAGE_BYTES_MAX:
        return [rows]  # a quick check: for a slice, it counts the whole that it is a part of
    count = min(rows.num_rows, -(-rows.nbytes // MESSAGE_BYTES_MAX))
    if count <= 1:
        return [rows]
    row_count = -(-rows.num_rows // count)
    return [rows.slice(start, row_count) for start in range(0, rows.num_rows, row_count)]
