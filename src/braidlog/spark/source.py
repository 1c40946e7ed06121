"""`spark.read` and `spark.readStream` with `format("braidlog")`."""

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

from braidlog.spark.errors import DataLoss, JobError, told_to_people, warn
from braidlog.spark.index import LogIndex, LogState, PartitionState
from braidlog.spark.link import Link, link_to
from braidlog.spark.offsets import LogOffsets, TopicPartition, count_offsets, limit_offsets
from braidlog.spark.options import ReadOptions
from braidlog.spark.planning import LogSlice, plan_tasks

_LOSS_HELP = 'Keep records for longer (retention.ms), or option("failOnDataLoss", "false") to go on without them.'


class LogTask(InputPartition):
    """What one Spark task reads."""

    def __init__(self, slices: list[LogSlice]) -> None:
        super().__init__([(each.topic, each.partition, each.start_offset, each.end_offset) for each in slices])
        self.slices = slices


class _Reading:
    """What batch and stream share: from offsets to tasks on the driver, from a task to rows on an executor."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @property
    def _link(self) -> Link:
        # Looked up each time: this object travels between processes, and the link does not.
        return link_to(self._options.place)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogTask):  # Spark's stand-in for "nothing to read"
            return
        # Here, because the compiled decoder takes seconds to load, and the driver never needs it.
        from braidlog.spark.reading import Fetcher, SliceReader

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
        return self._link.run(index.state(options.selection, read_committed=options.read_committed))

    def _plan(
        self, state: LogState, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> list[InputPartition]:
        options = self._options
        ranges = [(each, start[each], end[each]) for each in sorted(end) if start[each] < end[each]]
        slices = self._link.run(self._find(state, ranges))
        tasks = plan_tasks(slices, task_bytes_max=options.task_bytes_max, tasks_min=options.partitions_min)
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
        """Fail, or say so and go on."""
        if self._options.fail_on_data_loss:
            raise DataLoss(message, help=_LOSS_HELP)
        warn(message)


def _as_spark_wants(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The same columns in Spark's types: microseconds, and nothing declared as never null."""
    arrays = [
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


class BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        with told_to_people():
            options = self._options
            state = self._state()
            index = LogIndex(self._link)
            start = self._link.run(index.resolve(options.starting, state, what="startingOffsets"))
            end = self._link.run(index.resolve(options.ending, state, what="endingOffsets"))
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
    """Offsets are those of `LogOffsets`. What is available is what the control plane says is durable."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: LogOffsets | None = None
        """Where a query that takes what is available now must end."""
        self._last_batch_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with told_to_people():
            state = self._state()
            index = LogIndex(self._link)
            found = self._link.run(index.resolve(self._options.starting, state, what="startingOffsets"))
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
        with told_to_people():
            self._target = _end_of(self._state())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with told_to_people():
            return _end_of(self._state()).as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with told_to_people():
            begun = LogOffsets.from_json(start)
            state = self._state()
            self._check_known(begun, state)
            latest = self._target if self._target is not None else _end_of(state)
            # Partitions that are new begin at their beginning. Nothing ever goes back.
            origin = {each: begun.offsets.get(each, known.start_offset) for each, known in state.items()}
            end = {each: max(offset, latest.offsets.get(each, offset)) for each, offset in origin.items()}
            if self._target is None and not self._is_enough(origin, end):
                return start
            if isinstance(limit, ReadMaxRows):
                end = limit_offsets(origin, end, limit.max_rows)
            return LogOffsets(end, _ids(state)).as_json()

    def _is_enough(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """With `minOffsetsPerTrigger`: whether so many have come, or the wait for them is over."""
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
        """Whether what was read so far is still part of the same log."""
        ids = _ids(state)
        for topic, topic_id in begun.topic_ids.items():
            if topic in ids and ids[topic] != topic_id:
                raise JobError(
                    f"topic {topic} was deleted and created again since this query last ran",
                    help="Its offsets mean other records now: start with a new checkpoint.",
                )
        gone = sorted(begun.offsets.keys() - state.keys())
        if gone:
            self._lost(f"{gone[0][0]}-{gone[0][1]} is gone, which this query has read so far")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with told_to_people():
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
        """Nothing is kept for anybody: the checkpoint knows."""

    def stop(self) -> None:
        """The link stays for the next query of this process."""


def _end_of(state: LogState) -> LogOffsets:
    return LogOffsets({each: known.end_offset for each, known in state.items()}, _ids(state))


def _ids(state: LogState) -> dict[str, str]:
    return {topic: known.topic_id for (topic, _), known in state.items()}
