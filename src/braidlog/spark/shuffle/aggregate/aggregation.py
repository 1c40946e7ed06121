"""An aggregation by groups: input rows, partial rows, results. Pure.

Partial rows have the group's keys, `k0`, `k1`, …, and the partial columns of all aggregates, `p0`, `p1`, …. A window is
two keys, its start and its end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.shuffle.aggregate.functions import Aggregate
from braidlog.spark.shuffle.aggregate.merge import Merge, merge_groups

HELD_BYTES_MAX = 32 * 1024 * 1024
"""Partial rows that a map task holds back, because more rows of the same groups may come."""
MERGED_ROWS = 65_536
"""How many rows are merged at a time."""
REDUCES_ENOUGH = 0.7
"""If merging leaves more than this share of the rows, merging and holding back does not pay."""
TRIES_AGAIN_AFTER = 7
"""How many times rows then go out unmerged before merging is tried again."""
PARTITION = "partition"

Partitioner: TypeAlias = Callable[[Sequence[pa.Array]], npt.NDArray[np.int32]]
"""Computes the partition of each row from its keys."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """The key that says when a group is over: when the watermark has passed it.

    The fingerprint of persisted states contains the repr of this class: keep its name and fields stable.
    """

    key: int
    """The number of the key, which is the end of a window or an instant."""
    delay_us: int


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Describes an aggregation. It travels to the tasks with Spark's plan."""

    key_kinds: tuple[pa.DataType, ...]
    aggregates: tuple[Aggregate, ...]
    result: pa.Schema
    """The keys, in which a window is one struct, and the results of the aggregates."""
    windows: tuple[int, ...] = ()
    """The numbers of the keys that are the start of a window. The next key is its end."""
    event_time: EventTime | None = None

    @property
    def keys(self) -> list[str]:
        return [f"k{number}" for number in range(len(self.key_kinds))]

    @property
    def merges(self) -> dict[str, Merge]:
        merges = [merge for each in self.aggregates for merge in each.merges]
        return {f"p{number}": merge for number, merge in enumerate(merges)}

    @property
    def schema(self) -> pa.Schema:
        """The schema of partial rows."""
        kinds = [kind for each in self.aggregates for kind in each.kinds]
        names = [*self.keys, *self.merges]
        return pa.schema(list(zip(names, [*self.key_kinds, *kinds], strict=True)))

    def partials(self, keys: Sequence[pa.Array], inputs: Sequence[pa.Array], row_count: int) -> list[pa.Array]:
        found = list(keys)
        for each in self.aggregates:
            found += each.partials(None if each.input is None else inputs[each.input], row_count)
        return found

    def merge(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Merge partial rows into one for each group."""
        return merge_groups(pa.Table.from_batches(batches, self.schema), self.keys, self.merges)

    def empty(self) -> pa.Table:
        return self.schema.empty_table()

    def is_over(self, rows: pa.Table, watermark_us: int) -> pa.ChunkedArray:
        """Return which groups the watermark has passed.

        It never passes a group without a time.
        """
        assert self.event_time is not None
        ends = rows.column(f"k{self.event_time.key}").cast(pa.int64())
        return pc.less_equal(ends, watermark_us).fill_null(False)

    def finish(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        """Compute the results from partial rows."""
        for batch in rows.to_batches():
            if batch.num_rows:
                yield self._finished(batch)

    def _finished(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        number = 0
        while number < len(self.key_kinds):
            field = self.result.field(len(arrays))
            if number in self.windows:
                bounds = [batch.column(number + each).cast(field.type.field(each).type) for each in (0, 1)]
                arrays.append(pa.StructArray.from_arrays(bounds, fields=list(field.type)))
                number += 2
            else:
                column = batch.column(number)
                arrays.append(column if column.type == field.type else column.cast(field.type))
                number += 1
        for each in self.aggregates:
            end = number + len(each.kinds)
            arrays.append(each.finish(batch.columns[number:end], self.result.field(len(arrays)).type))
            number = end
        return pa.RecordBatch.from_arrays(arrays, schema=self.result)


class PreAggregation:
    """The map side: makes few partial rows, with the partition of each."""

    def __init__(self, aggregation: Aggregation, partition_of: Partitioner | None = None) -> None:
        """`partition_of` computes partitions, unless the rows come with theirs."""
        self._aggregation = aggregation
        self._partition_of = partition_of
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._unmerged = 0
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self.row_count = 0

    def add(
        self, keys: Sequence[pa.Array], inputs: Sequence[pa.Array], row_count: int, partitions: pa.Array | None = None
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        """Add rows. Yields partial rows for which there is no more room."""
        if not row_count:
            return
        self.row_count += row_count
        aggregation = self._aggregation
        rows = pa.Table.from_arrays(aggregation.partials(keys, inputs, row_count), schema=aggregation.schema)
        if partitions is not None:
            rows = rows.append_column(PARTITION, partitions)
        self._waiting.append(rows)
        self._waiting_rows += row_count
        if self._waiting_rows >= MERGED_ROWS:
            yield from self._take_waiting()

    def _take_waiting(self) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        if self._unmerged:
            self._unmerged -= 1
            yield from self._out(rows)
            return
        merged = self._merged(rows)
        if merged.num_rows > REDUCES_ENOUGH * rows.num_rows:
            self._unmerged = TRIES_AGAIN_AFTER
            yield from self._out(merged)
            return
        self._held.append(merged)
        self._held_bytes += merged.nbytes
        if self._held_bytes > HELD_BYTES_MAX:
            self._held = [self._merged(pa.concat_tables(self._held))]
            self._held_bytes = self._held[0].nbytes
            if self._held_bytes > HELD_BYTES_MAX // 2:
                yield from self._take_held()

    def _take_held(self) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        if self._held:
            held = self._held[0] if len(self._held) == 1 else self._merged(pa.concat_tables(self._held))
            self._held, self._held_bytes = [], 0
            yield from self._out(held)

    def finish(self) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        yield from self._take_waiting()
        yield from self._take_held()

    def _merged(self, rows: pa.Table) -> pa.Table:
        merges = self._aggregation.merges
        if self._partition_of is None:
            merges[PARTITION] = Merge.ANY
        return merge_groups(rows, self._aggregation.keys, merges)

    def _out(self, rows: pa.Table) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        for batch in rows.combine_chunks().to_batches():
            if self._partition_of is not None:
                yield batch, self._partition_of(batch.columns[: len(self._aggregation.key_kinds)])
            else:
                last = batch.num_columns - 1
                chosen = batch.column(last).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
                yield batch.select(list(range(last))), chosen
