"""What a job with `format("kafka")` does, against the broker at the address: called by spark_kafka.sh."""

import os
import sys
import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from pyspark.sql.functions import sum as total

RECORDS = 10_000
PARTITIONS = 4


def main(address: str, jars: Path) -> None:
    source, copy = f"spark-{os.getpid()}-source", f"spark-{os.getpid()}-copy"
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in (source, copy)]).values():
        future.result(60)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraClassPath", f"{jars}/*")
        .getOrCreate()
    )
    kafka = {"kafka.bootstrap.servers": address}
    try:
        rows = spark.range(RECORDS).selectExpr("CAST(id % 100 AS STRING) AS key", "CAST(id AS STRING) AS value")
        rows.write.format("kafka").options(**kafka, topic=source).save()
        read = spark.read.format("kafka").options(**kafka, subscribe=source).load()
        assert read.count() == RECORDS
        assert {row.partition for row in read.select("partition").distinct().collect()} == set(range(PARTITIONS))

        with tempfile.TemporaryDirectory() as checkpoint:
            for _ in range(2):  # the second time from the checkpoint, with nothing left to do
                stream = spark.readStream.format("kafka").options(**kafka, subscribe=source, startingOffsets="earliest")
                query = (
                    stream.load()
                    .select("key", "value")
                    .writeStream.format("kafka")
                    .options(**kafka, topic=copy, checkpointLocation=checkpoint)
                    .trigger(availableNow=True)
                    .start()
                )
                assert query.awaitTermination(240), "the stream did not end"
        copied = spark.read.format("kafka").options(**kafka, subscribe=copy).load()
        numbers = copied.select(col("value").cast("string").cast("long").alias("number"))
        found = numbers.distinct().agg(total("number")).collect()[0][0]
        assert copied.count() == RECORDS, copied.count()
        assert found == RECORDS * (RECORDS - 1) // 2, found
    finally:
        spark.stop()
    print(f"OK: Spark's own Kafka connector, {RECORDS} records both ways")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
