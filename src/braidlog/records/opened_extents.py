"""Extents opened for reading, a bounded amount at a time.

Batches are in tables, CRCs are checked, and records are decompressed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode

from braidlog.records.batch import CODEC_MASK, CRC_START, HEADER_BYTES, RECORD_BYTES_MIN
from braidlog.records.batch_kernel import FIELD_COUNT, Field, walk_batches
from braidlog.records.codec import Codec, decompress
from braidlog.records.compiled import Bytes, Numbers
from braidlog.records.errors import InvalidBatch
from braidlog.records.problems import Problem, invalid

OFFSET_MAX = (1 << 63) - 1
OPENED_BYTES_TARGET = 4 * 1024 * 1024
"""Bytes of records to open at once: small enough for the processor's cache, large enough to amortise a call."""
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""The most that the records of one batch may decompress to."""
_ENOUGH = 1 / 8
"""From this share of the target on, batches are opened alone rather than together with the next extent."""
UNREADABLE = -1
_POSITIONS_MAX = (1 << 31) - 1
"""Compiled code and Arrow count positions in 32 bits."""

# Plain numbers for loops over batches: looking up an enum member takes as long as a checksum.
_RECORD_COUNT, _CRC = int(Field.RECORD_COUNT), int(Field.CRC)
_PAYLOAD_START, _PAYLOAD_END = int(Field.PAYLOAD_START), int(Field.PAYLOAD_END)


class ExtentBytes(NamedTuple):
    """A partition's stored batches of the offsets [base_offset, end_offset).

    They lie back to back.
    """

    base_offset: int
    data: bytes | bytearray | memoryview
    end_offset: int = OFFSET_MAX


@dataclass(frozen=True, slots=True)
class Opened:
    """Some batches of one or more extents, with their records in one array."""

    table: Numbers
    """A row for each batch: `batch_kernel.Field`."""
    payload: Bytes
    """The records' bytes, which `PAYLOAD_START` and `PAYLOAD_END` point into."""


def batch_table(extent: ExtentBytes) -> tuple[Numbers, Bytes]:
    """Return a table of an extent's batches, and the extent's bytes.

    The batches are placed in the log. No CRC is checked.
    """
    data = np.frombuffer(extent.data, dtype=np.uint8)
    table = np.empty((0, FIELD_COUNT), dtype=np.int64)
    count, problem, position = walk_batches(data, extent.base_offset, extent.end_offset, table)
    if problem:
        raise invalid(problem, f"at byte {position} of the extent at offset {extent.base_offset}")
    table = np.empty((count, FIELD_COUNT), dtype=np.int64)
    walk_batches(data, extent.base_offset, extent.end_offset, table)
    return table, data


def open_extents(
    extents: Iterable[ExtentBytes],
    *,
    select: Callable[[Numbers], Numbers],
    opened_bytes_target: int = OPENED_BYTES_TARGET,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    pass_unreadable: bool = False,
) -> Iterator[Opened]:
    """Open the batches that `select` keeps, a bounded amount at a time.

    It selects from every extent's table, in order.

    Each part is at most as large as the target, or is a single larger batch. Raises `InvalidBatch`. With
    `pass_unreadable`, a batch with a right CRC that cannot be decompressed, or not to as many records as it says, is no
    error: it gets the record count `UNREADABLE`.
    """
    if not 0 < decompressed_bytes_max <= _POSITIONS_MAX:
        raise ValueError(f"decompressed_bytes_max is {decompressed_bytes_max}")
    pending: list[_Pending] = []
    pending_bytes = 0
    for extent in extents:
        table, data = batch_table(extent)
        if pending_bytes >= opened_bytes_target * _ENOUGH:
            # Batches of several extents have to be moved together, which is worth it for small ones only.
            yield _joined(pending)
            pending = []
            pending_bytes = 0
        view = memoryview(extent.data).cast("B") if extent.data else memoryview(b"")
        for row in select(table).tolist():
            position, length, offset, _, attributes = row[:5]
            if crc32c(view[position + CRC_START : position + length]) != row[_CRC]:
                raise InvalidBatch(ErrorCode.corrupt_message, f"CRC does not match (the batch at offset {offset})")
            payload: memoryview | None = None
            payload_bytes = length - HEADER_BYTES
            try:
                if attributes & CODEC_MASK:
                    packed = view[position + HEADER_BYTES : position + length]
                    payload = decompress(Codec(attributes & CODEC_MASK), packed, bytes_max=decompressed_bytes_max)
                    payload_bytes = len(payload)
                if row[_RECORD_COUNT] * RECORD_BYTES_MIN > payload_bytes:
                    raise invalid(Problem.RECORD_COUNT, f"the batch at offset {offset}")
            except InvalidBatch:
                if not pass_unreadable:
                    raise
                row[_RECORD_COUNT] = UNREADABLE
            if pending and pending_bytes + payload_bytes > opened_bytes_target:
                yield _joined(pending)
                pending = []
                pending_bytes = 0
            pending.append(_Pending(row, data, payload))
            pending_bytes += payload_bytes
    if pending:
        yield _joined(pending)


class _Pending(NamedTuple):
    row: list[int]
    source: Bytes
    payload: memoryview | None
    """The decompressed records; None if the source holds them uncompressed."""


def _joined(pending: list[_Pending]) -> Opened:
    """Join batches into one table over one array of records.

    The array is the extent itself, if nothing has to be moved.
    """
    table = np.array([each.row for each in pending], dtype=np.int64)
    first = pending[0].source
    if all(each.payload is None and each.source is first for each in pending):
        # Positions start at the first batch, so that they fit in 32 bits.
        start = pending[0].row[0]
        end = pending[-1].row[0] + pending[-1].row[1]
        if end - start <= _POSITIONS_MAX:
            table[:, Field.PAYLOAD_START] -= start
            table[:, Field.PAYLOAD_END] -= start
            return Opened(table, first[start:end])
    parts = [
        each.source[each.row[_PAYLOAD_START] : each.row[_PAYLOAD_END]]
        if each.payload is None
        else np.frombuffer(each.payload, dtype=np.uint8)
        for each in pending
    ]
    ends = np.cumsum([len(part) for part in parts])
    table[:, Field.PAYLOAD_END] = ends
    table[0, Field.PAYLOAD_START] = 0
    table[1:, Field.PAYLOAD_START] = ends[:-1]
    return Opened(table, np.concatenate(parts))
