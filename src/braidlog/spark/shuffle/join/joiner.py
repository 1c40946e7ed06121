"""Joins the rows of two sides with equal keys.

It runs in the tasks of `shuffle.join`, one partition at a time. The right side of a partition is held in memory. Rows
of the left side are joined to it in chunks with at least as many rows as the right side, so that building the lookup
costs no more than reading the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.columns.ordering import ordered

CHUNK_ROWS = 1 << 17
RESULT_ROWS_MAX = 1 << 16
_LEFT, _RIGHT = "left", "right"


_OTHER_NAMES = {
    "leftouter": "left",
    "rightouter": "right",
    "full": "outer",
    "fullouter": "outer",
    "leftsemi": "semi",
    "leftanti": "anti",
}


class Join(StrEnum):
    """The kind of a join. The values are Spark's names."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    OUTER = "outer"
    SEMI = "semi"
    ANTI = "anti"

    @classmethod
    def parse(cls, how: str) -> "Join":
        """Parse a name as Spark does, with or without `outer`, `left` and underscores."""
        plain = how.lower().replace("_", "")
        plain = _OTHER_NAMES.get(plain, plain)
        try:
            return cls(plain)
        except ValueError:
            raise JobError(f"{how!r} is no kind of join", help=f"Use one of {', '.join(cls)}.") from None


_PAIRS = {
    Join.INNER: "inner",
    Join.LEFT: "left outer",
    Join.RIGHT: "inner",
    Join.OUTER: "left outer",
    Join.SEMI: "left semi",
    Join.ANTI: "left anti",
}
"""Arrow's join of the left rows. Right rows without a match follow at the end."""


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One of the two DataFrames of a join."""

    schema: pa.Schema
    keys: tuple[int, ...]
    """The numbers of the columns that are keys."""

    def table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, batches[0].schema if batches else self.schema).combine_chunks()

    def numbered(self, rows: pa.Table, name: str) -> pa.Table:
        """Return the keys, ordered as in Spark, and the number of each row."""
        columns = [ordered(rows.column(key).combine_chunks()) for key in self.keys]
        numbers = pa.array(np.arange(rows.num_rows, dtype=np.int64))
        return pa.table([*columns, numbers], names=[*self.key_names, name])

    @property
    def key_names(self) -> list[str]:
        return [f"k{number}" for number in range(len(self.keys))]

    @property
    def others(self) -> list[int]:
        return [number for number in range(len(self.schema)) if number not in self.keys]


@dataclass(frozen=True, slots=True)
class Joiner:
    """Joins one partition. It travels to the tasks with Spark's plan."""

    how: Join
    left: JoinSide
    right: JoinSide
    result: pa.Schema
    """The keys, the other columns of the left side and, except for semi and anti joins, those of the right."""

    def __call__(self, left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = self.right.table(list(right))
        numbered = self.right.numbered(held, _RIGHT)
        is_met = np.zeros(held.num_rows, dtype=bool)
        for rows in self._chunks(left, max(CHUNK_ROWS, held.num_rows)):
            pairs = self.left.numbered(rows, _LEFT).join(
                numbered, self.left.key_names, join_type=_PAIRS[self.how], use_threads=False
            )
            if self.how in (Join.RIGHT, Join.OUTER):
                is_met[pairs.column(_RIGHT).drop_null().to_numpy()] = True
            for start in range(0, pairs.num_rows, RESULT_ROWS_MAX):
                yield self._result(pairs.slice(start, RESULT_ROWS_MAX), rows, held)
        if self.how in (Join.RIGHT, Join.OUTER):
            yield from self._unmet(held, np.flatnonzero(~is_met))

    def _chunks(self, batches: Iterator[pa.RecordBatch], rows_min: int) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        held_rows = 0
        for batch in batches:
            held.append(batch)
            held_rows += batch.num_rows
            if held_rows >= rows_min:
                yield self.left.table(held)
                held, held_rows = [], 0
        if held_rows:
            yield self.left.table(held)

    def _result(self, pairs: pa.Table, left: pa.Table, right: pa.Table) -> pa.RecordBatch:
        mine = left.take(pairs.column(_LEFT))
        keys = [mine.column(number) for number in self.left.keys]
        others = [mine.column(number) for number in self.left.others]
        if self.how not in (Join.SEMI, Join.ANTI):
            theirs = right.take(pairs.column(_RIGHT))
            others += [theirs.column(number) for number in self.right.others]
            if self.how is Join.RIGHT:  # equal keys may differ in the sign of a zero
                keys = [theirs.column(number) for number in self.right.keys]
        return self._batch([*keys, *others])

    def _unmet(self, right: pa.Table, numbers: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the right side without a match."""
        for start in range(0, len(numbers), RESULT_ROWS_MAX):
            rows = right.take(pa.array(numbers[start : start + RESULT_ROWS_MAX]))
            columns = [rows.column(number) for number in self.right.keys]
            columns += [pa.nulls(rows.num_rows, self.left.schema.field(number).type) for number in self.left.others]
            columns += [rows.column(number) for number in self.right.others]
            yield self._batch(columns)

    def _batch(self, columns: "list[pa.ChunkedArray | pa.Array]") -> pa.RecordBatch:
        arrays = []
        for column, field in zip(columns, self.result, strict=True):
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.result)
