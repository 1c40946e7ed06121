"""How fast Spark reads a topic, beside how fast it reads the same columns from Arrow files."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from _cluster import Process

TOPIC = "bench"
PARTITIONS = 4
VALUE_BYTES = 1014
KEY_BYTES = 10
BATCH_ROWS = 4_000
CALL_TIMEOUT_S = 60.0


class ArrowFile(InputPartition):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class ArrowFilesReader(DataSourceReader):
    def __init__(self, folder: str, *, mapped: bool) -> None:
        self._folder = folder
        self._mapped = mapped

    def partitions(self) -> list[InputPartition]:
        return [ArrowFile(str(path)) for path in sorted(Path(self._folder).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ArrowFile)
        # Read as objects are. Mapped into memory it takes one copy less, which only a local disk can save.
        with pa.OSFile(partition.path) if not self._mapped else pa.memory_map(partition.path) as file:
            reader = pa.ipc.open_file(file)
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)


class ArrowFiles(DataSource):
    """The least that a data source can do: batches as Spark wants them, straight from files."""

    @classmethod
    def name(cls) -> str:
        return "arrow-files"

    def schema(self) -> Any:
        from braidlog.spark.datasource import BraidlogDataSource

        return BraidlogDataSource({}).schema()

    def reader(self, schema: Any) -> DataSourceReader:
        return ArrowFilesReader(self.options["path"], mapped=self.options.get("mapped") == "true")


def measure(size_mb: int, runs: int) -> dict[str, float]:
    """`source_vs_arrow_scan`: the topic's throughput as a part of the files', in turn and each at its best."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    from braidlog.spark import create_session

    with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder, Process("control", store="file") as control:
        address = control.endpoints["control"]
        row_count = fill_topic(address, size_mb)
        spark = create_session("local[2]", app_name="bench", progress=False)
        try:
            spark.dataSource.register(ArrowFiles)
            topic = (
                spark.read.format("braidlog")
                .options(**{"braidlog.control": address, "subscribe": TOPIC, "minPartitions": str(PARTITIONS)})
                .load()
            )
            save_files(topic, folder)
            files = spark.read.format("arrow-files").load(folder)
            mapped = spark.read.format("arrow-files").option("mapped", "true").load(folder)
            for frame in (topic, files, mapped):
                if frame.count() != row_count:
                    raise RuntimeError(f"{frame.count()} rows of {row_count}")
            rounds = [(scan_s(topic), scan_s(files), scan_s(mapped)) for _ in range(runs)]
        finally:
            spark.stop()
    size = row_count * (VALUE_BYTES + KEY_BYTES) / 1e6
    source_s, files_s, mapped_s = (min(times) for times in zip(*rounds, strict=True))
    return {
        "source_mb_per_s": size / source_s,
        "arrow_scan_mb_per_s": size / files_s,
        "source_vs_arrow_scan": files_s / source_s,
        "source_vs_arrow_scan_median": statistics.median(files / source for source, files, _ in rounds),
        "source_vs_arrow_mapped": mapped_s / source_s,
    }


def scan_s(frame: DataFrame) -> float:
    """Every column of every row reaches the JVM, and nothing else happens to it."""
    started_s = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started_s


def fill_topic(address: str, size_mb: int) -> int:
    """As a Spark job would: objects that are uploaded and committed together."""
    import numpy as np

    from braidlog.control.interface import CreateTopics, NewTopic
    from braidlog.spark.link import link_to
    from braidlog.spark.options import ClusterAddress, write_options
    from braidlog.spark.sink.uploader import TaskUploader
    from braidlog.spark.sink.writers import TaskResult, commit_results, lease_name

    link = link_to(ClusterAddress(address, ""))
    link.loop.run(link.ask("create_topics", CreateTopics([NewTopic(TOPIC, PARTITIONS)]), timeout_s=CALL_TIMEOUT_S))
    row_count = size_mb * 1_000_000 // (VALUE_BYTES + KEY_BYTES) // BATCH_ROWS * BATCH_ROWS
    noise = np.random.default_rng(7)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, row_count, BATCH_ROWS):
            values = noise.integers(0, 256, BATCH_ROWS * VALUE_BYTES, dtype=np.uint8).tobytes()
            yield pa.record_batch(
                {
                    "key": pa.array([f"{i:010}".encode() for i in range(start, start + BATCH_ROWS)], pa.binary()),
                    "value": pa.Array.from_buffers(
                        pa.binary(),
                        BATCH_ROWS,
                        [
                            None,
                            pa.py_buffer(np.arange(BATCH_ROWS + 1, dtype=np.int32) * np.int32(VALUE_BYTES)),
                            pa.py_buffer(values),
                        ],
                    ),
                }
            )

    options = write_options({"braidlog.control": address, "topic": TOPIC})
    uploaded = TaskUploader(link, options, lease_name("bench", 0), turn=0).upload(batches())
    commit_results(options, [TaskResult("bench", 0, uploaded.objects, uploaded.record_count)])
    return uploaded.record_count


def save_files(topic: DataFrame, folder: str) -> None:
    """The topic's own rows, one file for each partition, in batches as large as the source makes them."""

    def save(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        writer = None
        count = 0
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_file(f"{folder}/{context.partitionId()}.arrow", batch.schema)
            writer.write_batch(batch)
            count += batch.num_rows
        if writer is not None:
            writer.close()
        yield pa.record_batch({"count": [count]})

    topic.mapInArrow(save, "count long").collect()
