"""Aggregations through the store beside Spark's own: a stream of groups, and a pipeline from topic to topic."""

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _cluster import Process
from _shuffle_spark import cpu_s_of_all, ratio_of_rounds

WARM_UPS = 2
"""Rounds that do not count: the JVM compiles what both ways run."""
PARTITIONS = 16
FUSED_PARTITIONS = 4
"""The number of partitions in both ways. Spark must not join small ones here, as it does by default."""
KEYS = 100_000
TOPIC = "bench"
VALUE_BYTES = 1014
KEY_BYTES = 10
BATCH_ROWS = 4_000
TOPIC_PARTITIONS = 4

Figures = dict[str, Any]


def session(partitions: int = PARTITIONS) -> Any:
    from braidlog.spark import create_session

    config = {
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    return create_session("local[2]", progress=False, config=config)


# ── a stream of groups ──


def aggregate(rows_per_batch: int, batches: int, runs: int) -> Figures:
    """Records a second of `groupBy(key).count()` as a stream of micro-batches, out of files and into nothing."""
    spark = session()
    found: dict[str, list[float]] = {"native": [], "blob": []}
    try:
        with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
            write_files(Path(folder) / "in", rows_per_batch, batches)
            for run in range(runs + 1):
                for kind, rates in found.items():
                    seconds = stream_s(spark, folder, kind, run)
                    if run:
                        rates.append(rows_per_batch * batches / seconds)
    finally:
        spark.stop()
    figures = {f"aggregate_{kind}_records_per_s": statistics.median(rates) for kind, rates in found.items()}
    figures["aggregate_vs_native_count"] = (
        figures["aggregate_blob_records_per_s"] / figures["aggregate_native_records_per_s"]
    )
    return figures


def write_files(folder: Path, rows_per_batch: int, batches: int) -> None:
    folder.mkdir()
    chance = np.random.default_rng(5)
    for number in range(batches):
        for part in range(2):
            keys = chance.integers(0, KEYS, rows_per_batch // 2)
            pq.write_table(pa.table({"key": pa.array(keys)}), folder / f"{number:03d}-{part}.parquet")


def stream_s(spark: Any, folder: str, kind: str, run: int) -> float:
    from braidlog.spark.shuffle import BlobShuffle

    files = spark.readStream.schema("key long").option("maxFilesPerTrigger", "2").parquet(f"{folder}/in")
    if kind == "native":
        counted = files.groupBy("key").count()
    else:
        shuffle = BlobShuffle(f"file://{folder}/store")
        counted = shuffle.group_by(files, "key", partitions=PARTITIONS).count()
    checkpoint = f"{folder}/checkpoint-{kind}-{run}"
    writer = counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
    started_s = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    elapsed_s = time.perf_counter() - started_s
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    shutil.rmtree(checkpoint)
    shutil.rmtree(f"{folder}/store", ignore_errors=True)
    return elapsed_s


# ── from topic to topic ──


def fused(size_mb: int, runs: int) -> Figures:
    """A topic of 1 KiB records, counted by key into another topic: in Python alone, and through Spark's shuffle."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder, Process("control", store="file") as control:
        address = control.endpoints["control"]
        row_count = fill_topic(address, size_mb)
        spark = session(FUSED_PARTITIONS)
        try:
            ways = {"native": native_pipeline(spark, address), "fused": fused_pipeline(spark, address, folder)}
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            for run in range(WARM_UPS + runs):
                for name, way in ways.items():
                    started_s, cpu_s = time.perf_counter(), cpu_s_of_all()
                    way()
                    if run >= WARM_UPS:
                        found[name].append((time.perf_counter() - started_s, cpu_s_of_all() - cpu_s))
            check_results(spark, address, row_count * (WARM_UPS + runs))
        finally:
            spark.stop()
    figures: Figures = {"fused_mb": size_mb}
    for number, suffix in enumerate(("", "_cpu")):
        taken = {name: [each[number] for each in times] for name, times in found.items()}
        figures[f"fused{suffix}_s"] = statistics.median(taken["fused"])
        figures[f"fused_native{suffix}_s"] = statistics.median(taken["native"])
        figures[f"fused_vs_native{suffix}"] = ratio_of_rounds(taken["fused"], taken["native"])
    return figures


def read_topic(spark: Any, address: str, topic: str) -> Any:
    options = {"braidlog.control": address, "subscribe": topic, "minPartitions": str(TOPIC_PARTITIONS)}
    return spark.read.format("braidlog").options(**options).load()


def native_pipeline(spark: Any, address: str) -> Callable[[], None]:
    from pyspark.sql import functions as f

    def run() -> None:
        counted = read_topic(spark, address, TOPIC).groupBy("key").agg(f.count("*").alias("n"), f.max("timestamp"))
        options = {"braidlog.control": address, "topic": f"{TOPIC}-native"}
        records = counted.selectExpr("key", "string(n) value")
        records.write.format("braidlog").options(**options).mode("append").save()

    return run


def fused_pipeline(spark: Any, address: str, folder: str) -> Callable[[], None]:
    from pyspark.sql import functions as f

    from braidlog.spark.shuffle import BlobShuffle

    def records(results: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": results.column(0), "value": results.column(1).cast(pa.string())})

    shuffle = BlobShuffle(f"file://{folder}/store")
    options = {"braidlog.control": address, "subscribe": TOPIC, "minPartitions": str(TOPIC_PARTITIONS)}
    grouped = shuffle.pipeline(options, session=spark).group_by("key", partitions=FUSED_PARTITIONS)
    return grouped.agg(f.count("*").alias("n"), f.max("timestamp")).to(f"{TOPIC}-fused", records=records).run


def check_results(spark: Any, address: str, row_count: int) -> None:
    counts = [
        read_topic(spark, address, f"{TOPIC}-{name}").selectExpr("sum(bigint(string(value))) n", "count(distinct key)")
        for name in ("native", "fused")
    ]
    rows = [tuple(each.first()) for each in counts]
    if rows[0] != rows[1] or rows[0][0] != row_count:
        raise SystemExit(f"{row_count} records were counted as {rows[0]} by Spark, and as {rows[1]} through the store")


def fill_topic(address: str, size_mb: int) -> int:
    from braidlog.control.interface import CreateTopics, NewTopic
    from braidlog.spark.link import link_to
    from braidlog.spark.options import ClusterAddress, write_options
    from braidlog.spark.sink.uploader import TaskUploader
    from braidlog.spark.sink.writers import TaskResult, commit_results, lease_name

    link = link_to(ClusterAddress(address, ""))
    topics = [NewTopic(name, TOPIC_PARTITIONS) for name in (TOPIC, f"{TOPIC}-native", f"{TOPIC}-fused")]
    link.loop.run(link.ask("create_topics", CreateTopics(topics), timeout_s=60.0))
    row_count = size_mb * 1_000_000 // (VALUE_BYTES + KEY_BYTES) // BATCH_ROWS * BATCH_ROWS
    chance = np.random.default_rng(7)

    def batches() -> Any:
        for _ in range(0, row_count, BATCH_ROWS):
            values = chance.integers(0, 256, BATCH_ROWS * VALUE_BYTES, dtype=np.uint8).tobytes()
            bounds = np.arange(BATCH_ROWS + 1, dtype=np.int32) * np.int32(VALUE_BYTES)
            keys = [f"{key:010}".encode() for key in chance.integers(0, KEYS, BATCH_ROWS)]
            stored = [None, pa.py_buffer(bounds), pa.py_buffer(values)]
            yield pa.record_batch(
                {
                    "key": pa.array(keys, pa.binary()),
                    "value": pa.Array.from_buffers(pa.binary(), BATCH_ROWS, stored),
                }
            )

    options = write_options({"braidlog.control": address, "topic": TOPIC})
    uploaded = TaskUploader(link, options, lease_name("bench", 0), turn=0).upload(batches())
    commit_results(options, [TaskResult("bench", 0, uploaded.objects, uploaded.record_count)])
    return int(uploaded.record_count)
