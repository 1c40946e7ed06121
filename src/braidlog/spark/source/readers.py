"""The readers of `spark.read` and `spark.readStream`, `format("braidlog")`."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from braidlog.spark.errors import DataLoss, JobError, readable_errors, warn
from braidlog.spark.link import Link, link_to
from braidlog.spark.options import ReadOptions
from braidlog.spark.source.index import LogIndex, LogState, PartitionState
from braidlog.spark.source.offsets import (
    METRICS,
    LogOffsets,
    TopicPartition,
    count_offsets,
    limit_offsets,
    offsets_behind,
)
from braidlog.spark.source.planning import LogSlice, plan_tasks

_LOSS_HELP = (
    'Keep records for longer (retention.ms), or use option("failOnDataLoss", "false") to continue without them.'
)


class LogTask(InputPartition):
    """The slices that one Spark task reads."""

    def __init__(self, slices: list[LogSlice]) -> None:
        super().__init__([(each.topic, each.partition, each.start_offset, each.end_offset) for each in slices])
        self.slices = slices


class _Reading:
    """The common part of both readers.

    It plans tasks on the driver, and reads their rows on an executor.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @property
    def _link(self) -> Link:
        # Looked up each time: this object is sent to other processes, and the link is not.
        return link_to(self._options.address)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogTask):  # Spark's stand-in for "nothing to read"
            return
        # Imported here, because the compiled decoder takes seconds to load, and the driver never needs it.
        from braidlog.spark.source.slice_reader import Fetcher, SliceReader

        target = to_arrow_schema(self._schema, timezone="UTC")
        fetcher = Fetcher(self._link, partition.slices)
        for each in partition.slices:
            reader = SliceReader(
                self._link, fetcher, each, fail_on_data_loss=self._options.fail_on_data_loss, columns=target.names
            )
            for batch in reader.batches():
                yield _as_spark_wants(batch, target)

    def _state(self) -> LogState:
        options = self._options
        index = LogIndex(self._link)
        return self._link.loop.run(index.state(options.selection, read_committed=options.read_committed))

    def _plan(
        self, state: LogState, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> list[InputPartition]:
        options = self._options
        ranges = [(each, start[each], end[each]) for each in sorted(end) if start[each] < end[each]]
        slices = self._link.loop.run(self._find(state, ranges))
        tasks = plan_tasks(
            slices,
            task_bytes_max=options.task_bytes_max,
            task_records_max=options.task_records_max,
            tasks_min=options.partitions_min,
        )
        return [LogTask(task) for task in tasks]

    async def _find(self, state: LogState, ranges: list[tuple[TopicPartition, int, int]]) -> list[LogSlice]:
        index = LogIndex(self._link)
        return await asyncio.gather(*(self._slice(index, state[each], each, start, end) for each, start, end in ranges))

    async def _slice(
        self, index: LogIndex, state: PartitionState, which: TopicPartition, start: int, end: int
    ) -> LogSlice:
        _, pieces = await index.pieces(state.partition_id, start, end)
        aborted = await index.aborted(state, start, end) if self._options.read_committed else []
        return LogSlice(*which, state.partition_id, start, end, tuple(pieces), tuple(aborted))

    def _lost(self, message: str) -> None:
        """Raise `DataLoss`, or only warn if the options say so."""
        if self._options.fail_on_data_loss:
            raise DataLoss(message, help=_LOSS_HELP)
        warn(message)


def _as_spark_wants(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Cast columns to Spark's types: microseconds, and all columns nullable."""
    arrays = [
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


class BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with readable_errors():
            options = self._options
            state = self._state()
            index = LogIndex(self._link)
            start = self._link.loop.run(index.resolve(options.starting, state, what="startingOffsets"))
            end = self._link.loop.run(index.resolve(options.ending, state, what="endingOffsets"))
            for each, known in state.items():
                name = f"{each[0]}-{each[1]}"
                if start[each] < known.start_offset:
                    self._lost(f"{name} begins at offset {known.start_offset}, and {start[each]} was asked for")
                    start[each] = known.start_offset
                if max(start[each], end[each]) > known.end_offset:
                    beyond = max(start[each], end[each])
                    self._lost(f"{name} ends at offset {known.end_offset}, and {beyond} was asked for")
                    start[each] = min(start[each], known.end_offset)
                    end[each] = min(end[each], known.end_offset)
            return self._plan(state, start, end)


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream.

    Its offsets are `LogOffsets`, and all durable records are available.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: LogOffsets | None = None
        """The end of a query with the trigger availableNow."""
        self._last_batch_s: float | None = None
        self._reached: LogOffsets | None = None
        """The end of the newest micro-batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with readable_errors():
            state = self._state()
            index = LogIndex(self._link)
            found = self._link.loop.run(index.resolve(self._options.starting, state, what="startingOffsets"))
            for each, known in state.items():
                if not known.start_offset <= found[each] <= known.end_offset:
                    self._lost(
                        f"{each[0]}-{each[1]} has offsets {known.start_offset} to {known.end_offset}, and"
                        f" {found[each]} was asked for"
                    )
                    found[each] = min(max(found[each], known.start_offset), known.end_offset)
            return LogOffsets(found, _ids(state)).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.offsets_per_trigger_max
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with readable_errors():
            self._target = _end_of(self._state())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Report the end for the stream's progress, with Spark's usual metrics.

        They are the metrics of Spark's Kafka source.

        The progress has no other place for metrics of a source in Python.
        """
        with readable_errors():
            latest = _end_of(self._state())
            behind = {} if self._reached is None else {METRICS: offsets_behind(self._reached.offsets, latest.offsets)}
            return {**latest.as_json(), **behind}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with readable_errors():
            begun = LogOffsets.from_json(start)
            state = self._state()
            self._check_known(begun, state)
            latest = self._target if self._target is not None else _end_of(state)
            # New partitions start at their beginning. An end never moves back.
            origin = {each: begun.offsets.get(each, known.start_offset) for each, known in state.items()}
            end = {each: max(offset, latest.offsets.get(each, offset)) for each, offset in origin.items()}
            if self._target is None and not self._is_enough(origin, end):
                self._reached = begun
                return start
            if isinstance(limit, ReadMaxRows):
                end = limit_offsets(origin, end, limit.max_rows)
            self._reached = LogOffsets(end, _ids(state))
            return self._reached.as_json()

    def _is_enough(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Return whether `minOffsetsPerTrigger` is reached, or its maximum delay is over."""
        if not self._options.offsets_per_trigger_min:
            return True
        now_s = self._link.clock.monotonic_s()
        if self._last_batch_s is None:
            self._last_batch_s = now_s
        waited_s = now_s - self._last_batch_s
        enough = count_offsets(start, end) >= self._options.offsets_per_trigger_min
        if enough or waited_s >= self._options.trigger_delay_s_max:
            self._last_batch_s = now_s
            return True
        return False

    def _check_known(self, begun: LogOffsets, state: LogState) -> None:
        """Check that the topics and partitions read so far still exist and are the same."""
        ids = _ids(state)
        for topic, topic_id in begun.topic_ids.items():
            if topic in ids and ids[topic] != topic_id:
                raise JobError(
                    f"topic {topic} was deleted and created again since this query last ran",
                    help="Its offsets name other records now: start with a new checkpoint.",
                )
        gone = sorted(begun.offsets.keys() - state.keys())
        if gone:
            self._lost(f"{gone[0][0]}-{gone[0][1]}, which this query has read so far, is gone")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with readable_errors():
            begun, ended = LogOffsets.from_json(start), LogOffsets.from_json(end)
            state = self._state()
            self._check_known(ended, state)
            wanted = {each: offset for each, offset in ended.offsets.items() if each in state}
            first = {each: begun.offsets.get(each, state[each].start_offset) for each in wanted}
            for each, until in list(wanted.items()):
                known = state[each]
                if first[each] < min(known.start_offset, until):
                    lost_end = min(known.start_offset, until)
                    self._lost(
                        f"records {first[each]} to {lost_end - 1} of {each[0]}-{each[1]} expired or were deleted before"
                        " they were read"
                    )
                    first[each] = lost_end
                if until > known.end_offset:
                    self._lost(f"{each[0]}-{each[1]} ends at {known.end_offset}, and {until} was read before")
                    wanted[each] = known.end_offset
                    first[each] = min(first[each], known.end_offset)
            return self._plan(state, first, wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint holds the offsets."""

    def stop(self) -> None:
        """Do nothing: the link stays open for the next query of this process."""


def _end_of(state: LogState) -> LogOffsets:
    return LogOffsets({each: known.end_offset for each, known in state.items()}, _ids(state))


def _ids(state: LogState) -> dict[str, str]:
    return {topic: known.topic_id for (topic, _), known in state.items()}
