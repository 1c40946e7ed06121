"""Kafka's default partitioner, a column at a time. Pure.

It goes by the hash of the key, or in turn without a key.
"""

import numba  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.records.compiled import I32_IN, I32_OUT, U8_IN, Bytes, SmallNumbers

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Compute the unsigned hash by which Kafka's clients choose partitions.

    The compiled loop must agree with it.
    """
    length = len(key)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        mixed = int.from_bytes(key[start : start + 4], "little") * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        value = (value * _M & _MASK) ^ mixed
    rest = key[whole:]
    if rest:
        value = (value ^ int.from_bytes(rest, "little")) * _M & _MASK
    value = (value ^ value >> 13) * _M & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of one key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


@numba.njit(numba.void(U8_IN, I32_IN, numba.int64, I32_OUT), cache=True, nogil=True)  # type: ignore[misc,untyped-decorator,unused-ignore]
def _hash_keys(data: Bytes, offsets: SmallNumbers, partition_count: int, out: SmallNumbers) -> None:
    mask = np.uint64(_MASK)
    m = np.uint64(_M)
    for row in range(len(out)):
        start = offsets[row]
        length = offsets[row + 1] - start
        value = (np.uint64(_SEED) ^ np.uint64(length)) & mask
        whole = length & ~3
        for position in range(start, start + whole, 4):
            mixed = (
                np.uint64(data[position])
                | np.uint64(data[position + 1]) << np.uint64(8)
                | np.uint64(data[position + 2]) << np.uint64(16)
                | np.uint64(data[position + 3]) << np.uint64(24)
            )
            mixed = mixed * m & mask
            mixed = (mixed ^ (mixed >> np.uint64(24))) * m & mask
            value = (value * m & mask) ^ mixed
        rest = length - whole
        if rest > 0:
            tail = np.uint64(0)
            for index in range(rest):
                tail |= np.uint64(data[start + whole + index]) << np.uint64(8 * index)
            value = (value ^ tail) * m & mask
        value = (value ^ (value >> np.uint64(13))) * m & mask
        value = value ^ (value >> np.uint64(15))
        out[row] = np.int32((value & np.uint64(0x7FFFFFFF)) % np.uint64(partition_count))


def assign_partitions(
    keys: pa.Array | None, row_count: int, partition_count: int, *, turn: int = 0
) -> tuple[SmallNumbers, int]:
    """Return the partition of each row, and of the next row without a key.

    Rows without a key go to the partitions in turn, from partition `turn` on.
    """
    if keys is None or pa.types.is_null(keys.type) or keys.null_count == row_count:
        return _in_turn(row_count, partition_count, turn), (turn + row_count) % partition_count
    if keys.type != pa.binary():
        keys = keys.cast(pa.binary())
    _, offsets, data = keys.buffers()
    chosen: SmallNumbers = np.empty(row_count, dtype=np.int32)
    _hash_keys(
        np.frombuffer(data, dtype=np.uint8) if data is not None and data.size else np.empty(0, dtype=np.uint8),
        np.frombuffer(offsets, dtype=np.int32)[keys.offset : keys.offset + row_count + 1],
        partition_count,
        chosen,
    )
    null_count = keys.null_count
    if null_count:
        keyless = np.asarray(keys.is_null())
        chosen[keyless] = _in_turn(null_count, partition_count, turn)
    return chosen, (turn + null_count) % partition_count


def _in_turn(count: int, partition_count: int, turn: int) -> SmallNumbers:
    return ((np.arange(count, dtype=np.int64) + turn) % partition_count).astype(np.int32)
