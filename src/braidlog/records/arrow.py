"""Record batches as Arrow columns and back, at compiled speed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from kio.schema.errors import ErrorCode
from numpy.typing import NDArray

from braidlog.records.aborted import AbortedTransaction, AbortedTransactions
from braidlog.records.arrow_encoder import EncodedBatches, encode_batches
from braidlog.records.batch import CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from braidlog.records.batch_kernel import Field, gather, scan_headers, scan_records
from braidlog.records.compiled import Bytes, Numbers, SmallNumbers
from braidlog.records.errors import InvalidBatch
from braidlog.records.opened_extents import (
    DECOMPRESSED_BYTES_MAX,
    OFFSET_MAX,
    OPENED_BYTES_TARGET,
    ExtentBytes,
    Opened,
    open_extents,
)
from braidlog.records.problems import invalid

__all__ = [
    "COLUMNS",
    "HEADERS_TYPE",
    "SCHEMA",
    "AbortedTransaction",
    "EncodedBatches",
    "ExtentBytes",
    "PartitionRange",
    "decode_extents",
    "encode_batches",
    "iter_decoded",
]

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestampType", pa.int32(), nullable=False),
        pa.field("headers", HEADERS_TYPE),
        pa.field("tombstone", pa.bool_(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("is_transactional", pa.bool_(), nullable=False),
        pa.field("is_control", pa.bool_(), nullable=False),
    ]
)
"""Every column there is. The first eight are named as Spark's Kafka source names them."""

COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)
_RECORD_HEADERS = "headers"


class PartitionRange(NamedTuple):
    """The offsets [start_offset, end_offset) of a partition."""

    topic: str
    partition: int
    start_offset: int = 0
    end_offset: int = OFFSET_MAX


def decode_extents(
    extents: Iterable[ExtentBytes],
    wanted: PartitionRange,
    *,
    include_headers: bool = False,
    columns: Sequence[str] | None = None,
    include_control: bool = False,
    aborted: Iterable[AbortedTransaction] = (),
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> pa.Table:
    """Decode all wanted records of a partition's extents into one table.

    See `iter_decoded`.
    """
    schema = _schema(columns, include_headers=include_headers)
    return pa.Table.from_batches(
        iter_decoded(
            extents,
            wanted,
            include_headers=include_headers,
            columns=columns,
            include_control=include_control,
            aborted=aborted,
            decompressed_bytes_max=decompressed_bytes_max,
        ),
        schema=schema,
    )


def iter_decoded(
    extents: Iterable[ExtentBytes],
    wanted: PartitionRange,
    *,
    include_headers: bool = False,
    columns: Sequence[str] | None = None,
    include_control: bool = False,
    aborted: Iterable[AbortedTransaction] = (),
    opened_bytes_target: int = OPENED_BYTES_TARGET,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """Decode the wanted records of a partition's extents, a few megabytes at a time.

    `extents` may be a generator: only what is being decoded is held. Columns are those of `SCHEMA`, without `headers`
    unless they are asked for, or just `columns`. Control batches and batches of `aborted` transactions have no rows,
    unless `include_control` asks for everything. Every batch that is decoded has its length, magic, codec and CRC
    checked, and every record its structure; what is wrong raises `InvalidBatch`.
    """
    schema = _schema(columns, include_headers=include_headers)
    hidden = AbortedTransactions(() if include_control else aborted)

    def select(table: Numbers) -> Numbers:
        starts = table[:, Field.OFFSET]
        chosen = (starts < wanted.end_offset) & (starts + table[:, Field.LAST_OFFSET_DELTA] >= wanted.start_offset)
        if not include_control:
            chosen &= table[:, Field.ATTRIBUTES] & CONTROL_BIT == 0
        if hidden:
            for index in np.flatnonzero(chosen & (table[:, Field.ATTRIBUTES] & TRANSACTIONAL_BIT != 0)):
                chosen[index] = not hidden.holds(int(table[index, Field.PRODUCER_ID]), int(starts[index]))
        return table if chosen.all() else table[chosen]

    for opened in open_extents(
        extents,
        select=select,
        opened_bytes_target=opened_bytes_target,
        decompressed_bytes_max=decompressed_bytes_max,
    ):
        scanned = _Scanned(opened, wanted, wants_headers=_RECORD_HEADERS in schema.names)
        if scanned.count:
            arrays = [scanned.column(field.name) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _schema(columns: Sequence[str] | None, *, include_headers: bool) -> pa.Schema:
    if columns is None:
        columns = [name for name in COLUMNS if include_headers or name != _RECORD_HEADERS]
    return pa.schema([SCHEMA.field(name) for name in columns])


class _Scanned:
    """The records of opened batches, found and checked.

    Columns are made from them on demand.
    """

    def __init__(self, opened: Opened, wanted: PartitionRange, *, wants_headers: bool) -> None:
        table = opened.table
        self._topic = wanted.topic
        self._partition = wanted.partition
        total = int(table[:, Field.RECORD_COUNT].sum())
        header_total = total if wants_headers else 0
        self._table = table
        self._payload = opened.payload
        self._offsets: Numbers = np.empty(total, dtype=np.int64)
        self._timestamps_ms: Numbers = np.empty(total, dtype=np.int64)
        self._spans: SmallNumbers = np.empty(4 * total, dtype=np.int32)
        self._key_validity: Bytes = np.full(total + 7 >> 3, 0xFF, dtype=np.uint8)
        self._value_validity: Bytes = np.full(total + 7 >> 3, 0xFF, dtype=np.uint8)
        self._header_counts: SmallNumbers = np.empty(header_total, dtype=np.int32)
        self._header_positions: SmallNumbers = np.empty(header_total, dtype=np.int32)
        self._row_counts: Numbers = np.empty(len(table), dtype=np.int64)
        totals: Numbers = np.zeros(7, dtype=np.int64)
        problem = scan_records(
            self._payload,
            table,
            wanted.start_offset,
            wanted.end_offset,
            self._offsets,
            self._timestamps_ms,
            self._spans,
            self._key_validity,
            self._value_validity,
            self._header_counts,
            self._header_positions,
            self._row_counts,
            totals,
        )
        (
            self.count,
            self._key_bytes,
            self._value_bytes,
            self._null_keys,
            self._null_values,
            self._header_count,
            row,
        ) = totals.tolist()
        if problem:
            raise invalid(problem, f"the batch at offset {table[row, Field.OFFSET]}")

    def column(self, name: str) -> pa.Array:
        count = self.count
        match name:
            case "key":
                return self._binary(0, self._key_bytes, self._key_validity, self._null_keys)
            case "value":
                return self._binary(2, self._value_bytes, self._value_validity, self._null_values)
            case "topic":
                return pa.repeat(pa.scalar(self._topic, pa.string()), count)
            case "partition":
                return pa.array(np.full(count, self._partition, dtype=np.int32))
            case "offset":
                return pa.array(self._offsets[:count])
            case "timestamp":
                return pa.Array.from_buffers(
                    SCHEMA.field(name).type, count, [None, pa.py_buffer(self._timestamps_ms)], null_count=0
                )
            case "timestampType":
                return pa.array(self._expanded(self._bits(TIMESTAMP_TYPE_BIT).astype(np.int32)))
            case "headers":
                return self._headers()
            case "tombstone":
                return pa.Array.from_buffers(
                    pa.bool_(), count, [None, pa.py_buffer(np.invert(self._value_validity))], null_count=0
                )
            case "producer_id":
                return pa.array(self._expanded(self._table[:, Field.PRODUCER_ID]))
            case "producer_epoch":
                return pa.array(self._expanded(self._table[:, Field.PRODUCER_EPOCH].astype(np.int16)))
            case "is_transactional":
                return self._flags(TRANSACTIONAL_BIT)
            case "is_control":
                return self._flags(CONTROL_BIT)
        raise ValueError(f"there is no column {name}")

    def _bits(self, bit: int) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._table[:, Field.ATTRIBUTES] & bit != 0
        return found

    def _flags(self, bit: int) -> pa.Array:
        of_batches = self._bits(bit)
        if of_batches.any():
            return pa.array(self._expanded(of_batches))
        return pa.Array.from_buffers(
            pa.bool_(), self.count, [None, pa.py_buffer(bytes(self.count + 7 >> 3))], null_count=0
        )

    def _expanded(self, of_batches: NDArray[np.generic]) -> NDArray[np.generic]:
        """Repeat a value of each batch for all its records."""
        if (of_batches == of_batches[0]).all():
            return np.full(self.count, of_batches[0])
        return np.repeat(of_batches, self._row_counts)

    def _binary(self, first: int, size: int, validity: Bytes, null_count: int) -> pa.Array:
        offsets, data = _gathered(self._payload, self._spans, first, self.count, size)
        nulls = pa.py_buffer(validity) if null_count else None
        return pa.Array.from_buffers(pa.binary(), self.count, [nulls, offsets, data], null_count=null_count)

    def _headers(self) -> pa.Array:
        count, total = self.count, self._header_count
        list_offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(self._header_counts[:count], out=list_offsets[1:])
        spans = np.empty(4 * total, dtype=np.int32)
        validity = np.zeros(total + 7 >> 3, dtype=np.uint8)
        name_bytes, value_bytes = scan_headers(
            self._payload, self._header_counts[:count], self._header_positions[:count], spans, validity
        )
        offsets, data = _gathered(self._payload, spans, 0, total, name_bytes)
        names = pa.Array.from_buffers(pa.string(), total, [None, offsets, data], null_count=0)
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:
            raise InvalidBatch(ErrorCode.invalid_record, "a record header's name is not UTF-8") from None
        offsets, data = _gathered(self._payload, spans, 2, total, value_bytes)
        values = pa.Array.from_buffers(pa.binary(), total, [pa.py_buffer(validity), offsets, data])
        pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
        return pa.Array.from_buffers(HEADERS_TYPE, count, [None, pa.py_buffer(list_offsets)], children=[pairs])


def _gathered(payload: Bytes, spans: SmallNumbers, first: int, count: int, size: int) -> tuple[pa.Buffer, pa.Buffer]:
    """Return offsets and data of an Arrow column.

    The data comes from every fourth pair of `spans`, from `first` on.
    """
    # Arrow reuses its memory; memory from numpy comes fresh from the system, page by page.
    offsets = pa.allocate_buffer(4 * (count + 1))
    data = pa.allocate_buffer(size)
    gather(payload, spans, first, 4, np.frombuffer(offsets, dtype=np.int32), np.frombuffer(data, dtype=np.uint8))
    return offsets, data
