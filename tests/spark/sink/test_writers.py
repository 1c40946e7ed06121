"""DataFrames into topics: what confluent-kafka reads is what Spark wrote."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.log_driver import Braid, Seen

from braidlog.spark.sink.partitioner import partition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOMENT_MS = 1_700_000_000_123


def save(frame: "DataFrame", braid: Braid, **options: Any) -> None:
    """Without a mode, as jobs for Kafka do it."""
    writer = frame.write.format("braidlog").options(**braid.options)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save()


def content(found: list[Seen]) -> list[tuple[bytes | None, bytes | None]]:
    return sorted(((seen.key, seen.value) for seen in found), key=repr)


def test_every_column_arrives(spark: "SparkSession", braid: Braid) -> None:
    topic = braid.new_topic(3, prefix="written", message_timestamp_before_max_ms=1 << 60)
    rows = [
        (f"k{i}", None if i % 5 == 4 else f"v{i}", [("h", bytearray(b"x")), ("n", None)] if i % 2 else None, i)
        for i in range(100)
    ]
    frame = spark.createDataFrame(
        rows, "key string, value string, headers array<struct<key:string,value:binary>>, i int"
    ).selectExpr("key", "value", "headers", f"timestamp_millis({MOMENT_MS} + i) AS timestamp", "i AS unrelated")
    save(frame, braid, topic=topic)
    found = {seen.key: seen for seen in braid.read(topic)}
    assert len(found) == 100
    for key, value, headers, i in rows:
        seen = found[key.encode()]
        assert seen.value == (None if value is None else value.encode())
        assert seen.timestamp_ms == MOMENT_MS + i
        assert seen.headers == ((("h", b"x"), ("n", None)) if headers else ())
        # Kafka's default partitioner, by librdkafka's implementation of it below.
        assert seen.partition == partition_of(key.encode(), 3)


def test_partitions_are_those_that_kafkas_clients_choose(spark: "SparkSession", braid: Braid) -> None:
    by_client, by_spark = braid.new_topic(7, prefix="by-client"), braid.new_topic(7, prefix="by-spark")
    keys = [f"{'x' * (i % 11)}{i}" for i in range(200)]
    braid.produce(by_client, [{"key": key, "value": key} for key in keys], partitioner="murmur2_random")
    save(spark.createDataFrame([(key, key) for key in keys], "key string, value string"), braid, topic=by_spark)
    places = [{seen.key: seen.partition for seen in braid.read(topic)} for topic in (by_client, by_spark)]
    assert places[0] == places[1]


def test_topic_and_partition_columns_and_rows_without_keys(spark: "SparkSession", braid: Braid) -> None:
    first, second = braid.new_topic(2, prefix="column"), braid.new_topic(4, prefix="column")
    rows = [(first, i % 2, f"a{i}") for i in range(10)] + [(second, None, f"b{i}") for i in range(40)]
    save(spark.createDataFrame(rows, "topic string, partition int, value string").coalesce(1), braid)
    assert [(seen.partition, seen.value) for seen in braid.read(first)] == [
        (partition, f"a{i}".encode()) for partition in (0, 1) for i in range(partition, 10, 2)
    ]
    spread = [seen.partition for seen in braid.read(second)]
    assert [spread.count(partition) for partition in range(4)] == [10, 10, 10, 10]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_other_clients(spark: "SparkSession", braid: Braid, codec: str) -> None:
    topic = braid.new_topic(1, prefix="codec")
    frame = spark.range(500).selectExpr("CAST(id AS STRING) AS key", "repeat(CAST(id AS STRING), 20) AS value")
    save(frame.coalesce(1), braid, topic=topic, **{"kafka.compression.type": codec})
    assert [seen.key for seen in braid.read(topic)] == [str(i).encode() for i in range(500)]


def test_what_cannot_be_written_says_why(spark: "SparkSession", braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="refused", cleanup_policy="compact", max_message_bytes=10_000)
    one = spark.range(1)
    for expressions, options, text in [
        (["id"], {"topic": topic}, "has no column value"),
        (["id AS value"], {"topic": topic}, "the column value is bigint"),
        (["'v' AS value", "'k' AS key"], {}, "no topic is named"),
        (["'v' AS value", "'k' AS key"], {"topic": "nowhere"}, "there is no topic nowhere"),
        (["'v' AS value"], {"topic": topic}, "is compacted, but a row has no key"),
        (["repeat('v', 20000) AS value", "'k' AS key"], {"topic": topic}, "bytes of 10000"),
        (["'v' AS value", "'k' AS key", "5 AS partition"], {"topic": topic}, "is for partition 5"),
        (["'v' AS value", "array('h') AS headers"], {"topic": topic}, "the column headers is"),
    ]:
        with pytest.raises(Exception, match=text) as caught:
            save(one.selectExpr(*expressions), braid, **options)
        assert "Traceback" not in str(caught.value)
    for mode, text in (("overwrite", "cannot be overwritten"), ("ignore", "cannot be written in the .Ignore. mode")):
        with pytest.raises(Exception, match=text):
            one.selectExpr("'v' AS value").write.format("braidlog").mode(mode).options(
                **braid.options, topic=topic
            ).save()
    assert braid.read(topic) == []


def test_a_missing_topic_is_found_before_any_task_runs(spark: "SparkSession", braid: Braid) -> None:
    def never(batches: Any) -> Any:
        raise RuntimeError("a task has run")

    frame = spark.range(1).selectExpr("'v' AS value").mapInArrow(never, "value string")
    with pytest.raises(Exception, match="there is no topic nowhere"):
        save(frame, braid, topic="nowhere")


def test_a_named_batch_is_written_once(spark: "SparkSession", braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="named")
    frame = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        save(frame, braid, topic=topic, writerId=f"nightly-{topic}", batchId=0)
    assert len(braid.read(topic)) == 10
    save(frame, braid, topic=topic, writerId=f"nightly-{topic}", batchId=1)
    assert len(braid.read(topic)) == 20


def test_a_task_that_fails_and_is_repeated_writes_once(spark: "SparkSession", braid: Braid, tmp_path: Path) -> None:
    """The first attempt of a task uploads all its rows, and then fails. `local[2, 3]` would be needed for Spark to
    repeat tasks, so what Spark does is done here: the same job again, under the same name."""
    topic = braid.new_topic(2, prefix="repeated")
    marker = str(tmp_path / "failed once")

    def fail_once(batches: Any) -> Any:
        import os

        yield from batches
        if not os.path.exists(marker):
            with open(marker, "w"):
                pass
            raise RuntimeError("a task that fails after its last row")

    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    flaky = frame.coalesce(1).mapInArrow(fail_once, frame.schema)
    options = {"topic": topic, "writerId": f"job-{topic}", "batchId": 7}
    with pytest.raises(Exception, match="a task that fails after its last row"):
        save(flaky, braid, **options)
    assert braid.read(topic) == []
    save(flaky, braid, **options)
    expected = sorted((str(i).encode(), str(i).encode()) for i in range(1000))
    assert sorted((seen.key or b"", seen.value or b"") for seen in braid.read(topic)) == expected
