"""The data source `braidlog`: what Spark is told of it."""

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

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

from braidlog.spark.errors import SchemaError, told_to_people
from braidlog.spark.options import includes_headers, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "braidlog"

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

    Executors read objects from the store and write them to it; agents are not on the way.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        headers = [StructField("headers", HEADERS_TYPE)] if includes_headers(self.options) else []
        return StructType(_COLUMNS + headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from braidlog.spark.source import BatchReader

        with told_to_people():
            self._check_schema(schema)
            return BatchReader(read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from braidlog.spark.source import StreamReader

        with told_to_people():
            self._check_schema(schema)
            return StreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from braidlog.spark.sink import BatchWriter

        with told_to_people():
            if overwrite:
                raise SchemaError("a log cannot be overwritten", help='Use mode("append").')
            return BatchWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from braidlog.spark.sink import StreamWriter

        with told_to_people():
            # Whole results (outputMode "complete") are appended again with every batch, as Spark's Kafka sink does.
            return StreamWriter(write_options(self.options), schema)

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise SchemaError(
                f"records of a topic have the columns {self.schema().simpleString()}",
                help="Leave schema() out, and cast key and value afterwards.",
            )


def register(spark: "SparkSession") -> None:
    """Make `format("braidlog")` known to a session."""
    spark.dataSource.register(BraidlogDataSource)
