"""Spark's hash, and the partition of rows by it, computed a column at a time.

This module is pure.
"""

from collections.abc import Sequence

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.records.compiled import I32_IN, I32_OUT, I64_IN, U8_IN, Bytes, Numbers, SmallNumbers
from braidlog.spark.errors import JobError

_SEED = 42
_C1 = np.uint32(0xCC9E2D51)
_C2 = np.uint32(0x1B873593)
_LONG_DIGITS = 18
"""Spark hashes decimals with more digits as bytes."""


@numba.njit(numba.uint32(numba.uint32, numba.uint32), cache=True, nogil=True)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _mix(hashed: np.uint32, word: np.uint32) -> np.uint32:
    word = np.uint32(word * _C1)
    word = np.uint32((word << np.uint32(15)) | (word >> np.uint32(17)))
    word = np.uint32(word * _C2)
    hashed = np.uint32(hashed ^ word)
    hashed = np.uint32((hashed << np.uint32(13)) | (hashed >> np.uint32(19)))
    return np.uint32(hashed * np.uint32(5) + np.uint32(0xE6546B64))


@numba.njit(numba.int32(numba.uint32, numba.uint32), cache=True, nogil=True)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _finish(hashed: np.uint32, length: np.uint32) -> np.int32:
    hashed = np.uint32(hashed ^ length)
    hashed = np.uint32((hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    hashed = np.uint32((hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.int32(hashed ^ (hashed >> np.uint32(16)))


@numba.njit(numba.void(I32_IN, U8_IN, I32_OUT), cache=True, nogil=True)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _hash_ints(values: SmallNumbers, valid: Bytes, out: SmallNumbers) -> None:
    for row in range(len(out)):
        if valid[row]:
            out[row] = _finish(_mix(np.uint32(out[row]), np.uint32(values[row])), np.uint32(4))


@numba.njit(numba.void(I64_IN, U8_IN, I32_OUT), cache=True, nogil=True)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _hash_longs(values: Numbers, valid: Bytes, out: SmallNumbers) -> None:
    for row in range(len(out)):
        if valid[row]:
            value = np.uint64(values[row])
            hashed = _mix(np.uint32(out[row]), np.uint32(value & np.uint64(0xFFFFFFFF)))
            out[row] = _finish(_mix(hashed, np.uint32(value >> np.uint64(32))), np.uint32(8))


@numba.njit(numba.void(U8_IN, I32_IN, U8_IN, I32_OUT), cache=True, nogil=True)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _hash_bytes(data: Bytes, offsets: SmallNumbers, valid: Bytes, out: SmallNumbers) -> None:
    for row in range(len(out)):
        if not valid[row]:
            continue
        start, end = offsets[row], offsets[row + 1]
        whole_end = end - (end - start) % 4
        hashed = np.uint32(out[row])
        for position in range(start, whole_end, 4):
            word = (
                np.uint32(data[position])
                | np.uint32(data[position + 1]) << np.uint32(8)
                | np.uint32(data[position + 2]) << np.uint32(16)
                | np.uint32(data[position + 3]) << np.uint32(24)
            )
            hashed = _mix(hashed, np.uint32(word))
        for position in range(whole_end, end):
            # Spark mixes in the last bytes one by one, as signed numbers.
            hashed = _mix(hashed, np.uint32(np.int32(np.int8(data[position]))))
        out[row] = _finish(hashed, np.uint32(end - start))


def partitions_of(keys: Sequence[pa.Array], partitions: int) -> npt.NDArray[np.int32]:
    """Compute `pmod(hash(keys), partitions)` as Spark does."""
    found: npt.NDArray[np.int32] = np.mod(hash_columns(keys), np.int32(partitions)).astype(np.int32)
    return found


def hash_columns(columns: Sequence[pa.Array], seed: int = _SEED) -> npt.NDArray[np.int32]:
    """Compute `hash(columns)` as Spark does, which always uses the default seed."""
    hashed: npt.NDArray[np.int32] = np.full(len(columns[0]), seed, dtype=np.int32)
    for column in columns:
        _hash(column, hashed)
    return hashed


def check_hashable(kind: pa.DataType) -> None:
    _hash(pa.array([], kind), np.empty(0, dtype=np.int32))


def _hash(key: pa.Array, hashed: npt.NDArray[np.int32]) -> None:
    kind = key.type
    valid = key.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        _, offsets, data = key.buffers()
        bounds = (
            np.zeros(1, dtype=np.int32) if offsets is None or not offsets.size else np.frombuffer(offsets, np.int32)
        )
        held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, dtype=np.uint8)
        _hash_bytes(held, bounds[key.offset : key.offset + len(key) + 1], valid, hashed)
        return
    if pa.types.is_floating(kind):
        # Equal zeros must have equal hashes.
        numbers = key.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        if pa.types.is_float32(kind):
            _hash_ints(numbers.view(np.int32), valid, hashed)
        else:
            _hash_longs(numbers.view(np.int64), valid, hashed)
        return
    if pa.types.is_timestamp(kind):
        key = key.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind) or pa.types.is_boolean(kind):
        key = key.cast(pa.int32())
    elif pa.types.is_decimal(kind) and kind.precision <= _LONG_DIGITS:
        # A decimal's bytes begin with the low half of the unscaled number. Here the low half is the whole number.
        words = np.frombuffer(key.buffers()[1] or b"", np.int64)[2 * key.offset : 2 * (key.offset + len(key)) : 2]
        _hash_longs(np.ascontiguousarray(words), valid, hashed)
        return
    elif not pa.types.is_signed_integer(kind):
        raise JobError(f"a key cannot be of type {kind} here", help="Cast it, for example to text.")
    if key.type == pa.int64():
        _hash_longs(key.fill_null(0).to_numpy(zero_copy_only=False), valid, hashed)
    else:
        _hash_ints(key.fill_null(0).cast(pa.int32()).to_numpy(zero_copy_only=False), valid, hashed)
