"""Aggregate functions as columns that can be merged. Pure.

`partials` makes them of a function's input, `merge_groups` brings them together, `finish` makes the result. Results are
those of Spark's own functions: an average of whole numbers is one of doubles, NaN is greater than every other number,
and decimals keep their digits.
"""

import decimal
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.groups import Merge

FUNCTIONS = {
    "count": "count",
    "count_if": "count_if",
    "sum": "sum",
    "min": "min",
    "max": "max",
    "avg": "avg",
    "mean": "avg",
    "bool_and": "min",
    "every": "min",
    "bool_or": "max",
    "any": "max",
    "some": "max",
}
"""Spark's names, and what they come down to."""

_DECIMAL_DIGITS = 38
_SUM_DIGITS_MORE = 10
"""What Spark gives the sum of decimals beyond its input."""
_SIGN = np.int64(0x7FFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One function of one input column."""

    function: str
    """One of the values of `FUNCTIONS`."""
    input: int | None
    """The number of its column. None: it counts rows."""
    kind: pa.DataType
    """Of the input."""

    def __post_init__(self) -> None:
        if self.function not in FUNCTIONS.values():
            raise JobError(f"there is no aggregate function {self.function}", help=supported())
        kind = self.kind
        if self.function in ("sum", "avg") and not _is_number(kind):
            raise JobError(f"{self.function} of {kind} is not possible", help="Cast the column to a number.")
        if self.function in ("min", "max") and (pa.types.is_nested(kind) or pa.types.is_interval(kind)):
            raise JobError(
                f"{self.function} of {kind} is not possible", help="shuffle.apply takes any function of a partition."
            )

    @property
    def merges(self) -> list[Merge]:
        """Of its partial columns."""
        if self.function in ("count", "count_if", "sum"):
            return [Merge.SUM]
        if self.function == "avg":
            return [Merge.SUM, Merge.SUM]
        return [Merge(self.function)]

    @property
    def kinds(self) -> list[pa.DataType]:
        """Of its partial columns."""
        if self.function in ("count", "count_if"):
            return [pa.int64()]
        if self.function == "sum":
            return [_sum_kind(self.kind)]
        if self.function == "avg":
            total = _sum_kind(self.kind) if pa.types.is_decimal(self.kind) else pa.float64()
            return [total, pa.int64()]
        return [_compared_kind(self.kind)]

    def partials(self, column: pa.Array | None, row_count: int) -> list[pa.Array]:
        """Its partial columns, a row for each row of the input."""
        if self.function == "count":
            if column is None or not column.null_count:
                return [pa.array(np.ones(row_count, dtype=np.int64))]
            return [column.is_valid().cast(pa.int64())]
        assert column is not None
        if self.function == "count_if":
            return [column.fill_null(False).cast(pa.int64())]
        if self.function == "sum":
            return [column.cast(self.kinds[0])]
        if self.function == "avg":
            return [column.cast(self.kinds[0], safe=False), column.is_valid().cast(pa.int64())]
        return [_compared(column)]

    def finish(self, columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        """The result, of partial columns."""
        if self.function in ("count", "count_if"):
            return columns[0].fill_null(0)
        if self.function == "sum":
            try:
                return columns[0].cast(kind)
            except pa.ArrowInvalid as error:
                raise JobError(f"a sum does not fit into {kind}", help="Cast the column to wider decimals.") from error
        if self.function == "avg":
            return _average(columns[0], columns[1], kind)
        return _as_it_was(columns[0], kind)


def supported() -> str:
    return f"There are {', '.join(sorted(FUNCTIONS))}. shuffle.apply takes any function of a partition."


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _sum_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if not pa.types.is_decimal(kind):
        return pa.float64()
    # Arrow adds up decimals without looking for an overflow, so there must be room for none.
    if kind.precision + _SUM_DIGITS_MORE <= _DECIMAL_DIGITS:
        return pa.decimal128(_DECIMAL_DIGITS, kind.scale)
    return pa.decimal256(76, kind.scale)


def _compared_kind(kind: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_floating(kind) or pa.types.is_duration(kind) else kind


def _compared(column: pa.Array) -> pa.Array:
    """The same order as whole numbers, where Arrow's differs from Spark's or does not exist."""
    if pa.types.is_duration(column.type):
        return column.cast(pa.int64())
    if not pa.types.is_floating(column.type):
        return column
    # Adding zero makes one of both zeros.
    values = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = values.view(np.int64)
    ordered = np.where(np.isnan(values), _SIGN, bits ^ ((bits >> 63) & _SIGN))
    return pa.array(ordered, mask=column.is_null().to_numpy(zero_copy_only=False))


def _as_it_was(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_floating(kind):
        return column.cast(kind)
    ordered = column.fill_null(0).to_numpy(zero_copy_only=False)
    values = (ordered ^ ((ordered >> 63) & _SIGN)).view(np.float64)
    return pa.array(values, mask=column.is_null().to_numpy(zero_copy_only=False)).cast(kind)


def _average(totals: pa.Array, counts: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(kind):
        return pc.divide(totals, pc.if_else(pc.equal(counts, 0), None, counts.cast(pa.float64()))).cast(kind)
    step = decimal.Decimal(1).scaleb(-kind.scale)
    with decimal.localcontext() as context:
        context.prec = 2 * _DECIMAL_DIGITS
        found = [
            None if total is None else (total / count).quantize(step, rounding=decimal.ROUND_HALF_UP)
            for total, count in zip(totals.to_pylist(), counts.to_pylist(), strict=True)
        ]
    return pa.array(found, kind)
