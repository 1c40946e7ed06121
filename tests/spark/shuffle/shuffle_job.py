"""A job of its own, to be killed: `python -m tests.spark.shuffle.shuffle_job batch|tasks|stream FOLDER`.

`batch` kills two executors, one while it writes batches and one while it reads them, with speculation on, and compares
its result with that of Spark's own shuffle. `tasks` does so with Python workers and the node's shuffle service.
`stream` shuffles a folder of files into another one; it can be killed at any time and started again.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from braidlog.spark import create_session
from braidlog.spark.shuffle import BlobShuffle
from braidlog.spark.shuffle.service.client import FOLDER_VARIABLE

PARTITIONS = 6


def parent_of(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def kills_its_executor_once(marker: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 0:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                # This worker was forked from a daemon, and that is a child of the executor's JVM.
                os.kill(parent_of(os.getppid()), signal.SIGKILL)

    return work


def rows(df: DataFrame) -> list[tuple[int, str, int]]:
    from pyspark.sql import functions

    placed = df.withColumn("partition", functions.spark_partition_id())
    return sorted((row.id, row.text, row.partition) for row in placed.collect())


def batch(folder: Path) -> None:
    config = {
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.1",
        "spark.executorEnv.BRAIDLOG_ZONE": "b",
        "spark.executor.memory": "600m",
    }
    spark = create_session("local-cluster[2,1,900]", quick=True, progress=False, config=config)
    try:
        shuffle = BlobShuffle(f"file://{folder}/store", batch_bytes="64KiB", zones=["a", "b", "c"], job="batch")
        df = spark.range(0, 20_000, 1, 6).selectExpr("id", "sha2(string(id), 256) text")
        expected = rows(df.repartition(PARTITIONS, "text"))
        dying = df.mapInArrow(kills_its_executor_once(f"{folder}/killed-map"), df.schema)
        found = rows(
            shuffle.apply(dying, PARTITIONS, "text", kills_its_executor_once(f"{folder}/killed-reduce"), df.schema)
        )
        killed = [name for name in ("killed-map", "killed-reduce") if (folder / name).exists()]
        print(f"equal={found == expected} rows={len(found)} killed={','.join(killed)}", flush=True)
    finally:
        spark.stop()


def kills_once(marker: str, victims: Callable[[], list[int]]) -> Callable[..., Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            found = [] if Path(marker).exists() else victims()
            if found:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                for victim in found:
                    os.kill(victim, signal.SIGKILL)

    return work


def services(folder: Path) -> list[int]:
    """Shuffle services of this job: their sockets are in its folder."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if b"shuffle.service" in (path / "cmdline").read_bytes() and str(folder) in str(
                    (path / "environ").read_bytes()
                ):
                    found.append(int(path.name))
            except OSError:
                continue
    return found


def tasks(folder: Path) -> None:
    os.environ[FOLDER_VARIABLE] = f"{folder}/run"
    config = {"spark.speculation": "true", "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.1"}
    spark = create_session("local[2,8]", quick=True, progress=False, config=config)
    try:
        shuffle = BlobShuffle(
            f"file://{folder}/store", batch_bytes="64KiB", zones=["a", "b", "c"], job="tasks", shared=True
        )
        df = spark.range(0, 20_000, 1, 12).selectExpr("id", "sha2(string(id), 256) text")
        expected = rows(df.repartition(PARTITIONS, "text"))
        dying = df.mapInArrow(kills_once(f"{folder}/killed-map", lambda: [os.getpid()]), df.schema).mapInArrow(
            kills_once(f"{folder}/killed-service", lambda: services(folder)), df.schema
        )
        reading = kills_once(f"{folder}/killed-reduce", lambda: [os.getpid()])
        found = rows(shuffle.apply(dying, PARTITIONS, "text", reading, df.schema))
        killed = [name for name in ("killed-map", "killed-service", "killed-reduce") if (folder / name).exists()]
        print(f"equal={found == expected} rows={len(found)} killed={','.join(killed)}", flush=True)
    finally:
        spark.stop()
        for process in services(folder):
            os.kill(process, signal.SIGTERM)


def stream(folder: Path) -> None:
    spark = create_session("local[2]", quick=True, progress=False)
    try:
        query = streaming_query(spark, folder)
        query.awaitTermination()
    finally:
        spark.stop()


def streaming_query(spark: SparkSession, folder: Path):  # type: ignore[no-untyped-def]
    shuffle = BlobShuffle(f"file://{folder}/store", batch_bytes="64KiB")
    files = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1)
    shuffled = shuffle.repartition(files.parquet(f"{folder}/in"), PARTITIONS, "text", observe="shuffle")
    return (
        shuffled.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .option("path", f"{folder}/out")
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    {"batch": batch, "tasks": tasks, "stream": stream}[sys.argv[1]](Path(sys.argv[2]))
