"""Checks the records of a batch against its header, before anything is stored.

Apache Kafka refuses the same batches, with two exceptions: offset deltas that do not count up from 0 and, in compressed
batches, wrong lengths of records. Kafka stores those, and consumers stop at them. Records are checked in plain Python
until `load_compiled` was called, which needs numba; then batches of more than a few records take a fraction of the
time.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from braidlog.records.batch import CODEC_MASK, HEADER_BYTES, RECORD_BYTES_MIN, BatchHeader
from braidlog.records.errors import InvalidBatch
from braidlog.records.problems import Problem, invalid
from braidlog.records.varint import read_uvarint, read_varint

LISTED_MAX = 10_000
"""The most bad records to name one by one. Kafka names all; a batch may have millions."""
COMPILED_FROM = 6
"""With fewer records, calling the compiled check takes longer than the plain one."""
_COPIED_BYTES_MAX = 2 * 1024 * 1024
_RECORD_LENGTH_MIN = 2 * (RECORD_BYTES_MIN - 1)
"""Zigzag."""
_NULL = 1
"""A length of -1."""
_NO_TIMESTAMP = -1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_new = tuple.__new__


class Times(NamedTuple):
    """The bounds of records' timestamps.

    A record without a timestamp (-1) is within any bounds.
    """

    ms_min: int = _INT64_MIN
    ms_max: int = _INT64_MAX


class Checked(NamedTuple):
    """The records of a batch whose structure is right."""

    timestamp_ms_max: int
    """-1 if no record has a time."""
    keyless_count: int
    keyless: Sequence[int]
    """The first records without a key, by their place in the batch."""
    misdated_count: int
    misdated: Sequence[int]
    """The first records whose time is out of bounds."""


def _clean(timestamp_ms_max: int) -> Checked:
    # This takes half the time of a named tuple's own constructor.
    return _new(Checked, (timestamp_ms_max, 0, (), 0, ()))


class _Compiled(NamedTuple):
    check_batch: Callable[..., tuple[int, int, int, int, int]]
    numpy: Any


class _Loaded:
    compiled: _Compiled | None = None


def load_compiled() -> bool:
    """Check at compiled speed from now on. Returns False if numba is not installed.

    It takes a second, and longer the first time after an installation. Any thread may call it."""
    try:
        import numpy

        from braidlog.records.check_kernel import check_batch
    except ImportError:
        return False
    _Loaded.compiled = _Compiled(check_batch, numpy)
    return True


def is_compiled() -> bool:
    return _Loaded.compiled is not None


def check_records(payload: memoryview, header: BatchHeader, times: Times) -> Checked:
    """Check every record of a batch.

    `payload` is the records' bytes, decompressed. Raises `InvalidBatch`.
    """
    if header.record_count * RECORD_BYTES_MIN > len(payload):
        raise invalid(Problem.RECORD_COUNT, f"{header.record_count} records in {len(payload)} bytes")
    loaded = _Loaded.compiled
    if loaded is None or header.record_count < COMPILED_FROM:
        return _check_plain(payload, header, times)
    return _check_compiled(loaded, payload, header, times)


def is_plain_record(batch: memoryview, header: BatchHeader, times: Times, *, needs_key: bool) -> bool:
    """Whether a batch is uncompressed and holds one small, valid record.

    The record must have no headers.

    False proves nothing. Most small requests are like this, and they come by the hundred thousand.
    """
    try:
        start = bytes(batch[HEADER_BYTES : HEADER_BYTES + 8])
        length, more = start[0], 1
        if length >= 0x80:
            length = length & 0x7F | start[1] << 7
            more = 2
        # One byte each: attributes, a zero timestamp delta, a zero offset delta, the length of the key.
        if (
            header[5] & CODEC_MASK
            or header[12] != 1
            or length & 1
            or length >> 14
            or start[more + 1]
            or start[more + 2]
        ):
            return False
        key_length = start[more + 3]
        if key_length & 0x81:
            if key_length != _NULL or needs_key:
                return False
            key_length = 0
        end = HEADER_BYTES + more + (length >> 1)
        if end != len(batch):
            return False
        position = HEADER_BYTES + more + 4 + (key_length >> 1)
        value_length = batch[position]
        if value_length < 0x80:
            position += 1
        else:
            value_length = value_length & 0x7F | batch[position + 1] << 7
            position += 2
        if value_length & 1 or value_length >> 14 or position + (value_length >> 1) != end - 1 or batch[end - 1]:
            return False
    except IndexError:
        return False
    base_ms = header[7]
    return base_ms == header[8] and times[0] <= base_ms <= times[1]


def _bad_record(problem: int, index: int) -> InvalidBatch:
    return invalid(problem, f"record {index} of its batch")


def _check_compiled(loaded: _Compiled, payload: memoryview, header: BatchHeader, times: Times) -> Checked:
    check_batch, numpy = loaded
    data = numpy.frombuffer(payload, dtype=numpy.uint8)
    nothing = numpy.empty(0, dtype=numpy.int32)
    count, base_ms = header.record_count, header.timestamp_ms_base
    times = Times(max(_INT64_MIN, times.ms_min), min(_INT64_MAX, times.ms_max))
    problem, at, null_keys, wrong_times, highest_ms = check_batch(data, 0, count, base_ms, *times, nothing, nothing)
    if problem:
        raise _bad_record(problem, at)
    if not null_keys and not wrong_times:
        return _clean(highest_ms)
    keyless = numpy.empty(min(null_keys, LISTED_MAX), dtype=numpy.int32)
    misdated = numpy.empty(min(wrong_times, LISTED_MAX), dtype=numpy.int32)
    check_batch(data, 0, count, base_ms, *times, keyless, misdated)
    return Checked(highest_ms, null_keys, keyless.tolist(), wrong_times, misdated.tolist())


def _check_plain(payload: memoryview, header: BatchHeader, times: Times) -> Checked:
    """Check every record in plain Python.

    Numbers of one or two bytes are decoded inline: a call for each would take longer than all the rest."""
    size = len(payload)
    data = bytes(payload) if size <= _COPIED_BYTES_MAX else payload  # indexing it takes half the time
    base_ms, (ms_min, ms_max) = header.timestamp_ms_base, times
    highest_ms = _NO_TIMESTAMP
    position = index = 0
    keyless: list[int] = []
    misdated: list[int] = []
    try:
        for index in range(header.record_count):
            number = data[position]
            if number < 0x80:
                position += 1
            elif (more := data[position + 1]) < 0x80:
                number = number & 0x7F | more << 7
                position += 2
            else:
                number, position = read_uvarint(data, position)
            end = position + (number >> 1)
            if number & 1 or number < _RECORD_LENGTH_MIN or end > size:
                raise _bad_record(Problem.RECORD_LENGTH, index)
            number = data[position + 1]
            if number < 0x80:
                position += 2
            elif (more := data[position + 2]) < 0x80:
                number = number & 0x7F | more << 7
                position += 3
            else:
                number, position = read_uvarint(data, position + 1)
            timestamp_ms = base_ms + ((number >> 1) ^ -(number & 1))
            number = data[position]
            if number < 0x80:
                position += 1
            elif (more := data[position + 1]) < 0x80:
                number = number & 0x7F | more << 7
                position += 2
            else:
                number, position = read_uvarint(data, position)
            if number != index << 1:
                raise _bad_record(Problem.OFFSET_DELTA, index)
            number = data[position]
            if number < 0x80:
                position += 1
            else:
                number, position = read_uvarint(data, position)
            if number & 1:
                keyless.append(index)
            else:
                position += number >> 1
                if position >= end:
                    raise _bad_record(Problem.FIELD_LENGTH, index)
            number = data[position]
            if number < 0x80:
                position += 1
            elif (more := data[position + 1]) < 0x80:
                number = number & 0x7F | more << 7
                position += 2
            else:
                number, position = read_uvarint(data, position)
            if not number & 1:
                position += number >> 1
            if position + 1 != end or data[position]:
                _check_headers(data, position, end, index)
            position = end
            if timestamp_ms > highest_ms:  # noqa: PLR1730 - a call per record would be felt
                highest_ms = timestamp_ms
            if not ms_min <= timestamp_ms <= ms_max and timestamp_ms != _NO_TIMESTAMP:
                if not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
                    raise _bad_record(Problem.TIMESTAMP, index)
                misdated.append(index)
    except IndexError:
        raise _bad_record(Problem.CUT_OFF, index) from None
    if position != size:
        raise _bad_record(Problem.BYTES_BEHIND, header.record_count)
    if not keyless and not misdated:
        return _clean(highest_ms)
    return Checked(highest_ms, len(keyless), keyless[:LISTED_MAX], len(misdated), misdated[:LISTED_MAX])


def _check_headers(data: bytes | memoryview, position: int, end: int, index: int) -> None:
    if position >= end:
        raise _bad_record(Problem.FIELD_LENGTH, index)
    count, position = read_varint(data, position)
    if not 0 <= count <= end - position:
        raise _bad_record(Problem.HEADER_COUNT, index)
    for _ in range(count):
        length, position = read_varint(data, position)
        if length < 0:
            raise _bad_record(Problem.HEADER_NAME, index)
        length, position = read_varint(data, position + length)
        position += max(length, 0)
        if position > end:
            raise _bad_record(Problem.FIELD_LENGTH, index)
    if position != end:
        raise _bad_record(Problem.FIELD_LENGTH, index)
