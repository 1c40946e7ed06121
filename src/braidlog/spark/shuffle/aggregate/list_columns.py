"""Partial columns that are lists of collected values, merged a column at a time.

This module is pure.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.shuffle.aggregate.hyperloglog import highest_ranks
from braidlog.spark.shuffle.columns.ordering import leaves, ordered

Places = npt.NDArray[np.int64]
"""The number of the group that each value belongs to, in ascending order."""
Reduce = Callable[[Places, pa.Array], tuple[Places, pa.Array]]


def single_value_lists(column: pa.Array) -> pa.ListArray:
    """Make a list with the value of each row. A null becomes an empty list."""
    bounds = np.zeros(len(column) + 1, dtype=np.int32)
    np.cumsum(column.is_valid().to_numpy(zero_copy_only=False), out=bounds[1:])
    return pa.ListArray.from_arrays(pa.array(bounds), column.drop_null())


def merge_lists(column: pa.ListArray, rows_of_groups: pa.ListArray, reduce: Reduce | None) -> pa.ListArray:
    """Concatenate the lists of each group's rows, and apply `reduce` to the result."""
    lists = column.take(rows_of_groups.flatten())
    group_of_row = np.repeat(np.arange(len(rows_of_groups)), _lengths(rows_of_groups))
    groups: Places = np.repeat(group_of_row, _lengths(lists))
    values = lists.flatten()
    if reduce is not None:
        groups, values = reduce(groups, values)
    bounds = np.zeros(len(rows_of_groups) + 1, dtype=np.int32)
    np.cumsum(np.bincount(groups, minlength=len(rows_of_groups)), out=bounds[1:])
    return pa.ListArray.from_arrays(pa.array(bounds), values).cast(column.type)


def distinct_values(groups: Places, values: pa.Array) -> tuple[Places, pa.Array]:
    """Keep the first of equal values in each group."""
    columns = [ordered(each) for each in leaves(values)]
    names = [f"v{number}" for number in range(len(columns))]
    rows = pa.table([pa.array(groups), *columns, pa.array(np.arange(len(values)))], names=["group", *names, "row"])
    firsts = rows.group_by(["group", *names], use_threads=False).aggregate([("row", "min")])
    kept = np.sort(firsts.column("row_min").to_numpy())
    return groups[kept], values.take(pa.array(kept))


def highest_registers(groups: Places, values: pa.Array) -> tuple[Places, pa.Array]:
    """Keep the highest rank of each register of a sketch (see `hyperloglog`)."""
    kept_groups, kept = highest_ranks(groups, values.to_numpy(zero_copy_only=False))
    return kept_groups, pa.array(kept)


def _lengths(lists: pa.ListArray) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return found
