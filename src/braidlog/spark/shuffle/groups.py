"""Rows with equal keys into one. Pure.

Everything that is aggregated here is kept in columns that are added up, or of which the least or the greatest is
kept: so rows can be brought together in any order and any number of times, before a shuffle and behind it.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError

_LONG_END = 1 << 63
_ROW = "__row"
_NEW = "__new"


class Merge(StrEnum):
    """How two values of one group become one. The values are Arrow's names."""

    SUM = "sum"
    MIN = "min"
    MAX = "max"
    ANY = "one"
    """They are equal."""


def merge_groups(rows: pa.Table, keys: Sequence[str], merges: Mapping[str, Merge]) -> pa.Table:
    """One row for each group, with the columns `keys` and those of `merges`."""
    if not rows.num_rows:
        return rows.select([*keys, *merges])
    nested = [name for name in keys if pa.types.is_nested(rows.schema.field(name).type)]
    if not nested:
        return _aggregate(rows, keys, merges)
    # Arrow does not group by nested columns, so their leaves stand for them; one of the group's rows has the key.
    rows = rows.combine_chunks()
    flat = rows.drop_columns(nested).append_column(_ROW, pa.array(np.arange(rows.num_rows, dtype=np.int64)))
    flat_keys = [name for name in keys if name not in nested]
    for name in nested:
        column = rows.column(name).chunk(0)
        for number, leaf in enumerate(_leaves(column)):
            flat = flat.append_column(f"{name}/{number}", leaf)
            flat_keys.append(f"{name}/{number}")
    merged = _aggregate(flat, flat_keys, {**merges, _ROW: Merge.MIN})
    first = merged.column(_ROW)
    columns = {name: rows.column(name).take(first) if name in nested else merged.column(name) for name in keys}
    return pa.table({**columns, **{name: merged.column(name) for name in merges}})


def merge_into(
    state: pa.Table, news: pa.Table, keys: Sequence[str], merges: Mapping[str, Merge]
) -> tuple[pa.Table, pa.Table]:
    """A state of one row per group, with `news` (one row per group, too) merged into it: all groups, and those that
    were touched."""
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
    """A state in which later rows have taken the place of earlier ones with the same key."""
    everything = pa.concat_tables([state, *changes]).combine_chunks()
    if everything.num_rows == state.num_rows:
        return state
    numbered = everything.append_column(_ROW, pa.array(np.arange(everything.num_rows, dtype=np.int64)))
    last = merge_groups(numbered, keys, {_ROW: Merge.MAX}).column(_ROW)
    return everything.take(last)


def _candidates(state: pa.Table, news: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray | None:
    """Rows of a large state that may be touched: those with a value in one of the keys that the news have, too. None:
    all of them are looked at."""
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
    wide = [name for name, merge in merges.items() if merge is Merge.SUM and _may_overflow(rows.column(name))]
    for name in wide:
        rows = _replaced(rows, name, rows.column(name).cast(pa.decimal128(38, 0)))
    # A group without any value has none, and not zero.
    some = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    wanted = [(name, merge.value, None if merge is Merge.ANY else some) for name, merge in merges.items()]
    found = rows.group_by(list(keys), use_threads=False).aggregate(wanted)
    found = found.select([*keys, *(f"{name}_{merge.value}" for name, merge in merges.items())])
    found = found.rename_columns([*keys, *merges])
    for name in wide:
        try:
            found = _replaced(found, name, found.column(name).cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise JobError(
                "a sum of whole numbers is beyond 64 bits", help="Sum decimals: cast(column as decimal(38, 0))."
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


def _leaves(column: pa.Array) -> list[pa.Array]:
    """Columns that are equal where, and only where, the nested one is."""
    if pa.types.is_struct(column.type):
        leaves = [column.is_valid()]
        for child in column.flatten():
            leaves += _leaves(child)
        return leaves
    if pa.types.is_nested(column.type):
        return [pa.array([repr(value).encode() for value in column.to_pylist()], pa.binary())]
    return [column]
