"""HyperLogLog: estimates the number of distinct values, for many groups at once.

This module is pure.

The first bits of a value's hash name a register. The rank of the value is one more than the number of zeros that the
rest begins with. A register keeps its highest rank. A sketch is a list of the registers that have a rank, each encoded
with its rank as one number. So a group with few values takes a few bytes, and sketches are merged like any list. The
estimate is that of Ertl (2017, "New cardinality estimation algorithms for HyperLogLog sketches"), which needs no tables
and holds for any number of values.
"""

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.columns.ordering import leaves, ordered
from braidlog.spark.shuffle.columns.spark_hash import hash_columns

ENTRY = pa.uint32()
"""A register and its rank. Persisted in states: keep stable."""
PRECISIONS = range(4, 25)

_HASH_BITS = 64
_RANK_BITS = 6
_RANK_MASK = np.uint32((1 << _RANK_BITS) - 1)
_SEEDS = (42, 0x5F356495)
_LONG_DIGITS = 18
_ALPHA = 1 / (2 * math.log(2))


def precision_of(relative_error: float) -> int:
    """Return the precision for a standard deviation, as Spark chooses it.

    The precision is the base-two logarithm of the number of registers.
    """
    if not 0 < relative_error < 1:
        raise JobError(f"a relative error of {relative_error} is not between 0 and 1", help="0.05 is the default.")
    precision = max(PRECISIONS.start, math.ceil(2 * math.log2(1.106 / relative_error)))
    if precision not in PRECISIONS:
        raise JobError(f"a relative error of {relative_error} needs too much memory", help="count_distinct is exact.")
    return precision


def entries_of(column: pa.Array, precision: int) -> pa.Array:
    """Compute the entry of each value. A null has none."""
    columns = [_hashable(ordered(each)) for each in leaves(column)]
    high, low = (hash_columns(columns, seed).view(np.uint32).astype(np.uint64) for seed in _SEEDS)
    hashed = (high << np.uint64(32)) | low
    registers = hashed >> np.uint64(_HASH_BITS - precision)
    # A one behind the last bit ends the run of zeros of a rest without any one.
    rest = (hashed << np.uint64(precision)) | np.uint64(1 << (precision - 1))
    ranks = _leading_zeros(rest) + 1
    entries = (registers.astype(np.uint32) << np.uint32(_RANK_BITS)) | ranks.astype(np.uint32)
    return pa.array(entries, ENTRY, mask=column.is_null().to_numpy(zero_copy_only=False))


def _hashable(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_decimal(kind) and kind.precision > _LONG_DIGITS:
        return column.cast(pa.string())
    return column


def _leading_zeros(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Count the leading zeros of non-zero numbers.

    A float holds only one half exactly, so the halves are handled separately.
    """
    high, low = (values >> np.uint64(32)).astype(np.float64), (values & np.uint64(0xFFFFFFFF)).astype(np.float64)
    return np.where(high > 0, 32 - np.frexp(high)[1], 64 - np.frexp(low)[1]).astype(np.int64)


def highest_ranks(
    groups: npt.NDArray[np.int64], entries: npt.NDArray[np.uint32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Keep the highest entry of each register of each group, in order."""
    order = np.lexsort((entries, groups))
    groups, entries = groups[order], entries[order]
    registers = entries >> np.uint32(_RANK_BITS)
    is_last = np.ones(len(entries), dtype=bool)
    is_last[:-1] = (groups[1:] != groups[:-1]) | (registers[1:] != registers[:-1])
    return groups[is_last], entries[is_last]


def estimate(sketches: pa.ListArray, precision: int) -> npt.NDArray[np.int64]:
    """Estimate the number of distinct values that each sketch has seen."""
    register_count, rank_max = 1 << precision, _HASH_BITS - precision
    lengths = np.diff(sketches.offsets.to_numpy())
    groups = np.repeat(np.arange(len(sketches)), lengths)
    ranks = (sketches.flatten().to_numpy() & _RANK_MASK).astype(np.int64)
    counts = np.bincount(groups * (rank_max + 2) + ranks, minlength=len(sketches) * (rank_max + 2))
    counts = counts.reshape(len(sketches), rank_max + 2).astype(np.float64)
    counts[:, 0] = register_count - lengths
    total = register_count * _tau(1 - counts[:, rank_max + 1] / register_count)
    for rank in range(rank_max, 0, -1):
        total = 0.5 * (total + counts[:, rank])
    with np.errstate(divide="ignore"):
        total += register_count * _sigma(counts[:, 0] / register_count)
        found = _ALPHA * register_count * register_count / total
    rounded: npt.NDArray[np.int64] = np.rint(found).astype(np.int64)
    return rounded


def _sigma(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the contribution of registers without a rank."""
    with np.errstate(over="ignore", invalid="ignore"):
        power, weight, total = x.copy(), 1.0, x.copy()
        for _ in range(64):
            power = power * power
            total = total + power * weight
            weight += weight
    return np.where(x == 1.0, np.inf, total)


def _tau(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Compute the contribution of registers with the highest rank."""
    root, weight, total = x.copy(), 1.0, 1 - x
    for _ in range(64):
        root = np.sqrt(root)
        weight *= 0.5
        total = total - (1 - root) ** 2 * weight
    return np.where((x == 0.0) | (x == 1.0), 0.0, total / 3)
