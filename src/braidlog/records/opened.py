"""Extents opened for reading: batches in tables, CRCs checked, records decompressed, a bounded amount at a time."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from fastcrc.crc32 import iscsi as crc32c
from kio.schema.errors import ErrorCode

from braidlog.records.batch import CODEC_MASK, CRC_START, HEADER_BYTES, RECORD_BYTES_MIN
from braidlog.records.codec import Codec, decompress
from braidlog.records.compiled import Bytes, Numbers
from braidlog.records.errors import InvalidBatch
from braidlog.records.kernel import FIELD_COUNT, PROBLEM_TEXT, Field, Problem, walk_batches

OFFSET_MAX = (1 << 63) - 1
OPENED_BYTES_TARGET = 4 * 1024 * 1024
"""Records that are opened at once: small enough for a processor's cache, large enough to forget the cost of a call."""
DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""What the records of one batch may swell to."""
_ENOUGH = 1 / 8
"""So much of the target is opened by itself rather than together with the next extent."""
UNREADABLE = -1
_POSITIONS_MAX = (1 << 31) - 1
"""Compiled code and Arrow count positions in 32 bits."""

# In loops over batches, plain numbers: a member of an enumeration takes as long as a checksum.
_RECORD_COUNT, _CRC = int(Field.RECORD_COUNT), int(Field.CRC)
_PAYLOAD_START, _PAYLOAD_END = int(Field.PAYLOAD_START), int(Field.PAYLOAD_END)

_CODES = {
    Problem.TRAILING_BYTES: ErrorCode.corrupt_message,
    Problem.BATCH_LENGTH: ErrorCode.corrupt_message,
    Problem.CODEC: ErrorCode.unsupported_compression_type,
    Problem.OFFSETS: ErrorCode.corrupt_message,
}


class ExtentBytes(NamedTuple):
    """A partition's record batches as they are stored, back to back: the offsets [base_offset, end_offset)."""

    base_offset: int
    data: bytes | bytearray | memoryview
    end_offset: int = OFFSET_MAX


@dataclass(frozen=True, slots=True)
class Opened:
    """Some batches of one or more extents, with their records side by side in one array."""

    table: Numbers
    """A row for each batch: `kernel.Field`."""
    payload: Bytes
    """What `PAYLOAD_START` and `PAYLOAD_END` count in."""


def invalid(problem: int, detail: str) -> InvalidBatch:
    """The error for a problem that compiled code has met."""
    known = Problem(problem)
    return InvalidBatch(_CODES.get(known, ErrorCode.invalid_record), f"{PROBLEM_TEXT[known]} ({detail})")


def batch_table(extent: ExtentBytes) -> tuple[Numbers, Bytes]:
    """Every batch of an extent by its header, placed in the log, and the extent's bytes. No CRC is checked."""
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
    """The batches that `select` leaves of every extent's table, in order, a bounded amount at a time.

    Whatever is opened at once is as large as the target, or is a single batch that is larger. Raises `InvalidBatch`.
    With `pass_unreadable`, a batch whose CRC is right but that cannot be decompressed, or not to as many records as it
    says, is no error: it has the record count `UNREADABLE`.
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
    """The records decompressed; None if they lie in the source as they are."""


def _joined(pending: list[_Pending]) -> Opened:
    """Batches as one table over one array of records: over their extent itself, if nothing has to be moved."""
    table = np.array([each.row for each in pending], dtype=np.int64)
    first = pending[0].source
    if all(each.payload is None and each.source is first for each in pending):
        # Positions are made small by starting at the first batch, because they are counted in 32 bits.
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
