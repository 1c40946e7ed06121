"""A streaming job to be killed: counts and sums in windows, from one topic to another.

`python -m tests.spark.windowed_job CONTROL SOURCE SINK CHECKPOINT`. The first attempt of the first task of every
micro-batch fails after it has uploaded its rows.
"""

import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import functions as f

from braidlog.spark import create_session

WINDOW_S = 10


def fail_first_attempt(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails, on purpose")


def main(control: str, source: str, sink: str, checkpoint: str) -> None:
    spark = create_session(
        "local[2,4]", app_name="windowed", quick=True, progress=False, config={"spark.sql.shuffle.partitions": "2"}
    )
    events = (
        spark.readStream.format("braidlog")
        .option("braidlog.control", control)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "400")
        .load()
    )
    numbers = events.selectExpr(
        "CAST(key AS STRING) AS key", "CAST(CAST(value AS STRING) AS LONG) AS number", "timestamp"
    )
    windows = (
        numbers.withWatermark("timestamp", "1 second")
        .groupBy("key", f.window("timestamp", f"{WINDOW_S} seconds").alias("period"))
        .agg(f.count("*").alias("count"), f.sum("number").alias("total"))
        .selectExpr("concat(unix_seconds(period.start), '/', key) AS key", "concat(count, ' ', total) AS value")
    )
    query = (
        windows.mapInArrow(fail_first_attempt, windows.schema)
        .writeStream.format("braidlog")
        .option("braidlog.control", control)
        .option("topic", sink)
        .option("objectBytes", "1")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
