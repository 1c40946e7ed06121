"""The data source behind `shuffle.pipeline`.

Its tasks work in Python, so only notifications enter the JVM. A task that reads decodes records, turns them into
columns, merges groups and uploads the partial rows. A task that writes reads its partition of them, updates the state
of its groups, and uploads records. Offsets, leases and the commit are those of `format("braidlog")`.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pyarrow.compute as pc  # type: ignore[import-untyped,unused-ignore]
from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from braidlog.spark.datasource import BraidlogDataSource
from braidlog.spark.errors import SchemaError, readable_errors
from braidlog.spark.options import ReadOptions, WriteOptions
from braidlog.spark.shuffle.aggregate.stages import AggregatingMap, AggregatingReduce, InputBatch
from braidlog.spark.shuffle.aggregate.windows import Windows
from braidlog.spark.shuffle.columns.spark_hash import partitions_of
from braidlog.spark.shuffle.notification import NOTIFICATION_DDL
from braidlog.spark.sink.writers import BatchWriter, StreamWriter, TaskResult
from braidlog.spark.source.readers import BatchReader, StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "braidlog-pipeline"
PLAN_OPTION = "plan"
EXCHANGED_DDL = f"{NOTIFICATION_DDL}, summary binary"

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""From records to columns, or from results to records."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """Computes the partition of keys as Spark does."""

    partitions: int

    def __call__(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
        return partitions_of(keys, self.partitions)


@dataclass(frozen=True, slots=True)
class FusedSource:
    """Turns records of a topic into notifications."""

    options: ReadOptions
    columns: tuple[str, ...]
    """The columns of records that are decoded."""
    function: BatchFunction | None
    keys: tuple[str, ...]
    windows: Windows | None
    """The windows of the key number `window_key`."""
    window_key: int
    inputs: tuple[str, ...]
    event_time: str
    """The column with the watermark. Empty: none."""
    map: AggregatingMap

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.map.run(self._timed(batch) for batch in batches if batch.num_rows)

    def _timed(self, batch: pa.RecordBatch) -> InputBatch:
        if self.function is not None:
            batch = self.function(batch)
        event_us_max = None
        if self.event_time and batch.num_rows:
            times = batch.column(self.event_time)
            event_us_max = pc.max(times.cast(pa.timestamp("us", times.type.tz)).cast(pa.int64())).as_py()
        keys = [batch.column(name) for name in self.keys]
        inputs = [batch.column(name) for name in self.inputs]
        row_count = batch.num_rows
        if self.windows is not None:
            rows, starts, ends = self.windows.assign(keys.pop(self.window_key))
            if rows is not None:
                keys = [key.take(pa.array(rows)) for key in keys]
                inputs = [each.take(pa.array(rows)) for each in inputs]
            keys[self.window_key : self.window_key] = [starts, ends]
            row_count = len(starts)
        kinds = self.map.aggregation.key_kinds
        keys = [_normal(key if key.type == kind else key.cast(kind)) for key, kind in zip(keys, kinds, strict=True)]
        return InputBatch(keys, inputs, row_count, event_us_max)


def _normal(key: pa.Array) -> pa.Array:
    """Make equal zeros and NaNs have equal bits."""
    if not pa.types.is_floating(key.type):
        return key
    values = key.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    values[np.isnan(values)] = np.nan
    return pa.array(values, key.type, mask=key.is_null().to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class FusedSink:
    """Turns notifications into records of a topic."""

    options: WriteOptions
    reduce: AggregatingReduce
    function: BatchFunction

    def records(self, notifications: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (self.function(results) for results in self.reduce(notifications))


class FusedBatchReader(BatchReader):
    def __init__(self, source: FusedSource) -> None:
        super().__init__(source.options, record_schema(source.columns))
        self._source = source

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._source.run(super().read(partition))


class FusedStreamReader(StreamReader):
    def __init__(self, source: FusedSource) -> None:
        super().__init__(source.options, record_schema(source.columns))
        self._source = source

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._source.run(super().read(partition))


class FusedBatchWriter(BatchWriter):
    def __init__(self, sink: FusedSink, schema: StructType) -> None:
        super().__init__(sink.options, schema)
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return super().write(self._sink.records(iterator))


class FusedStreamWriter(StreamWriter):
    def __init__(self, sink: FusedSink, schema: StructType) -> None:
        super().__init__(sink.options, schema)
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return super().write(self._sink.records(iterator))


def record_schema(columns: Iterable[str]) -> StructType:
    every = BraidlogDataSource({"includeHeaders": "true"}).schema()
    return StructType([every[name] for name in columns])


def record_columns() -> list[str]:
    return BraidlogDataSource({"includeHeaders": "true"}).schema().names


class FusedDataSource(DataSource):
    """Internal: its only option is a pickled `FusedSource` or `FusedSink`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return EXCHANGED_DDL

    def _plan(self) -> Any:
        return cloudpickle.loads(base64.b64decode(self.options[PLAN_OPTION]))

    def reader(self, schema: StructType) -> DataSourceReader:
        with readable_errors():
            return FusedBatchReader(self._plan())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        with readable_errors():
            return FusedStreamReader(self._plan())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with readable_errors():
            if overwrite:
                raise SchemaError("a log cannot be overwritten", help='Use mode("append").')
            return FusedBatchWriter(self._plan(), RECORDS_SCHEMA)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        with readable_errors():
            return FusedStreamWriter(self._plan(), RECORDS_SCHEMA)


RECORDS_SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
"""The least that a function that makes records must return. The router looks at the actual columns."""


def pickled(plan: FusedSource | FusedSink) -> str:
    data: bytes = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call,unused-ignore]
    return base64.b64encode(data).decode()


def register(spark: "SparkSession") -> None:
    spark.dataSource.register(FusedDataSource)
