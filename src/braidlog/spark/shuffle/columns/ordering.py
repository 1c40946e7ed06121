"""Orders columns as Spark does, where Arrow would do it differently or not at all.

This module is pure.
"""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def ordered_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type that `ordered` returns for a column of this type."""
    return pa.int64() if pa.types.is_floating(kind) or pa.types.is_duration(kind) else kind


def ordered(column: pa.Array) -> pa.Array:
    """Map floats to integers that have Spark's order.

    NaN is greater than every other number and equals itself, and both zeros are equal.
    """
    if pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    if not pa.types.is_floating(column.type):
        return column
    # Adding zero turns -0.0 into 0.0.
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = values.view(np.int64)
    ordered = np.where(np.isnan(values), _SIGN, bits ^ ((bits >> 63) & _SIGN))
    return pa.array(ordered, mask=column.is_null().to_numpy(zero_copy_only=False))


def from_ordered(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Undo `ordered`."""
    if not pa.types.is_floating(kind):
        return column.cast(kind)
    ordered = column.fill_null(0).to_numpy(zero_copy_only=False)
    values = (ordered ^ ((ordered >> 63) & _SIGN)).view(np.float64)
    return pa.array(values, mask=column.is_null().to_numpy(zero_copy_only=False)).cast(kind)


def leaves(column: pa.Array) -> list[pa.Array]:
    """Flatten a nested column into columns that are equal exactly where it is equal."""
    if pa.types.is_struct(column.type):
        found = [column.is_valid()]
        for child in column.flatten():
            found += leaves(child)
        return found
    if pa.types.is_nested(column.type):
        return [pa.array([repr(value).encode() for value in column.to_pylist()], pa.binary())]
    return [column]
