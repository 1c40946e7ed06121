"""Topics as DataFrames: what Spark sees is what confluent-kafka sees."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from tests.spark.log_driver import Braid, Seen, seen_by_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START_MS = 1_700_000_000_000


def load(spark: "SparkSession", braid: Braid, **options: Any) -> "DataFrame":
    reader = spark.read.format("braidlog").options(**braid.options)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


@contextmanager
def fails_with(text: str) -> Iterator[None]:
    """What went wrong stands first, and not behind a traceback."""
    with pytest.raises(Exception, match=text) as caught:
        yield
    assert "Traceback" not in str(caught.value)


@pytest.fixture(scope="module")
def mixed(braid: Braid) -> str:
    """A topic with every codec, headers, tombstones, records without a key and timestamps of long ago."""
    topic = braid.new_topic(3, prefix="mixed", message_timestamp_before_max_ms=1 << 60)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        braid.produce(
            topic,
            [
                {
                    "key": None if i % 7 == 3 else f"key-{i}".encode(),
                    "value": None if i % 5 == 4 else f"{codec} {i} ".encode() * (1 + i % 40),
                    "timestamp": START_MS + 1000 * number + i,
                    "headers": [("codec", codec.encode()), ("nothing", None), ("", b"")] if i % 2 else None,
                }
                for i in range(60)
            ],
            **{"compression.type": codec},
        )
    return topic


def test_every_record_is_seen_as_a_consumer_sees_it(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    frame = load(spark, braid, subscribe=mixed, includeHeaders="true")
    found = seen_by_spark(frame.collect())
    assert len(found) == 300
    assert found == braid.read(mixed)


def test_columns_are_those_of_sparks_kafka_source(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    assert load(spark, braid, subscribe=mixed).schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    with_headers = load(spark, braid, subscribe=mixed, includeHeaders="true")
    assert with_headers.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    texts = with_headers.selectExpr("CAST(key AS STRING) k", "CAST(value AS STRING) v").where("k = 'key-0'").distinct()
    assert {row.v for row in texts.collect()} == {f"{codec} 0 " for codec in ("none", "gzip", "snappy", "lz4", "zstd")}


def test_large_ranges_are_read_by_several_tasks(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    whole = load(spark, braid, subscribe=mixed)
    assert whole.rdd.getNumPartitions() == 1, "small ranges share a task"
    split = load(spark, braid, subscribe=mixed, minPartitions=6)
    assert split.rdd.getNumPartitions() >= 6
    assert seen_by_spark(split.collect()) == seen_by_spark(whole.collect())


def test_offsets_and_times_say_where_to_begin_and_end(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    everything = [Seen(*[*vars_of(seen)[:5], seen.timestamp_ms]) for seen in braid.read(mixed)]
    start = json.dumps({mixed: {"0": 5, "1": -2, "2": -1}})
    end = json.dumps({mixed: {"0": 9, "1": 4, "2": -1}})
    found = seen_by_spark(load(spark, braid, subscribe=mixed, startingOffsets=start, endingOffsets=end).collect())
    assert found == [
        seen
        for seen in everything
        if (seen.partition == 0 and 5 <= seen.offset < 9) or (seen.partition == 1 and seen.offset < 4)
    ]

    # Time travel: from the first record at or after a time, whole partitions.
    moment = START_MS + 2000
    found = seen_by_spark(load(spark, braid, subscribe=mixed, startingTimestamp=moment).collect())
    assert found == [seen for seen in everything if seen.timestamp_ms >= moment]
    times = {str(number): moment + 1000 for number in range(3)}
    found = seen_by_spark(
        load(
            spark,
            braid,
            subscribe=mixed,
            startingTimestamp=moment,
            endingOffsetsByTimestamp=json.dumps({mixed: times}),
        ).collect()
    )
    assert found == [seen for seen in everything if moment <= seen.timestamp_ms < moment + 1000]


def vars_of(seen: Seen) -> list[Any]:
    return [getattr(seen, name) for name in Seen.__dataclass_fields__]


def test_topics_are_chosen_by_name_pattern_or_partition(spark: "SparkSession", braid: Braid) -> None:
    first, second = braid.new_topic(2, prefix="chosen-a"), braid.new_topic(2, prefix="chosen-b")
    for topic in (first, second):
        braid.produce(topic, [{"value": f"{topic} {i}", "partition": i % 2} for i in range(10)])
    assert load(spark, braid, subscribe=f"{first}, {second}").count() == 20
    assert load(spark, braid, subscribePattern="chosen-[ab]-.*").count() == 20
    assert load(spark, braid, subscribePattern="chosen-nothing").count() == 0
    assigned = load(spark, braid, assign=json.dumps({first: [1], second: [0, 1]}))
    assert assigned.count() == 15
    with fails_with("there is no topic nowhere"):
        load(spark, braid, subscribe="nowhere").count()
    with fails_with("no partition 7"):
        load(spark, braid, assign=json.dumps({first: [7]})).count()


def test_wrong_options_say_what_is_wrong(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    with fails_with("Did you mean startingOffsets"):
        load(spark, braid, subscribe=mixed, startingOffset="earliest").count()
    with fails_with("0 of the options subscribe, subscribePattern and assign"):
        load(spark, braid).count()
    with fails_with("Leave schema"):
        spark.read.format("braidlog").options(**braid.options).schema("key string").option(
            "subscribe", mixed
        ).load().count()


def test_a_job_for_kafka_changes_one_word(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    """Agents in the place of brokers, and what a job for Kafka would say besides."""
    options = {"kafka.bootstrap.servers": f"127.0.0.1:1,{braid.bootstrap}", "kafka.group.id": "g", "subscribe": mixed}
    found = spark.read.format("braidlog").options(**options).option("maxRecordsPerPartition", "50").load()
    assert found.count() == len(braid.read(mixed))
    assert found.rdd.getNumPartitions() >= -(-found.count() // 50)
    with fails_with("kafka.sasl.mechanism cannot be honoured"):
        spark.read.format("braidlog").options(**options).option("kafka.sasl.mechanism", "PLAIN").load().count()


def test_a_topic_is_a_view_and_no_table(spark: "SparkSession", braid: Braid, mixed: str) -> None:
    options = f"`kafka.bootstrap.servers` '{braid.bootstrap}', subscribe '{mixed}'"
    with fails_with("CREATE TEMPORARY VIEW name USING braidlog"):
        spark.sql(f"CREATE TABLE records USING braidlog OPTIONS ({options})")
    spark.sql(f"CREATE TEMPORARY VIEW records USING braidlog OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM records").first()[0] == len(braid.read(mixed))  # type: ignore[index]
    spark.catalog.dropTempView("records")


def test_what_expired_is_an_error_or_left_out(spark: "SparkSession", braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="expired")
    braid.produce(topic, [{"value": str(i)} for i in range(50)])
    braid.delete_records(topic, 0, 20)
    assert [seen.offset for seen in seen_by_spark(load(spark, braid, subscribe=topic).collect())] == list(range(20, 50))
    start = json.dumps({topic: {"0": 10}})
    with fails_with("begins at offset 20, and 10 was asked for"):
        load(spark, braid, subscribe=topic, startingOffsets=start).count()
    assert load(spark, braid, subscribe=topic, startingOffsets=start, failOnDataLoss="false").count() == 30
    end = json.dumps({topic: {"0": 60}})
    with fails_with("ends at offset 50, and 60 was asked for"):
        load(spark, braid, subscribe=topic, endingOffsets=end).count()


def test_only_committed_records_where_that_is_asked_for(spark: "SparkSession", braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="transactions")
    producer = confluent_kafka.Producer({"bootstrap.servers": braid.bootstrap, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(20)
    for round_number in range(4):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(topic, f"{round_number}-{i}")
        producer.flush(60)
        if round_number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(60)
    committed = seen_by_spark(
        load(spark, braid, subscribe=topic, **{"kafka.isolation.level": "read_committed"}).collect()
    )
    assert [seen.value for seen in committed] == [f"{number}-{i}".encode() for number in (0, 2) for i in range(5)]
    assert [seen.offset for seen in committed] == [seen.offset for seen in braid.read(topic)]
    everything = seen_by_spark(load(spark, braid, subscribe=topic).collect())
    assert [seen.value for seen in everything] == [
        *(f"{number}-{i}".encode() for number in range(4) for i in range(5)),
        b"open",
    ]
    producer.abort_transaction(20)
