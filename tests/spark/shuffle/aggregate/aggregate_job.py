"""A stream of groups to be killed: `python -m tests.spark.shuffle.aggregate.aggregate_job FOLDER`.

It aggregates the files of FOLDER/in into FOLDER/out. The first attempt of every task fails when it is done, on either
side of the exchange, and it can be killed at any time and started again.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from braidlog.spark import create_session
from braidlog.spark.shuffle import BlobShuffle

SCHEMA = "key long, word string, number double, time timestamp"


def fail_first_attempt(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails, on purpose")


def groups(spark: SparkSession, folder: Path, kind: str, *, failing: bool = False) -> DataFrame:
    """The same stream, by Spark's own aggregation or through the store."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    if failing:
        stream = stream.mapInArrow(fail_first_attempt, SCHEMA)
    stream = stream.withWatermark("time", "10 seconds")
    keys = [f.window("time", "20 seconds", "10 seconds"), f.col("word")]
    columns = [f.count("*").alias("n"), f.sum("number").alias("total"), f.max("key").alias("top")]
    if kind == "native":
        return stream.groupBy(*keys).agg(*columns)
    shuffle = BlobShuffle(f"file://{folder}/store", batch_bytes="64KiB")
    found = shuffle.group_by(stream, *keys, partitions=3, output_mode="append", versions_kept=3).agg(*columns)
    return found.mapInArrow(fail_first_attempt, found.schema) if failing else found


def main(folder: Path) -> None:
    config = {"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.noDataMicroBatches.enabled": "false"}
    spark = create_session("local[2,4]", quick=True, progress=False, config=config)
    try:
        query = (
            groups(spark, folder, "blob", failing=True)
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .option("path", f"{folder}/out")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
