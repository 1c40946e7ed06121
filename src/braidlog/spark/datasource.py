"""The data source `braidlog`, as Spark sees it."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from braidlog.spark.bootstrap import with_control_address
from braidlog.spark.errors import SchemaError, readable_errors, warn
from braidlog.spark.kafka_options import without_effect
from braidlog.spark.options import ReadOptions, WriteOptions, includes_headers, read_options, write_options
from braidlog.spark.save_mode import FORMAT, append_by_default

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLE_PROPERTY = "provider"
"""Spark adds this option for a table in its catalog, and only then."""

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_COLUMNS = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
]


class BraidlogDataSource(DataSource):
    """Topics as DataFrames, with the options and the columns of Spark's Kafka source.

    Executors read objects from the store and write objects to it, without an agent in between.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if _TABLE_PROPERTY in options:
            with readable_errors():
                raise SchemaError(
                    "a topic cannot be a table in Spark's catalog: Spark does not pass a table's options to data"
                    " sources in Python",
                    help="Create a view of the session instead: CREATE TEMPORARY VIEW name USING braidlog OPTIONS"
                    " (subscribe 'topic', …).",
                )

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        headers = [StructField("headers", HEADERS_TYPE)] if includes_headers(self.options) else []
        return StructType(_COLUMNS + headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from braidlog.spark.source.readers import BatchReader

        with readable_errors():
            self._check_schema(schema)
            return BatchReader(self._read_options(streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from braidlog.spark.source.readers import StreamReader

        with readable_errors():
            self._check_schema(schema)
            return StreamReader(self._read_options(streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from braidlog.spark.sink.writers import BatchWriter

        with readable_errors():
            if overwrite:
                raise SchemaError("a log cannot be overwritten", help='Use mode("append").')
            return BatchWriter(self._write_options(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from braidlog.spark.sink.writers import StreamWriter

        with readable_errors():
            # Output mode "complete" appends all results again with every batch, as with Spark's Kafka sink.
            return StreamWriter(self._write_options(), schema)

    def _read_options(self, *, streaming: bool) -> ReadOptions:
        self._warn_without_effect()
        return with_control_address(read_options(self.options, streaming=streaming))

    def _write_options(self) -> WriteOptions:
        self._warn_without_effect()
        return with_control_address(write_options(self.options))

    def _warn_without_effect(self) -> None:
        if names := without_effect(self.options):
            warn(f"these options have no effect, because no Kafka client is used here: {', '.join(names)}")

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise SchemaError(
                f"records of a topic have the columns {self.schema().simpleString()}",
                help="Leave schema() out, and cast key and value afterwards.",
            )


def register(spark: "SparkSession") -> None:
    """Register `format("braidlog")`, unless Spark has found it by itself.

    Spark finds it through `pyspark_braidlog`.
    """
    append_by_default()
    try:
        spark.dataSource.register(BraidlogDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
