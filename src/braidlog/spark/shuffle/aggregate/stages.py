"""The stages of `group_by().agg()`.

Map tasks write partial rows. Reduce tasks keep groups and their state. Besides notifications, the exchange of a stream
carries two kinds of rows with a `summary`. Every map task sends a summary of its input to partition 0. The first map
task also sends every partition its number: a task of a larger stage cannot know it otherwise, and a partition without
rows has work to do as well.
"""

import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]
from pyspark import TaskContext

from braidlog.spark.errors import DataLoss, JobError, readable_errors
from braidlog.spark.micro_batch import current_micro_batch
from braidlog.spark.shuffle.aggregate.aggregation import Aggregation, Partitioner, PreAggregation
from braidlog.spark.shuffle.aggregate.merge import merge_into, overlay
from braidlog.spark.shuffle.aggregate.state_store import (
    BatchInput,
    BatchRecord,
    StateStore,
    WarmStates,
    next_record,
    next_watermark,
    state_folder,
)
from braidlog.spark.shuffle.notification import NOTIFICATION_SCHEMA, Notification, from_arrow, to_arrow
from braidlog.spark.shuffle.tasks.placement import is_hint
from braidlog.spark.shuffle.tasks.plan import ShufflePlan
from braidlog.spark.shuffle.tasks.python_worker import PythonWorker, python_worker
from braidlog.spark.shuffle.tasks.stages import read_rows, write_rows

SUMMARY = "summary"
EXCHANGED_SCHEMA = NOTIFICATION_SCHEMA.append(pa.field(SUMMARY, pa.binary()))
OUTPUT_MODES = ("update", "append", "complete")
RESULT_ROWS_MAX = 65_536
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Summary(msgspec.Struct, array_like=True, frozen=True):
    """Summarizes the input of one map task. It lives as long as its micro-batch."""

    row_count: int
    partitions: list[int]
    event_us_max: int | None


@dataclass(frozen=True, slots=True)
class StateSettings:
    """Settings of the state of a streaming aggregation."""

    name: str
    output_mode: str
    versions_kept: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The columns of input rows: keys, inputs, and what else is known of them.

    The inputs are those of the aggregates.
    """

    keys: list[pa.Array]
    inputs: list[pa.Array]
    row_count: int
    event_us_max: int | None = None
    partitions: pa.Array | None = None


@dataclass(frozen=True, slots=True)
class AggregatingMap:
    """Turns input rows into notifications of partial rows."""

    plan: ShufflePlan
    aggregation: Aggregation
    state: StateSettings | None
    partition_of: Partitioner | None = None

    def run(self, batches: Iterable[InputBatch]) -> Iterator[pa.RecordBatch]:
        groups = PreAggregation(self.aggregation, self.partition_of)
        times: list[int] = []

        def partial_rows() -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
            for batch in batches:
                if batch.event_us_max is not None:
                    times.append(batch.event_us_max)
                yield from groups.add(batch.keys, batch.inputs, batch.row_count, batch.partitions)
            yield from groups.finish()

        touched: set[int] = set()
        for finished in write_rows(self.plan, partial_rows()):
            touched.update(each.partition for each in finished if not is_hint(each))
            yield _exchanged(to_arrow(finished))
        if self.state is not None:
            yield from self._summaries(Summary(groups.row_count, sorted(touched), max(times, default=None)))

    def _summaries(self, summary: Summary) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        told: list[tuple[int, bytes]] = []
        if summary.row_count:
            told.append((0, msgspec.msgpack.encode(summary)))
        if context is None or context.partitionId() == 0:
            told += [(partition, b"") for partition in range(self.plan.partitions)]
        if told:
            rows = to_arrow([Notification(partition, "", 0, 0, 0, 0, 0, "") for partition, _ in told])
            data = pa.array([data for _, data in told], pa.binary())
            yield pa.RecordBatch.from_arrays([*rows.columns, data], schema=EXCHANGED_SCHEMA)


@dataclass(frozen=True, slots=True)
class DataFrameMap:
    """The map side of a DataFrame.

    Its columns are the keys, the inputs, the event time (if any) and the partition.
    """

    map: AggregatingMap
    has_event_time: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.map.run(self._timed(batch) for batch in batches if batch.num_rows)

    def _timed(self, batch: pa.RecordBatch) -> InputBatch:
        columns = list(batch.columns)
        partitions = columns.pop()
        event_us_max = None
        if self.has_event_time:
            event_us_max = pc.max(columns.pop().cast(pa.int64())).as_py()
        key_count = len(self.map.aggregation.key_kinds)
        return InputBatch(columns[:key_count], columns[key_count:], batch.num_rows, event_us_max, partitions)


def _exchanged(notifications: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(notifications.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([*notifications.columns, nothing], schema=EXCHANGED_SCHEMA)


@dataclass(frozen=True, slots=True)
class AggregatingReduce:
    """Turns the notifications of one partition into results."""

    plan: ShufflePlan
    aggregation: Aggregation
    state: StateSettings | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notifications: list[Notification] = []
        summaries: list[Summary] = []
        partition: int | None = None
        for batch in batches:
            marks = batch.column(SUMMARY)
            notifications += [each for each in from_arrow(batch.filter(marks.is_null())) if not is_hint(each)]
            for told in from_arrow(batch.filter(marks.is_valid())):
                partition = told.partition
            summaries += [msgspec.msgpack.decode(data, type=Summary) for data in marks.drop_null().to_pylist() if data]
        with readable_errors("shuffle"):
            news = self._merged(notifications)
            if self.state is None:
                yield from self._results(news)
                return
            micro_batch = MicroBatch.of_this_task(self.plan, self.aggregation, self.state)
            if partition is None:
                partition = notifications[0].partition if notifications else micro_batch.partition_of_task()
            yield from self._results(micro_batch.run(partition, news, bool(notifications), summaries))

    def _merged(self, notifications: list[Notification]) -> pa.Table:
        """Merge rows as they come, so that memory grows with groups and not with rows."""
        aggregation = self.aggregation
        held: list[pa.RecordBatch] = []
        held_rows = 0
        merged = aggregation.empty()
        for batch in read_rows(self.plan, notifications):
            held.append(batch)
            held_rows += batch.num_rows
            if held_rows > max(1 << 20, 2 * merged.num_rows):
                merged = aggregation.merge([*merged.to_batches(), *held])
                held, held_rows = [], 0
        return aggregation.merge([*merged.to_batches(), *held]) if held else merged

    def _results(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        for start in range(0, rows.num_rows, RESULT_ROWS_MAX):
            yield from self.aggregation.finish(rows.slice(start, RESULT_ROWS_MAX).combine_chunks())


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch, as seen by one of its tasks."""

    worker: PythonWorker
    plan: ShufflePlan
    aggregation: Aggregation
    state: StateSettings
    states: StateStore
    number: int

    @classmethod
    def of_this_task(cls, plan: ShufflePlan, aggregation: Aggregation, state: StateSettings) -> "MicroBatch":
        query_id, number = current_micro_batch()
        worker = python_worker(plan.store_url)
        states = StateStore(
            worker.store,
            state_folder(query_id, state.name),
            aggregation.keys,
            worker.shared(WarmStates),
            versions_kept=state.versions_kept,
        )
        return cls(worker, plan, aggregation, state, states, number)

    def partition_of_task(self) -> int:
        """Return the task's partition if no map task has sent it.

        This happens where there was no map task.
        """
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        if partition >= self.plan.partitions:
            raise JobError(
                "a task does not know its partition",
                help="A micro-batch without input cannot be aggregated in a union: use a query of its own for it.",
            )
        return partition

    def run(self, partition: int, news: pa.Table, has_rows: bool, summaries: list[Summary]) -> pa.Table:
        """Update the state.

        Returns the partial rows of the groups that the micro-batch emits.
        """
        return self.worker.loop.run(self._run(partition, news, has_rows, summaries))

    async def _run(self, partition: int, news: pa.Table, has_rows: bool, summaries: list[Summary]) -> pa.Table:
        before = await self._before()
        past_us = None if before is None else before.watermark_us
        event_time = self.aggregation.event_time if self.state.output_mode != "complete" else None
        now_us = next_watermark(before, event_time.delay_us) if event_time is not None else None
        if event_time is not None and past_us is not None:
            news = news.filter(pc.invert(self.aggregation.is_over(news, past_us)))
        if not has_rows and not self._emits_without_rows(past_us, now_us) and partition != 0:
            return news
        newest = -1 if before is None else before.newest[partition]
        version = await self.states.load(partition, newest) if newest >= 0 else None
        groups = self.aggregation.empty() if version is None else version.groups
        changed = news
        if has_rows:
            everything, changed = merge_into(groups, news, self.aggregation.keys, self.aggregation.merges)
            other = await self.states.write(partition, self.number, version, changed, self._left(everything, now_us))
            if other is not None:
                changed = other.changed
                everything = overlay(groups, [changed], self.aggregation.keys)
            groups = everything
        if partition == 0:
            await self._write_batch(before, summaries, now_us)
        if self.state.output_mode == "complete":
            return groups
        if self.state.output_mode == "update":
            return changed
        return self._ended(groups, past_us, now_us)

    def _emits_without_rows(self, past_us: int | None, now_us: int | None) -> bool:
        return self.state.output_mode == "complete" or (self.state.output_mode == "append" and past_us != now_us)

    async def _before(self) -> BatchRecord | None:
        """Read the record of the micro-batch before this one."""
        if self.number == 0:
            return None
        before = await self.states.batch(self.number - 1)
        if before is None:
            raise DataLoss(
                f"the state of micro-batch {self.number - 1} is not in the store",
                help="Every micro-batch must be read completely (no limit or show), one after the other. If the"
                " store was emptied, start with a new checkpoint.",
            )
        if before.fingerprint != self.state.fingerprint:
            raise JobError(
                "the checkpoint belongs to another aggregation",
                help="Keys, functions and the number of partitions must not change. Start with a new checkpoint, or"
                " give several aggregations of one query different names: group_by(…, name=…).",
            )
        return before

    async def _write_batch(self, before: BatchRecord | None, summaries: list[Summary], now_us: int | None) -> None:
        times = [each.event_us_max for each in summaries if each.event_us_max is not None]
        brought = BatchInput(
            sum(each.row_count for each in summaries),
            frozenset(partition for each in summaries for partition in each.partitions),
            max(times, default=None),
        )
        record = next_record(
            before, self.number, brought, now_us, partitions=self.plan.partitions, fingerprint=self.state.fingerprint
        )
        await self.states.write_batch(self.number, record)

    def _left(self, groups: pa.Table, now_us: int | None) -> pa.Table:
        """Return the groups that may still change."""
        return groups if now_us is None else groups.filter(pc.invert(self.aggregation.is_over(groups, now_us)))

    def _ended(self, groups: pa.Table, past_us: int | None, now_us: int | None) -> pa.Table:
        """Return the groups that the watermark has passed since the previous micro-batch."""
        if now_us is None:
            return groups.slice(0, 0)
        ended = groups.filter(self.aggregation.is_over(groups, now_us))
        return ended if past_us is None else ended.filter(pc.invert(self.aggregation.is_over(ended, past_us)))


def check_stateful(output_mode: str, name: str, versions_kept: int) -> None:
    if output_mode not in OUTPUT_MODES:
        raise JobError(f"unknown output mode {output_mode!r}", help=f"Use one of {', '.join(OUTPUT_MODES)}.")
    if _NAME.fullmatch(name) is None:
        raise JobError(f"a state cannot be named {name!r}", help="Use 1 to 64 of the characters A-Z a-z 0-9 _ -")
    if versions_kept < 2:
        raise JobError(f"versions_kept is {versions_kept}", help="Keep the state of at least 2 micro-batches.")


def check_watermark(output_mode: str, aggregation: Aggregation) -> None:
    if output_mode == "append" and aggregation.event_time is None:
        raise JobError(
            "output mode append needs a watermark, because it emits groups that are over",
            help='Use stream.withWatermark("time", "10 minutes") and a key window("time", …), or output mode update.',
        )


def fingerprint_of(aggregation: Aggregation, partitions: int, output_mode: str) -> str:
    """Compute a fingerprint of all that a state depends on.

    It is persisted with the state: keep it stable.
    """
    functions = [
        (each.function, each.input, str(each.kind), *([each.precision] if each.precision else []))
        for each in aggregation.aggregates
    ]
    told = repr((aggregation.schema.to_string(), functions, aggregation.event_time, partitions, output_mode))
    return f"{zlib.crc32(told.encode()):08x}"
