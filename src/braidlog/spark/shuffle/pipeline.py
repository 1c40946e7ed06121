"""`shuffle.pipeline(…).group_by(…).agg(…).to(topic)`: from topic to topic, with rows in Python alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError, told_to_people
from braidlog.spark.options import read_options, write_options
from braidlog.spark.shuffle.aggregates import Aggregate
from braidlog.spark.shuffle.aggregating import (
    AggregatingMap,
    AggregatingReduce,
    Statefulness,
    check_stateful,
    check_watermark,
    fingerprint_of,
)
from braidlog.spark.shuffle.aggregation import Aggregation, EventTime
from braidlog.spark.shuffle.fused import (
    FORMAT,
    PLAN_OPTION,
    BatchFunction,
    FusedSink,
    FusedSource,
    Partitioned,
    packed,
    record_columns,
    record_schema,
    register,
)
from braidlog.spark.shuffle.grouping import Call, arrow_schema, read_call
from braidlog.spark.shuffle.hashing import check_hashable
from braidlog.spark.shuffle.state import STATE_VERSIONS_KEPT
from braidlog.spark.shuffle.tasks import check_shuffle
from braidlog.spark.shuffle.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from braidlog.spark.shuffle.blob_shuffle import BlobShuffle

_PLACE_OPTIONS = ("control", "braidlog.control", "store", "braidlog.store")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Use `BlobShuffle.pipeline`. Every call returns another one."""

    shuffle: "BlobShuffle"
    session: "SparkSession"
    options: Mapping[str, str]
    function: BatchFunction | None = None
    schema: "StructType | None" = None
    decoded: tuple[str, ...] = ()
    """What the function needs of a record."""
    event_time: str = ""
    delay_us: int = 0

    @property
    def columns(self) -> "StructType":
        return self.schema if self.schema is not None else record_schema(record_columns())

    def map(
        self, function: BatchFunction, schema: "StructType | str", *, columns: Sequence[str] | None = None
    ) -> "Pipeline":
        """Columns of records: `function` gets Arrow batches of `key`, `value`, `timestamp` and so on, as
        `format("braidlog")` has them, and returns batches with the columns of `schema`. `columns` are those that it
        needs: others are not even decoded."""
        from pyspark.sql.types import StructType

        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        unknown = sorted({*(columns or ())} - {*record_columns()})
        if unknown:
            raise JobError(f"records have no {unknown[0]}", help=f"They have {', '.join(record_columns())}.")
        decoded = tuple(record_columns() if columns is None else columns)
        return replace(self, function=function, schema=cast(StructType, parsed), decoded=decoded)

    def with_watermark(self, column: str, delay: str) -> "Pipeline":
        """As `df.withWatermark`: rows that are later than the latest by more than `delay` may be left out."""
        if column not in self.columns.names or not pa.types.is_timestamp(arrow_schema(self.columns).field(column).type):
            raise JobError(f"{column} is no column of times", help=f"There are {', '.join(self.columns.names)}.")
        return replace(self, event_time=column, delay_us=_microseconds(self.session, delay))

    def group_by(
        self,
        *keys: "str | Column",
        partitions: int = 64,
        output_mode: str = "update",
        name: str = "aggregation",
        versions_kept: int = STATE_VERSIONS_KEPT,
    ) -> "GroupedPipeline":
        """As `BlobShuffle.group_by`. Keys are columns, one of them perhaps a `window` of a column."""
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
        """Functions of columns, as in `BlobShuffle.group_by(…).agg(…)`."""
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
                    raise JobError("there are two windows", help="One of the keys may be a window.")
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
            else Aggregate(call.function, number := next(numbers), _kind(kinds, inputs[number]))
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
        """Results as records of a topic. `records` makes `key`, `value`, and perhaps `headers`, `timestamp` and
        `partition` of Arrow batches of results; without it, a record's key is the group's, and its value the result as
        JSON. `options` are those of `format("braidlog")`; where Braidlog is, is taken from the source."""
        return FusedQuery(self, topic, records, options)


@dataclass(frozen=True, slots=True)
class FusedQuery:
    """A pipeline that can be run."""

    aggregated: AggregatedPipeline
    topic: str
    records: BatchFunction | None
    options: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """All that is in the topic (or between `startingOffsets` and `endingOffsets`), at once."""
        pipeline = self.aggregated.grouped.pipeline
        source, sink = self._plan(streaming=False)
        register(pipeline.session)
        rows = pipeline.session.read.format(FORMAT).option(PLAN_OPTION, packed(source)).load()
        pipeline.shuffle.use(pipeline.session, streaming=False)
        exchanged = rows.repartitionById(self.aggregated.grouped.partitions, "partition")
        exchanged.write.format(FORMAT).option(PLAN_OPTION, packed(sink)).mode("append").save()

    def start(
        self, checkpoint: str, *, available_now: bool = False, interval: str = "0 seconds", name: str | None = None
    ) -> "StreamingQuery":
        """As a stream, once to the topic whatever fails: `checkpoint` is Spark's, and says where to go on."""
        pipeline = self.aggregated.grouped.pipeline
        source, sink = self._plan(streaming=True)
        register(pipeline.session)
        rows = pipeline.session.readStream.format(FORMAT).option(PLAN_OPTION, packed(source)).load()
        pipeline.shuffle.use(pipeline.session, streaming=True)
        exchanged = rows.repartitionById(self.aggregated.grouped.partitions, "partition")
        writer = exchanged.writeStream.format(FORMAT).option(PLAN_OPTION, packed(sink))
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
            state = Statefulness(grouped.name, grouped.output_mode, grouped.versions_kept, fingerprint)
        plan = pipeline.shuffle.plan(grouped.partitions)
        place = {name: value for name, value in pipeline.options.items() if name in _PLACE_OPTIONS}
        needed = {*aggregated.keys, *aggregated.inputs, *([pipeline.event_time] if pipeline.event_time else [])}
        if pipeline.function is not None:
            needed = {*pipeline.decoded}
        with told_to_people():
            source = FusedSource(
                options=read_options(pipeline.options, streaming=streaming),
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
                write_options({**place, **self.options, "topic": self.topic}),
                AggregatingReduce(plan, aggregation, state),
                self.records or JsonRecords(len(grouped.keys)),
            )
        return source, sink


@dataclass(frozen=True, slots=True)
class JsonRecords:
    """A group's key as it is, where it is text or bytes, and otherwise as JSON; its results, with the key, as JSON."""

    key_count: int

    def __call__(self, results: pa.RecordBatch) -> pa.RecordBatch:
        encoder = msgspec.json.Encoder()
        values = [encoder.encode(row) for row in results.to_pylist()]
        first = results.column(0)
        if self.key_count == 1 and (pa.types.is_string(first.type) or pa.types.is_binary(first.type)):
            keys = first.cast(pa.binary())
        else:
            chosen = results.select(list(range(self.key_count))).to_pylist()
            keys = pa.array([encoder.encode(list(row.values())) for row in chosen], pa.binary())
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
    """A length of time as Spark reads it."""
    from py4j.java_gateway import get_field  # type: ignore[import-untyped,unused-ignore]

    jvm: Any = session._jvm
    parsed = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval(
        jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
    )
    months, days, microseconds = (get_field(parsed, name) for name in ("months", "days", "microseconds"))
    if months:
        raise JobError(f"{text} has no fixed length", help="Use days, hours, minutes or seconds.")
    return int(days * 86_400_000_000 + microseconds)
