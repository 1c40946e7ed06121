"""Streams out of topics: where they begin, how far a batch goes, and how they go on after a restart."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.log_driver import Braid, Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENCE_S = 120


class Collected:
    """Where a stream's batches go, as (batch number, records)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Seen]]] = []

    def __call__(self, frame: "DataFrame", number: int) -> None:
        rows = frame.selectExpr("topic", "partition", "offset", "key", "value").collect()
        seen = [
            Seen(row.topic, row.partition, row.offset, row.key and bytes(row.key), row.value and bytes(row.value))
            for row in rows
        ]
        self.batches.append((number, sorted(seen, key=lambda each: (each.topic, each.partition, each.offset))))

    @property
    def values(self) -> list[bytes | None]:
        return [seen.value for _, batch in self.batches for seen in batch]


def run_now(spark: "SparkSession", braid: Braid, checkpoint: Path, into: Collected, **options: Any) -> "StreamingQuery":
    """Take what is available now, and end."""
    reader = spark.readStream.format("braidlog").options(**braid.options)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    query = (
        reader.load()
        .writeStream.foreachBatch(into)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(PATIENCE_S), "the query did not end"
    finally:
        query.stop()
    return query


def values(start: int, end: int) -> list[dict[str, Any]]:
    return [{"value": str(i), "partition": i % 2} for i in range(start, end)]


def test_a_stream_goes_on_where_its_checkpoint_says(spark: "SparkSession", braid: Braid, tmp_path: Path) -> None:
    topic = braid.new_topic(2, prefix="stream")
    braid.produce(topic, values(0, 30))
    first = Collected()
    query = run_now(spark, braid, tmp_path / "checkpoint", first, subscribe=topic, startingOffsets="earliest")
    assert sorted(int(value or b"") for value in first.values) == list(range(30))
    progress = query.lastProgress
    assert progress is not None
    assert json.loads(progress["sources"][0]["endOffset"])[topic] == {"0": 15, "1": 15}

    braid.produce(topic, values(30, 50))
    second = Collected()
    run_now(spark, braid, tmp_path / "checkpoint", second, subscribe=topic, startingOffsets="earliest")
    assert sorted(int(value or b"") for value in second.values) == list(range(30, 50))

    # Nothing new: nothing happens.
    third = Collected()
    run_now(spark, braid, tmp_path / "checkpoint", third, subscribe=topic, startingOffsets="earliest")
    assert third.values == []


def test_batches_are_as_large_as_allowed(spark: "SparkSession", braid: Braid, tmp_path: Path) -> None:
    topic = braid.new_topic(2, prefix="limited")
    braid.produce(topic, [{"value": str(i), "partition": 0} for i in range(60)] + values(100, 120))
    collected = Collected()
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
    query = run_now(spark, braid, tmp_path / "checkpoint", collected, **options)
    behind = [
        json.loads(progress["sources"][0]["latestOffset"])["#metrics"]["maxOffsetsBehindLatest"]
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]
    assert behind[0] > 0
    assert behind[-1] == 0
    sizes = [len(batch) for _, batch in collected.batches]
    assert sum(sizes) == 80
    assert max(sizes) <= 40
    assert len(sizes) >= 2
    # Every offset once, in order, and no partition starved.
    for partition in (0, 1):
        offsets = [seen.offset for _, batch in collected.batches for seen in batch if seen.partition == partition]
        assert offsets == list(range(len(offsets)))
        assert any(seen.partition == partition for seen in collected.batches[0][1])
