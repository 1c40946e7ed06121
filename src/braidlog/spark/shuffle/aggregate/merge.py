"""Merges rows with equal keys into one. Pure.

Partial columns are sums, minima, maxima or lists of collected values. So rows can be merged in any order and any number
of times, before a shuffle and after it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregate.list_columns import Reduce, distinct_values, highest_registers, merge_lists
from braidlog.spark.shuffle.columns.ordering import leaves

_LONG_END = 1 << 63
_ROW = "__row"
_ROWS = "__rows"
_NEW = "__new"


class Merge(StrEnum):
    """How the values of a group become one.

    The enum values are Arrow's names where Arrow does it.
    """

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    ANY = "one"
    """All values are equal."""
    ALL = "all"
    """Lists are concatenated."""
    DISTINCT = "distinct"
    """Lists are concatenated, and each value is kept once."""
    REGISTERS = "registers"
    """HyperLogLog sketches."""


_LISTS: dict[Merge, Reduce | None] = {
    Merge.ALL: None,
    Merge.DISTINCT: distinct_values,
    Merge.REGISTERS: highest_registers,
}


def merge_groups(rows: pa.Table, keys: Sequence[str], merges: Mapping[str, Merge]) -> pa.Table:
    """Merge rows into one per group, with the columns `keys` and those of `merges`."""
    if not rows.num_rows:
        return rows.select([*keys, *merges])
    nested = [name for name in keys if pa.types.is_nested(rows.schema.field(name).type)]
    if not nested:
        return _aggregate(rows, keys, merges)
    # Arrow cannot group by nested columns. Group by their leaves, and take the key from one of the group's rows.
    rows = rows.combine_chunks()
    flat = rows.drop_columns(nested).append_column(_ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    flat_keys = [name for name in keys if name not in nested]
    for name in nested:
        column = rows.column(name).chunk(0)
        for number, leaf in enumerate(leaves(column)):
            flat = flat.append_column(f"{name}/{number}", leaf)
            flat_keys.append(f"{name}/{number}")
    merged = _aggregate(flat, flat_keys, {**merges, _ROW: Merge.MIN})
    first = merged.column(_ROW)
    columns = {name: rows.column(name).take(first) if name in nested else merged.column(name) for name in keys}
    return pa.table({**columns, **{name: merged.column(name) for name in merges}})


def merge_into(
    state: pa.Table, news: pa.Table, keys: Sequence[str], merges: Mapping[str, Merge]
) -> tuple[pa.Table, pa.Table]:
    """Merge `news` into a state.

    Returns all groups, and those that changed. Both inputs have one row per group.
    """
    if not news.num_rows:
        return state, news
    if not state.num_rows:
        return news, news
    chosen = _candidates(state, news, keys)
    near = state if chosen is None else state.filter(chosen)
    flagged = pa.concat_tables([_flagged(near, False), _flagged(news, True)])
    merged = merge_groups(flagged, keys, {**merges, _NEW: Merge.MAX})
    is_new = merged.column(_NEW)
    merged = merged.drop_columns([_NEW])
    touched = merged.filter(is_new)
    everything = merged if chosen is None else pa.concat_tables([state.filter(pc.invert(chosen)), merged])
    return everything.combine_chunks(), touched.combine_chunks()


def overlay(state: pa.Table, changes: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Replace rows of a state by later rows with the same key."""
    everything = pa.concat_tables([state, *changes]).combine_chunks()
    if everything.num_rows == state.num_rows:
        return state
    numbered = everything.append_column(_ROW, pa.array(np.arange(everything.num_rows, dtype=np.int64)))
    last = merge_groups(numbered, keys, {_ROW: Merge.MAX}).column(_ROW)
    return everything.take(last)


def _candidates(state: pa.Table, news: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray | None:
    """Select the rows of a large state that may change.

    They are found by the key with the most distinct values in `news`. None: all rows may change.
    """
    if state.num_rows < 4 * news.num_rows:
        return None
    simple = [name for name in keys if not pa.types.is_nested(news.schema.field(name).type)]
    if not simple:
        return None
    telling = max(simple, key=lambda name: pc.count_distinct(news.column(name), mode="all").as_py())
    values = news.column(telling).combine_chunks()
    return pc.is_in(state.column(telling), value_set=values, skip_nulls=False)


def _flagged(rows: pa.Table, flag: bool) -> pa.Table:
    return rows.append_column(_NEW, pa.repeat(pa.scalar(flag), rows.num_rows))


def _aggregate(rows: pa.Table, keys: Sequence[str], merges: Mapping[str, Merge]) -> pa.Table:
    lists = [name for name, merge in merges.items() if merge in _LISTS]
    simple = {name: merge for name, merge in merges.items() if name not in lists}
    wide = [name for name, merge in simple.items() if merge is Merge.SUM and _may_overflow(rows.column(name))]
    for name in wide:
        rows = _replaced(rows, name, rows.column(name).cast(pa.decimal128(38, 0)))
    # The sum of a group without values is null, not zero.
    some = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    wanted = [(name, merge.value, None if merge is Merge.ANY else some) for name, merge in simple.items()]
    if lists:
        rows = rows.append_column(_ROWS, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
        wanted.append((_ROWS, "list", None))
    found = rows.group_by(list(keys), use_threads=False).aggregate(wanted)
    columns = {name: found.column(name) for name in keys}
    for name, merge in merges.items():
        if name in lists:
            of_groups = found.column(f"{_ROWS}_list").combine_chunks()
            columns[name] = merge_lists(rows.column(name).combine_chunks(), of_groups, _LISTS[merge])
        else:
            columns[name] = found.column(f"{name}_{merge.value}")
    found = pa.table(columns)
    for name in wide:
        try:
            found = _replaced(found, name, found.column(name).cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise JobError(
                "a sum of integers is beyond 64 bits", help="Sum decimals instead: cast(column as decimal(38, 0))."
            ) from error
    return found


def _replaced(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, column)


def _may_overflow(column: pa.ChunkedArray) -> bool:
    if column.type != pa.int64():
        return False
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return False
    return bool(max(-bounds["min"], bounds["max"]) * len(column) >= _LONG_END)
