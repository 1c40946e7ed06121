"""Page views per page and minute, from one topic to another, with the columns and options of Spark's Kafka source.

    braid up &
    braid topic create views --partitions 4
    braid topic create views-per-minute
    python examples/page_views.py                              # Braidlog, at its default address
    python examples/page_views.py --format kafka --address broker:9092     # the same job on Kafka

Only the format differs. The job ends when it has read all records. Run it again, and it continues from there.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from braidlog.spark import create_session


def make_views(spark: SparkSession, count: int) -> DataFrame:
    """Make views of ten pages, one every half second until now."""
    return spark.range(count).selectExpr(
        "concat('/page/', id % 10) AS key",
        "to_json(struct(id AS view, id % 97 AS visitor)) AS value",
        f"current_timestamp() - make_interval(0, 0, 0, 0, 0, 0, 0.5 * ({count} - id)) AS timestamp",
    )


def count_views(views: DataFrame) -> DataFrame:
    return (
        views.selectExpr("CAST(key AS STRING) AS page", "CAST(value AS STRING) AS json", "timestamp")
        .withColumn("visitor", f.get_json_object("json", "$.visitor"))
        .withWatermark("timestamp", "1 minute")
        .groupBy("page", f.window("timestamp", "1 minute").alias("minute"))
        .agg(f.count("*").alias("views"), f.approx_count_distinct("visitor").alias("visitors"))
        .selectExpr("page AS key", "to_json(struct(minute.start AS minute, views, visitors)) AS value")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=["braidlog", "kafka"], default="braidlog")
    parser.add_argument("--address", default="127.0.0.1:9092")
    parser.add_argument("--source", default="views")
    parser.add_argument("--sink", default="views-per-minute")
    parser.add_argument("--checkpoint", default="data/checkpoints/page-views")
    parser.add_argument("--make", type=int, default=10_000, metavar="COUNT", help="views to write first")
    options = parser.parse_args()
    address = {"kafka.bootstrap.servers": options.address}

    spark = create_session("local[*]", app_name="page views")
    make_views(spark, options.make).write.format(options.format).options(**address).option(
        "topic", options.source
    ).save()
    views = (
        spark.readStream.format(options.format)
        .options(**address)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        count_views(views)
        .writeStream.format(options.format)
        .options(**address)
        .option("topic", options.sink)
        .option("checkpointLocation", options.checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    counted = spark.read.format(options.format).options(**address).option("subscribe", options.sink).load()
    counted.selectExpr("CAST(key AS STRING) AS page", "CAST(value AS STRING) AS counts").orderBy("page", "counts").show(
        20, truncate=False
    )


if __name__ == "__main__":
    main()
