"""Pipelines from topic to topic, with rows in Python only.

Use `shuffle.pipeline(…).group_by(…).agg(…).to(topic)`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.bootstrap import with_control_address
from braidlog.spark.errors import JobError, readable_errors
from braidlog.spark.options import read_options, write_options
from braidlog.spark.shuffle.aggregate.aggregation import Aggregation, EventTime
from braidlog.spark.shuffle.aggregate.functions import Aggregate
from braidlog.spark.shuffle.aggregate.group_by import Call, read_call
from braidlog.spark.shuffle.aggregate.stages import (
    AggregatingMap,
    AggregatingReduce,
    StateSettings,
    check_stateful,
    check_watermark,
    fingerprint_of,
)
from braidlog.spark.shuffle.aggregate.state_store import STATE_VERSIONS_KEPT
from braidlog.spark.shuffle.aggregate.windows import Windows
from braidlog.spark.shuffle.columns.carried_types import arrow_schema
from braidlog.spark.shuffle.columns.spark_hash import check_hashable
from braidlog.spark.shuffle.pipeline.fused import (
    FORMAT,
    PLAN_OPTION,
    BatchFunction,
    FusedSink,
    FusedSource,
    Partitioned,
    pickled,
    record_columns,
    record_schema,
    register,
)
from braidlog.spark.shuffle.tasks.stages import check_shuffle

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from braidlog.spark.shuffle.blob_shuffle import BlobShuffle

_ADDRESS_OPTIONS = ("braidlog.control", "braidlog.store", "kafka.bootstrap.servers")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The source of a pipeline.

    Use `BlobShuffle.pipeline`. Every call returns a new pipeline.
    """

    shuffle: "BlobShuffle"
    session: "SparkSession"
    options: Mapping[str, str]
    function: BatchFunction | None = None
    schema: "StructType | None" = None
    decoded: tuple[str, ...] = ()
    """The columns of a record that the function needs."""
    event_time: str = ""
    delay_us: int = 0

    @property
    def columns(self) -> "StructType":
        return self.schema if self.schema is not None else record_schema(record_columns())

    def map(
        self, function: BatchFunction, schema: "StructType | str", *, columns: Sequence[str] | None = None
    ) -> "Pipeline":
        """Turn records into columns with a function.

        It receives Arrow batches with `key`, `value`, `timestamp` and so on, as `format("braidlog")` has them, and
        returns batches with the columns of `schema`. `columns` are those that it needs: others are not decoded.
        """
        from pyspark.sql.types import StructType

        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        unknown = sorted({*(columns or ())} - {*record_columns()})
        if unknown:
            raise JobError(f"records have no column {unknown[0]}", help=f"They have {', '.join(record_columns())}.")
        decoded = tuple(record_columns() if columns is None else columns)
        return replace(self, function=function, schema=cast(StructType, parsed), decoded=decoded)

    def with_watermark(self, column: str, delay: str) -> "Pipeline":
        """Set a watermark as `df.withWatermark` does.

        Rows that are late by more than `delay` may be dropped.
        """
        if column not in self.columns.names or not pa.types.is_timestamp(arrow_schema(self.columns).field(column).type):
            raise JobError(f"{column} is no column of timestamps", help=f"There are {', '.join(self.columns.names)}.")
        return replace(self, event_time=column, delay_us=_microseconds(self.session, delay))

    def group_by(
        self,
        *keys: "str | Column",
        partitions: int = 64,
        output_mode: str = "update",
        name: str = "aggregation",
        versions_kept: int = STATE_VERSIONS_KEPT,
    ) -> "GroupedPipeline":
        """Group rows as `BlobShuffle.group_by` does.

        Keys are columns; one may be a `window` of a column.
        """
        check_shuffle(keys, partitions)
        check_stateful(output_mode, name, versions_kept)
        return GroupedPipeline(self, keys, partitions, output_mode, name, versions_kept)


@dataclass(frozen=True, slots=True)
class GroupedPipeline:
    pipeline: Pipeline
    keys: "tuple[str | Column, ...]"
    partitions: int
    output_mode: str
    name: str
    versions_kept: int

    def agg(self, *columns: "Column") -> "AggregatedPipeline":
        """Aggregate columns as `BlobShuffle.group_by(…).agg(…)` does."""
        pipeline = self.pipeline
        sample = pipeline.session.createDataFrame([], pipeline.columns)
        result = sample.groupBy(*self.keys).agg(*columns).schema
        calls = [read_call(sample, column) for column in columns]
        kinds = arrow_schema(pipeline.columns)
        names: list[str] = []
        key_kinds: list[pa.DataType] = []
        windows: Windows | None = None
        window_key = event_key = -1
        for key in self.keys:
            name, found = _read_key(pipeline.session, key)
            kind = _kind(kinds, name)
            if found is not None:
                if windows is not None:
                    raise JobError("there are two windows", help="Only one of the keys may be a window.")
                windows, window_key = found, len(names)
                key_kinds.append(kind)
            check_hashable(kind)
            names.append(name)
            key_kinds.append(kind)
            if name == pipeline.event_time and event_key < 0:
                event_key = len(key_kinds) - 1
        inputs = [_name_of(call) for call in calls if call.argument is not None]
        numbers = iter(range(len(inputs)))
        aggregates = tuple(
            Aggregate(call.function, None, pa.int64())
            if call.argument is None
            else Aggregate(call.function, number := next(numbers), _kind(kinds, inputs[number]), call.precision)
            for call in calls
        )
        aggregation = Aggregation(
            tuple(key_kinds),
            aggregates,
            arrow_schema(result),
            () if windows is None else (window_key,),
            EventTime(event_key, pipeline.delay_us) if event_key >= 0 else None,
        )
        return AggregatedPipeline(self, aggregation, tuple(names), windows, window_key, tuple(inputs))


@dataclass(frozen=True, slots=True)
class AggregatedPipeline:
    grouped: GroupedPipeline
    aggregation: Aggregation
    keys: tuple[str, ...]
    windows: Windows | None
    window_key: int
    inputs: tuple[str, ...]

    def to(self, topic: str, *, records: BatchFunction | None = None, **options: str) -> "FusedQuery":
        """Write the results as records of a topic.

        `records` turns Arrow batches of results into batches with `key`, `value`, and optionally `headers`, `timestamp`
        and `partition`. By default the group's key becomes the record's key, and the result becomes the value as JSON,
        together with the key unless that is bytes. `options` are those of `format("braidlog")`; the addresses are those
        of the source.
        """
        return FusedQuery(self, topic, records, options)


@dataclass(frozen=True, slots=True)
class FusedQuery:
    """A pipeline that can be run."""

    aggregated: AggregatedPipeline
    topic: str
    records: BatchFunction | None
    options: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run once over the whole topic, or from `startingOffsets` to `endingOffsets`."""
        pipeline = self.aggregated.grouped.pipeline
        source, sink = self._plan(streaming=False)
        register(pipeline.session)
        rows = pipeline.session.read.format(FORMAT).option(PLAN_OPTION, pickled(source)).load()
        pipeline.shuffle.use(pipeline.session, streaming=False)
        exchanged = rows.repartitionById(self.aggregated.grouped.partitions, "partition")
        exchanged.write.format(FORMAT).option(PLAN_OPTION, pickled(sink)).mode("append").save()

    def start(
        self, checkpoint: str, *, available_now: bool = False, interval: str = "0 seconds", name: str | None = None
    ) -> "StreamingQuery":
        """Run as a stream that writes each result once.

        `checkpoint` is Spark's checkpoint folder.
        """
        pipeline = self.aggregated.grouped.pipeline
        source, sink = self._plan(streaming=True)
        register(pipeline.session)
        rows = pipeline.session.readStream.format(FORMAT).option(PLAN_OPTION, pickled(source)).load()
        pipeline.shuffle.use(pipeline.session, streaming=True)
        exchanged = rows.repartitionById(self.aggregated.grouped.partitions, "partition")
        writer = exchanged.writeStream.format(FORMAT).option(PLAN_OPTION, pickled(sink))
        writer = writer.option("checkpointLocation", checkpoint)
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)
        return writer.queryName(name).start() if name is not None else writer.start()

    def _plan(self, *, streaming: bool) -> tuple[FusedSource, FusedSink]:
        aggregated, grouped = self.aggregated, self.aggregated.grouped
        pipeline, aggregation = grouped.pipeline, self.aggregated.aggregation
        state = None
        if streaming:
            check_watermark(grouped.output_mode, aggregation)
            fingerprint = fingerprint_of(aggregation, grouped.partitions, grouped.output_mode)
            state = StateSettings(grouped.name, grouped.output_mode, grouped.versions_kept, fingerprint)
        plan = pipeline.shuffle.plan(grouped.partitions)
        address = {name: value for name, value in pipeline.options.items() if name.lower() in _ADDRESS_OPTIONS}
        needed = {*aggregated.keys, *aggregated.inputs, *([pipeline.event_time] if pipeline.event_time else [])}
        if pipeline.function is not None:
            needed = {*pipeline.decoded}
        with readable_errors():
            source = FusedSource(
                options=with_control_address(read_options(pipeline.options, streaming=streaming)),
                columns=tuple(name for name in record_columns() if name in needed),
                function=pipeline.function,
                keys=aggregated.keys,
                windows=aggregated.windows,
                window_key=aggregated.window_key,
                inputs=aggregated.inputs,
                event_time=pipeline.event_time if streaming else "",
                map=AggregatingMap(plan, aggregation, state, Partitioned(grouped.partitions)),
            )
            sink = FusedSink(
                with_control_address(write_options({**address, **self.options, "topic": self.topic})),
                AggregatingReduce(plan, aggregation, state),
                self.records or JsonRecords(len(grouped.keys)),
            )
        return source, sink


@dataclass(frozen=True, slots=True)
class JsonRecords:
    """Makes records of results.

    The key stays as it is if it is text or bytes, and else becomes JSON. The value is JSON. The value repeats the
    key, except for bytes, which JSON does not have.
    """

    key_count: int

    def __call__(self, results: pa.RecordBatch) -> pa.RecordBatch:
        encoder = msgspec.json.Encoder()
        first = results.column(0)
        is_bytes = pa.types.is_binary(first.type)
        if self.key_count == 1 and (is_bytes or pa.types.is_string(first.type)):
            keys = first.cast(pa.binary())
            told = results.select(list(range(1, results.num_columns))) if is_bytes else results
        else:
            chosen = results.select(list(range(self.key_count))).to_pylist()
            keys = pa.array([encoder.encode(list(row.values())) for row in chosen], pa.binary())
            told = results
        values = [encoder.encode(row) for row in told.to_pylist()]
        return pa.record_batch({"key": keys, "value": pa.array(values, pa.binary())})


def _kind(kinds: pa.Schema, name: str) -> pa.DataType:
    if name not in kinds.names:
        raise JobError(f"there is no column {name}", help=f"There are {', '.join(kinds.names)}.")
    return kinds.field(name).type


def _read_key(session: "SparkSession", key: "str | Column") -> tuple[str, Windows | None]:
    if isinstance(key, str):
        return key, None
    node = _node(key)
    if node.getClass().getSimpleName() == "UnresolvedFunction" and node.functionName() == "window":
        arguments = [node.arguments().apply(number) for number in range(node.arguments().size())]
        length, slide, offset = (_microseconds(session, each.value()) for each in (arguments[1:] + arguments[1:2])[:3])
        if len(arguments) < 3:
            slide = length
        return _attribute(arguments[0], key), Windows(length, slide, offset if len(arguments) == 4 else 0)
    return _attribute(node, key), None


def _name_of(call: Call) -> str:
    assert call.argument is not None
    return _attribute(_node(call.argument), call.argument)


def _node(column: "Column") -> Any:
    node = cast(Any, column)._jc.node()
    while node.getClass().getSimpleName() == "Alias":
        node = node.child()
    return node


def _attribute(node: Any, column: "Column") -> str:
    if node.getClass().getSimpleName() != "UnresolvedAttribute":
        raise JobError(f"{column} is not a column", help="Compute it in map(function, schema).")
    parts = node.nameParts()
    return ".".join(parts.apply(number) for number in range(parts.size()))


def _microseconds(session: "SparkSession", text: str) -> int:
    """Parse a duration as Spark does."""
    from py4j.java_gateway import get_field  # type: ignore[import-untyped,unused-ignore]

    jvm: Any = session._jvm
    parsed = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval(
        jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
    )
    months, days, microseconds = (get_field(parsed, name) for name in ("months", "days", "microseconds"))
    if months:
        raise JobError(f"{text} has no fixed length", help="Use days, hours, minutes or seconds.")
    return int(days * 86_400_000_000 + microseconds)
