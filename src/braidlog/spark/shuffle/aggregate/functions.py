"""Aggregate functions as partial columns that can be merged. Pure.

`partials` computes the partial columns from a function's input, `merge_groups` merges them, `finish` computes the
result. Results equal those of Spark's own functions: the average of integers is a double, NaN is greater than every
other number, and decimals keep their digits.
"""

import decimal
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregate.hyperloglog import ENTRY, entries_of, estimate
from braidlog.spark.shuffle.aggregate.list_columns import single_value_lists
from braidlog.spark.shuffle.aggregate.merge import Merge
from braidlog.spark.shuffle.columns.ordering import from_ordered, ordered, ordered_kind

FUNCTIONS = {
    "count": "count",
    "count_if": "count_if",
    "approx_count_distinct": "approx_count_distinct",
    "collect_list": "collect_list",
    "array_agg": "collect_list",
    "collect_set": "collect_set",
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
"""From Spark's names to ours."""
DISTINCT = {"count": "count_distinct"}
"""Functions that can also be applied to distinct values."""
_LISTS = {"count_distinct": Merge.DISTINCT, "collect_set": Merge.DISTINCT, "collect_list": Merge.ALL}

_DECIMAL_DIGITS = 38
_SUM_DIGITS_MORE = 10
"""How many more digits Spark gives to a sum of decimals than to its input."""


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One function of one input column."""

    function: str
    """One of the values of `FUNCTIONS` and `DISTINCT`."""
    input: int | None
    """The number of its input column. None: it counts rows."""
    kind: pa.DataType
    """The type of the input."""
    precision: int = 0
    """The precision of an approximation."""

    def __post_init__(self) -> None:
        if self.function not in {*FUNCTIONS.values(), *DISTINCT.values()}:
            raise JobError(f"there is no aggregate function {self.function}", help=supported())
        kind = self.kind
        if self.function in ("sum", "avg") and not _is_number(kind):
            raise JobError(f"{self.function} of {kind} is not supported", help="Cast the column to a number.")
        if self.function in ("min", "max") and (pa.types.is_nested(kind) or pa.types.is_interval(kind)):
            raise JobError(
                f"{self.function} of {kind} is not supported", help="shuffle.apply takes any function of a partition."
            )

    @property
    def merges(self) -> list[Merge]:
        """How each of its partial columns is merged."""
        if self.function in ("count", "count_if", "sum"):
            return [Merge.SUM]
        if self.function == "avg":
            return [Merge.SUM, Merge.SUM]
        if self.function == "approx_count_distinct":
            return [Merge.REGISTERS]
        if self.function in _LISTS:
            return [_LISTS[self.function]]
        return [Merge(self.function)]

    @property
    def kinds(self) -> list[pa.DataType]:
        """The types of its partial columns."""
        if self.function in ("count", "count_if"):
            return [pa.int64()]
        if self.function == "sum":
            return [_sum_kind(self.kind)]
        if self.function == "avg":
            total = _sum_kind(self.kind) if pa.types.is_decimal(self.kind) else pa.float64()
            return [total, pa.int64()]
        if self.function == "approx_count_distinct":
            return [pa.list_(ENTRY)]
        if self.function in _LISTS:
            return [pa.list_(self.kind)]
        return [ordered_kind(self.kind)]

    def partials(self, column: pa.Array | None, row_count: int) -> list[pa.Array]:
        """Compute the partial columns, with one row for each input row."""
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
        if self.function == "approx_count_distinct":
            return [single_value_lists(entries_of(column, self.precision))]
        if self.function in _LISTS:
            return [single_value_lists(column)]
        return [ordered(column)]

    def finish(self, columns: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
        """Compute the result from the partial columns."""
        if self.function in ("count", "count_if"):
            return columns[0].fill_null(0)
        if self.function == "sum":
            try:
                return columns[0].cast(kind)
            except pa.ArrowInvalid as error:
                raise JobError(f"a sum does not fit into {kind}", help="Cast the column to wider decimals.") from error
        if self.function == "avg":
            return _average(columns[0], columns[1], kind)
        if self.function == "approx_count_distinct":
            return pa.array(estimate(columns[0], self.precision))
        if self.function == "count_distinct":
            return pc.list_value_length(columns[0]).cast(kind)
        if self.function in _LISTS:
            return columns[0].cast(kind)
        return from_ordered(columns[0], kind)


def supported() -> str:
    names = sorted({*FUNCTIONS, *DISTINCT.values()})
    return f"Supported are {', '.join(names)}. shuffle.apply takes any function of a partition."


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _sum_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if not pa.types.is_decimal(kind):
        return pa.float64()
    # Arrow does not check sums of decimals for overflow, so the type must be wide enough for any sum.
    if kind.precision + _SUM_DIGITS_MORE <= _DECIMAL_DIGITS:
        return pa.decimal128(_DECIMAL_DIGITS, kind.scale)
    return pa.decimal256(76, kind.scale)


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
