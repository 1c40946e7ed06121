"""The second half of `braid demo`, on Spark.

It aggregates the records, shuffles them, and compacts the totals.

Spark reads and writes the bucket, without the agent.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from braidlog.cli.demo.shuffle import ShuffleAccount, run_shuffle
from braidlog.node.children import BraidProcess
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import SystemEntropy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOTALS = "demo-totals"
TRIGGERS = 5
"""Micro-batches of the stream. Each writes the totals that changed, so that a key has many records to compact."""
CALL_TIMEOUT_S = 15.0
COMPACT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class TopicShape:
    """How many records, objects and bytes a topic has."""

    records: int
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PipelineAccount:
    records_read: int
    """The sum of the totals."""
    keys: int
    before: TopicShape
    after: TopicShape
    shuffle: ShuffleAccount
    seconds: float

    def is_right(self, record_count: int) -> bool:
        totals_are_right = self.records_read == record_count and self.after.records == self.keys
        return totals_are_right and self.shuffle.is_right(record_count)


def can_run() -> bool:
    """Whether the extra `spark` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow", "numba"))


def run_pipeline(
    *,
    topics: Sequence[str],
    record_count: int,
    bootstrap: str,
    control: str,
    store: str,
    folder: Path,
    clock: Clock,
    note: Callable[[str], None],
) -> PipelineAccount:
    start_s = clock.monotonic_s()
    _create_totals(bootstrap)
    note("Spark starts, reads both topics as a stream and writes totals per key")
    shuffle = _on_spark(topics, record_count, control, folder, note)
    before = TopicShape(_count_records(bootstrap), *asyncio.run(_stored(control)))
    note("compaction, as a stage of Spark: it keeps the newest record of each key")
    arguments = ["pipeline", "--engine", "spark", "--master", "local[2]", "--control", control, "--store", store]
    worker = BraidProcess("pipeline", arguments, folder, clock)
    with worker:
        asyncio.run(_compact(control))
    latest = _read_totals(bootstrap)
    after = TopicShape(_count_records(bootstrap), *asyncio.run(_stored(control)))
    return PipelineAccount(
        records_read=sum(latest.values()),
        keys=len(latest),
        before=before,
        after=after,
        shuffle=shuffle,
        seconds=round(clock.monotonic_s() - start_s, 2),
    )


def _create_totals(bootstrap: str) -> None:
    from confluent_kafka.admin import NewTopic

    from braidlog.clients.kafka_client import admin, result

    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"}
    client = admin(bootstrap)  # keep a reference: its answers fail when it is collected
    result(client.create_topics([NewTopic(TOTALS, 1, config=config)]), TOTALS)


def _on_spark(
    topics: Sequence[str], record_count: int, control: str, folder: Path, note: Callable[[str], None]
) -> ShuffleAccount:
    from braidlog.spark import create_session

    spark = create_session(
        "local[*]", app_name="braid demo", quick=True, config={"spark.sql.shuffle.partitions": "2"}, progress=False
    )
    try:
        _aggregate(spark, topics, record_count, control, folder)
        note("all records are shuffled by key, through the store and through Spark itself")
        return run_shuffle(spark, topics, control, folder)
    finally:
        spark.stop()


def _aggregate(spark: "SparkSession", topics: Sequence[str], record_count: int, control: str, folder: Path) -> None:
    records = (
        spark.readStream.format("braidlog")
        .option("braidlog.control", control)
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(-(-record_count // TRIGGERS)))
        .load()
    )
    totals = records.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")

    def write(changed: "DataFrame", _: int) -> None:
        # Data sources in Python can only append, so each micro-batch writes the keys that changed.
        changed.write.format("braidlog").mode("append").option("braidlog.control", control).option(
            "topic", TOTALS
        ).save()

    query = (
        totals.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _messages(bootstrap: str) -> "list[Any]":
    """Read all records of the totals with a consumer."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo-totals", "log_level": 0})
    try:
        place = TopicPartition(TOTALS, 0, 0)
        end = consumer.get_watermark_offsets(place, timeout=CALL_TIMEOUT_S)[1]
        consumer.assign([place])
        found: list[Any] = []
        while end and consumer.position([TopicPartition(TOTALS, 0)])[0].offset < end:
            messages = consumer.consume(5_000, 5.0)
            if not messages:
                break
            found += [message for message in messages if message.error() is None]
        return found
    finally:
        consumer.close()


def _count_records(bootstrap: str) -> int:
    return len(_messages(bootstrap))


def _read_totals(bootstrap: str) -> dict[bytes, int]:
    return {message.key(): int(message.value()) for message in _messages(bootstrap)}


async def _stored(address: str) -> tuple[int, int]:
    """Count the objects and bytes that the index has for the totals."""
    from braidlog.control.interface import FindExtents, SnapshotRequest
    from braidlog.control.remote import connect_control

    control = connect_control(address, SystemClock(), SystemEntropy())
    try:
        snapshot = await control.snapshot(SnapshotRequest(), timeout_s=CALL_TIMEOUT_S)
        [topic] = [topic for topic in snapshot.topics if topic.name == TOTALS]
        objects: set[str] = set()
        size_bytes = offset = 0
        while True:
            found = await control.find_extents(
                FindExtents(topic.partition_ids[0], offset, 1 << 40), timeout_s=CALL_TIMEOUT_S
            )
            if not found.extents:
                return len(objects), size_bytes
            objects.update(stored.key for stored in found.objects)
            size_bytes += sum(extent.length for extent in found.extents)
            offset = found.extents[-1].end_offset
            if offset >= found.bounds.high_watermark:
                return len(objects), size_bytes
    finally:
        await control.close()


async def _compact(address: str) -> None:
    from braidlog.cli.cluster.jobs import compact_topic
    from braidlog.clients.errors import CommandError
    from braidlog.control.remote import connect_control

    control = connect_control(address, SystemClock(), SystemEntropy())
    try:
        done = await compact_topic(control, TOTALS, COMPACT_TIMEOUT_S)
    finally:
        await control.close()
    if not done or any(job.state != "done" for job in done):
        raise CommandError("the compaction did not end", help="Run with --keep, and read the worker's log.")
