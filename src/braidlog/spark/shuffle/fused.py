"""The data source behind `shuffle.pipeline`: what its tasks do in Python, so that only notifications enter the JVM.

A task that reads decodes records, makes columns of them, brings groups together and uploads what is left of them. One
that writes reads its partition of that, goes on with the groups' state, and uploads records. Offsets, leases and the
commit are those of `format("braidlog")`.
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
from braidlog.spark.errors import SchemaError, told_to_people
from braidlog.spark.options import ReadOptions, WriteOptions
from braidlog.spark.shuffle.aggregating import AggregatingMap, AggregatingReduce, TimedBatch
from braidlog.spark.shuffle.hashing import partitions_of
from braidlog.spark.shuffle.notifying import NOTIFICATION_DDL
from braidlog.spark.shuffle.windows import Windows
from braidlog.spark.sink import BatchWriter, StreamWriter, TaskResult
from braidlog.spark.source import BatchReader, StreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "braidlog-pipeline"
PLAN_OPTION = "plan"
EXCHANGED_DDL = f"{NOTIFICATION_DDL}, summary binary"

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], pa.RecordBatch]
"""From records to columns, or from results to records."""


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The partition of keys, as Spark would choose it."""

    partitions: int

    def __call__(self, keys: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
        return partitions_of(keys, self.partitions)


@dataclass(frozen=True, slots=True)
class FusedSource:
    """Records of a topic into notifications."""

    options: ReadOptions
    columns: tuple[str, ...]
    """Of records, which are decoded."""
    function: BatchFunction | None
    keys: tuple[str, ...]
    windows: Windows | None
    """Of the column with this number among the keys."""
    window_key: int
    inputs: tuple[str, ...]
    event_time: str
    """The column with the watermark; empty: none."""
    map: AggregatingMap

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.map.run(self._timed(batch) for batch in batches if batch.num_rows)

    def _timed(self, batch: pa.RecordBatch) -> TimedBatch:
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
        return TimedBatch(keys, inputs, row_count, event_us_max)


def _normal(key: pa.Array) -> pa.Array:
    """Zeros and NaNs that are equal have different bits."""
    if not pa.types.is_floating(key.type):
        return key
    values = key.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    values[np.isnan(values)] = np.nan
    return pa.array(values, key.type, mask=key.is_null().to_numpy(zero_copy_only=False))


@dataclass(frozen=True, slots=True)
class FusedSink:
    """Notifications into records of a topic."""

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
    """Not for people: its only option is a pickled `FusedSource` or `FusedSink`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return EXCHANGED_DDL

    def _plan(self) -> Any:
        return cloudpickle.loads(base64.b64decode(self.options[PLAN_OPTION]))

    def reader(self, schema: StructType) -> DataSourceReader:
        with told_to_people():
            return FusedBatchReader(self._plan())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        with told_to_people():
            return FusedStreamReader(self._plan())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with told_to_people():
            if overwrite:
                raise SchemaError("a log cannot be overwritten", help='Use mode("append").')
            return FusedBatchWriter(self._plan(), RECORDS_SCHEMA)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        with told_to_people():
            return FusedStreamWriter(self._plan(), RECORDS_SCHEMA)


RECORDS_SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
"""What every function that makes records must give at least; the router looks at what it gives."""


def packed(plan: FusedSource | FusedSink) -> str:
    data: bytes = cloudpickle.dumps(plan)  # type: ignore[no-untyped-call,unused-ignore]
    return base64.b64encode(data).decode()


def register(spark: "SparkSession") -> None:
    spark.dataSource.register(FusedDataSource)
