"""From topic to topic through the store, with rows in Python alone: the same results as Spark's own, each once."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.spark.log_driver import Braid

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle import BlobShuffle
from braidlog.spark.shuffle.columns.spark_hash import partitions_of
from braidlog.spark.shuffle.pipeline.builder import JsonRecords

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_S_MAX = 120


def test_partitions_are_those_of_spark(spark: "SparkSession") -> None:
    df = spark.range(-300, 300).selectExpr(
        "id",
        "int(id) small",
        "tinyint(id % 100) tiny",
        "if(id % 5 = 0, null, repeat('ä', int(abs(id % 11))) || string(id)) text",
        "unhex(hex(id)) raw",
        "id / 7 real",
        "float(id) / 7 single",
        "-0D zero",
        "decimal(id) / 8 number",
        "date_from_unix_date(int(id)) day",
        "timestamp_millis(id * 1001) time",
        "id % 2 = 0 even",
    )
    expected = df.selectExpr("pmod(hash(*), 64) p", *(f"pmod(hash({name}), 64)" for name in df.columns)).collect()
    columns = [column.combine_chunks() for column in df.toArrow().columns]
    for number, column in enumerate(columns):
        assert partitions_of([column], 64).tolist() == [row[number + 1] for row in expected], df.columns[number]
    assert partitions_of(columns, 64).tolist() == [row[0] for row in expected]


def events(start: int, end: int) -> list[dict[str, Any]]:
    return [
        {
            "key": None if i % 11 == 0 else f"customer {i % 7}",
            "value": json.dumps({"amount": i % 100, "item": f"item {i % 3}"}),
            "partition": i % 2,
            "timestamp": 1_700_000_000_000 + i * 100 - (9000 if i % 17 == 0 else 0),
        }
        for i in range(start, end)
    ]


def amounts(batch: pa.RecordBatch) -> pa.RecordBatch:
    parsed = [json.loads(value) for value in batch.column("value").to_pylist()]
    return pa.record_batch(
        {
            "customer": batch.column("key").cast(pa.string()),
            "amount": pa.array([each["amount"] for each in parsed], pa.int64()),
            "time": batch.column("timestamp"),
        }
    )


def native_rows(spark: "SparkSession", braid: Braid, topic: str, *, streaming: bool) -> "DataFrame":
    reader: Any = spark.readStream if streaming else spark.read
    records = reader.format("braidlog").options(**braid.options, subscribe=topic, startingOffsets="earliest")
    if streaming:
        records = records.option("maxOffsetsPerTrigger", "300")
    return records.load().selectExpr(
        "string(key) customer", "bigint(get_json_object(string(value), '$.amount')) amount", "timestamp time"
    )


def plain(rows: list[Any]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def read_json(braid: Braid, topic: str) -> list[str]:
    return plain([json.loads(seen.value or b"") for seen in braid.read(topic)])


def test_a_topic_at_once(spark: "SparkSession", braid: Braid, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    source, sink = braid.new_topic(2, prefix="fused"), braid.new_topic(2, prefix="fused")
    braid.produce(source, events(0, 500))
    shuffle = BlobShuffle(f"file://{tmp_path}", batch_bytes="64KiB")
    pipeline = shuffle.pipeline(braid.options, session=spark, subscribe=source).map(
        amounts, "customer string, amount long, time timestamp", columns=["key", "value", "timestamp"]
    )
    columns = [f.count("*").alias("n"), f.sum("amount").alias("total"), f.max("amount").alias("most")]
    pipeline.group_by("customer", partitions=3).agg(*columns).to(sink).run()
    expected = native_rows(spark, braid, source, streaming=False).groupBy("customer").agg(*columns)
    assert read_json(braid, sink) == plain([row.asDict() for row in expected.collect()])
    assert {seen.key for seen in braid.read(sink)} == {None, *(f"customer {i}".encode() for i in range(7))}

    # Without a function, records' own columns; and with records of one's own making.
    def records(results: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": results.column(0), "value": results.column(1).cast(pa.string())})

    own = braid.new_topic(1, prefix="fused")
    counted = shuffle.pipeline(braid.options, session=spark, subscribe=source).group_by("key", partitions=2)
    counted.agg(f.count("*")).to(own, records=records).run()
    assert sum(int(seen.value or b"") for seen in braid.read(own)) == 500


def test_bytes_that_are_a_key_are_not_repeated_in_json() -> None:
    counts = pa.array([1, 2], pa.int64())
    for keys, values in (
        (pa.array([b"a", b"\xff"]), [{"n": 1}, {"n": 2}]),
        (pa.array(["a", None]), [{"k": "a", "n": 1}, {"k": None, "n": 2}]),
    ):
        records = JsonRecords(1)(pa.record_batch({"k": keys, "n": counts}))
        assert records.column("key").to_pylist() == keys.cast(pa.binary()).to_pylist()
        assert [json.loads(value) for value in records.column("value").to_pylist()] == values
    several = JsonRecords(2)(pa.record_batch({"k": pa.array(["a"]), "l": pa.array([1]), "n": counts[:1]}))
    assert [json.loads(value) for value in several.column("key").to_pylist()] == [["a", 1]]


@pytest.mark.slow
def test_a_stream_once(spark: "SparkSession", braid: Braid, tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    source, sink = braid.new_topic(2, prefix="fused"), braid.new_topic(2, prefix="fused")
    shuffle = BlobShuffle(f"file://{tmp_path}/store", batch_bytes="64KiB")
    fails_at = tmp_path / "fail"

    def sometimes(batch: pa.RecordBatch) -> pa.RecordBatch:
        results = amounts(batch)
        if fails_at.exists() and pc.max(results.column("amount")).as_py() == 99:
            fails_at.unlink()
            raise RuntimeError("fails once, on purpose")
        return results

    keys = [f.window("time", "10 seconds", "5 seconds"), "customer"]
    columns = [f.count("*").alias("n"), f.sum("amount").alias("total"), f.avg("amount").alias("mean")]
    query = (
        shuffle.pipeline(braid.options, session=spark, subscribe=source, startingOffsets="earliest")
        .map(sometimes, "customer string, amount long, time timestamp")
        .with_watermark("time", "3 seconds")
        .group_by(*keys, partitions=3, output_mode="append", versions_kept=2)
        .agg(*columns)
        .to(sink)
    )
    native: list[Any] = []
    aggregated = (
        native_rows(spark, braid, source, streaming=True)
        .withWatermark("time", "3 seconds")
        .groupBy(*keys)
        .agg(*columns)
        .selectExpr("window", "customer", "n", "total", "mean")
    )

    def collect(df: "DataFrame", number: int) -> None:
        native.extend(json.loads(row.value) for row in df.selectExpr("to_json(struct(*)) value").collect())

    for number, end in enumerate((300, 600, 900)):
        braid.produce(source, events(end - 300, end))
        run = aggregated.writeStream.foreachBatch(collect)
        run = run.option("checkpointLocation", f"{tmp_path}/native").outputMode("append").trigger(availableNow=True)
        assert run.start().awaitTermination(WAIT_S_MAX)
        if number == 1:
            fails_at.touch()
            with pytest.raises(Exception, match="on purpose"):
                query.start(f"{tmp_path}/checkpoint", available_now=True).awaitTermination(WAIT_S_MAX)
        assert query.start(f"{tmp_path}/checkpoint", available_now=True).awaitTermination(WAIT_S_MAX)
    found = [json.loads(seen.value or b"") for seen in braid.read(sink)]
    assert len(found) > 50

    def told(row: Any) -> tuple[Any, ...]:
        start = row["window"]["start"].replace(".000", "")
        return start, row.get("customer"), row["n"], row["total"], round(row["mean"], 9)

    assert sorted(map(repr, map(told, found))) == sorted(map(repr, map(told, native)))


def test_what_a_pipeline_refuses(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    pipeline = BlobShuffle(f"file://{tmp_path}").pipeline(session=spark, subscribe="a")
    with pytest.raises(JobError, match="no column of times"):
        pipeline.with_watermark("key", "1 second")
    with pytest.raises(JobError, match="Compute it in map"):
        pipeline.group_by("key").agg(f.sum(f.length("value")))
    with pytest.raises(JobError, match="Compute it in map"):
        pipeline.group_by(f.upper("key")).agg(f.count("*"))
    with pytest.raises(JobError, match="no fixed length"):
        pipeline.with_watermark("timestamp", "1 month")
    with pytest.raises(JobError, match="records have no"):
        pipeline.map(amounts, "a int", columns=["colour"])
    with pytest.raises(JobError, match="watermark"):
        pipeline.group_by("key", output_mode="append").agg(f.count("*")).to("b").start(f"{tmp_path}/c")
