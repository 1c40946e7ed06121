"""A shuffle through a bucket, with all options as they are by default: shared buffers, and a cache on the node."""

from typing import TYPE_CHECKING

import pytest

from braidlog.cost.prices import S3_STANDARD
from braidlog.spark.shuffle import BlobShuffle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_a_shuffle_through_a_bucket(spark: "SparkSession", seaweed_url: str) -> None:
    from pyspark.sql import Observation

    df = spark.range(0, 20_000, 1, 4).selectExpr("id", "sha2(string(id), 256) text")
    shuffle = BlobShuffle(seaweed_url, batch_bytes="128KiB")
    assert shuffle.plan(6).shared
    assert shuffle.plan(6).cache.is_of_nodes
    observation = Observation("on s3")
    placed = "id", "text", "spark_partition_id() AS place"
    found = sorted(map(tuple, shuffle.repartition(df, 6, "text", observe=observation).selectExpr(*placed).collect()))
    assert found == sorted(map(tuple, df.repartition(6, "text").selectExpr(*placed).collect()))
    usage = shuffle.usage()
    assert usage is not None
    batches = observation.get["batches"]
    assert usage.puts <= batches  # a service that could not start counts nothing
    bills = shuffle.bills(observation.get, S3_STANDARD)
    assert bills["store"].requests_usd >= 0.999 * batches * S3_STANDARD.put_usd > 0
    shuffle.stop()
