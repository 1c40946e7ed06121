"""Readers of the data source without Spark: what it would call on the driver, and in a task."""

from collections.abc import Iterable

from pyspark.sql.datasource import InputPartition
from tests.spark.log_driver import Braid

from braidlog.spark.datasource import BraidlogDataSource
from braidlog.spark.source.readers import BatchReader, StreamReader


def batch_reader(braid: Braid, **options: str) -> BatchReader:
    source = BraidlogDataSource({**braid.options, **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    return reader


def stream_reader(braid: Braid, **options: str) -> StreamReader:
    source = BraidlogDataSource({**braid.options, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def read(reader: BatchReader | StreamReader, tasks: Iterable[InputPartition]) -> list[tuple[int, bytes]]:
    """Offsets and values."""
    return [(row["offset"], row["value"]) for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
