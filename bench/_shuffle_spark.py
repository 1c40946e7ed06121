"""`BlobShuffle` on Spark: beside Spark's own shuffle, and with much more data than memory."""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Figures = dict[str, Any]
RECORD_BYTES = 1024
FILES = 4
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def random_records(count: int, seed: int) -> pa.Table:
    """Records of random bytes, and their key, which is the first eight of them."""
    raw = np.random.default_rng(seed).integers(0, 256, (count, RECORD_BYTES), dtype=np.uint8)
    bounds = np.arange(0, (count + 1) * RECORD_BYTES, RECORD_BYTES, dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(raw)])
    return pa.table({"key": raw[:, :8].copy().view(np.int64)[:, 0], "value": values})


def repartition(rows: int, runs: int) -> Figures:
    """Elapsed and CPU time of `repartition` into nothing, beside the native one in the same session."""
    from braidlog.spark import create_session
    from braidlog.spark.shuffle import BlobShuffle

    session = create_session("local[2]", progress=False)
    figures: Figures = {"spark_gb": rows * RECORD_BYTES / 1e9}
    try:
        with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
            (Path(folder) / "rows").mkdir()
            for number in range(FILES):
                table = random_records(rows // FILES, number)
                pq.write_table(table, f"{folder}/rows/{number}.parquet", compression="none", use_dictionary=False)
            df = session.read.parquet(f"{folder}/rows")
            shuffle = BlobShuffle(f"file://{folder}/store", compression="none")
            for partitions in (16, 200):
                ways = {
                    "native": df.repartition(partitions, "key"),
                    "blob": shuffle.repartition(df, partitions, "key"),
                }
                found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
                for run in range(runs + 1):
                    for name, way in ways.items():
                        measured = timed(session, way)
                        if run:
                            found[name].append(measured)
                for name, measures in found.items():
                    figures[f"elapsed_{name}_{partitions}_s"] = statistics.median(each[0] for each in measures)
                    figures[f"cpu_{name}_{partitions}_s"] = statistics.median(each[1] for each in measures)
                for what in ("elapsed", "cpu"):
                    blob, native = (figures[f"{what}_{name}_{partitions}_s"] for name in ("blob", "native"))
                    figures[f"{what}_vs_native_{partitions}"] = blob / native
                if partitions == 16:
                    figures["exchange_bytes_vs_native"] = found["blob"][-1][2] / found["native"][-1][2]
            shuffle.stop()
    finally:
        session.stop()
    return figures


def timed(session: Any, df: Any) -> tuple[float, float, int]:
    """Seconds, CPU seconds of all processes, and the bytes that Spark says its shuffle wrote."""
    before, cpu_s = exchanged_bytes(session), cpu_s_of_all()
    started_s = time.perf_counter()
    df.write.format("noop").mode("overwrite").save()
    elapsed_s = time.perf_counter() - started_s
    return elapsed_s, cpu_s_of_all() - cpu_s, exchanged_bytes(session) - before


def exchanged_bytes(session: Any) -> int:
    context = session.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    quantiles = session.sparkContext._gateway.new_array(session._jvm.double, 0)
    stages = context.statusStore().stageList(None, False, False, quantiles, None)
    return sum(stages.apply(number).shuffleWriteBytes() for number in range(stages.size()))


# ── processes ──


def family() -> dict[int, list[str]]:
    """This process and all below it: the fields of /proc/<pid>/stat behind the name, and the name before them."""
    stats: dict[int, list[str]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                text = (path / "stat").read_text()
            except OSError:
                continue  # it has ended
            name = text[text.index("(") + 1 : text.rindex(")")]
            stats[int(path.name)] = [name, *text[text.rindex(")") + 2 :].split()]
    found = {os.getpid(): stats[os.getpid()]}
    grew = True
    while grew:
        below = {pid: stat for pid, stat in stats.items() if pid not in found and int(stat[2]) in found}
        found |= below
        grew = bool(below)
    return found


def cpu_s_of_all() -> float:
    """Of this process, those below it, and those of them that have ended."""
    return sum(int(number) for stat in family().values() for number in stat[12:16]) / TICKS_PER_S


# ── more data than memory ──


def bounded_memory(gigabytes: float) -> Figures:
    """Shuffles so much through an executor with 1 GB of memory, and watches what its Python processes take."""
    from pyspark.sql import functions

    from braidlog.spark import create_session
    from braidlog.spark.shuffle import BlobShuffle

    # Executors import what is below.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    rows = int(gigabytes * 1e9 / RECORD_BYTES)
    # Enough map tasks that none takes long, and partitions of about 100 MB.
    partitions = max(2, round(gigabytes * 10))
    config = {"spark.executor.memory": "1g", "spark.driver.memory": "1g"}
    session = create_session("local-cluster[1,2,1024]", progress=False, config=config)
    watch = MemoryWatch()
    try:
        with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
            shuffle = BlobShuffle(f"file://{folder}/store", compression="none")
            ids = session.range(0, rows, 1, partitions)
            records = ids.mapInArrow(padded, "key bigint, value binary")
            started_s = time.perf_counter()
            with watch:
                counted = shuffle.apply(records, partitions, "key", counted_rows, "rows bigint, total decimal(38, 0)")
                [found] = counted.agg(functions.sum("rows"), functions.sum("total")).collect()
            elapsed_s = time.perf_counter() - started_s
            shuffle.stop()
    finally:
        session.stop()
    if found[0] != rows or int(found[1]) != rows * (rows - 1) // 2:
        raise SystemExit(f"{rows} rows went in, and {found[0]} came out")
    return {
        "memory_gb_shuffled": rows * RECORD_BYTES / 1e9,
        "memory_elapsed_s": elapsed_s,
        "memory_worker_mb_max": watch.worker_bytes_max / 1e6,
        "memory_executor_mb_max": watch.java_bytes_max / 1e6,
    }


def padded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each number with random bytes, up to the size of a record."""
    chunk = 8192
    noise = np.random.default_rng(1).integers(0, 256, chunk * (RECORD_BYTES - 8), dtype=np.uint8)
    for batch in batches:
        for start in range(0, batch.num_rows, chunk):
            keys = batch.column(0).slice(start, chunk)
            bounds = np.arange(0, (len(keys) + 1) * (RECORD_BYTES - 8), RECORD_BYTES - 8, dtype=np.int32)
            buffers = [None, pa.py_buffer(bounds), pa.py_buffer(noise)]
            values = pa.Array.from_buffers(pa.binary(), len(keys), buffers)
            yield pa.RecordBatch.from_arrays([keys, values], names=["key", "value"])


def counted_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += int(batch.column(0).to_numpy().sum())
    yield pa.record_batch({"rows": pa.array([rows], pa.int64()), "total": pa.array([total], pa.decimal128(38, 0))})


class MemoryWatch:
    """Looks at resident memory ten times a second: of the largest Java process and the largest Python worker."""

    def __init__(self) -> None:
        self.worker_bytes_max = self.java_bytes_max = 0
        self._own = os.getpid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        while not self._stopped.wait(0.1):
            for pid, stat in family().items():
                size_bytes = int(stat[22]) * page_bytes
                if stat[0] == "java":
                    self.java_bytes_max = max(self.java_bytes_max, size_bytes)
                elif pid != self._own:
                    self.worker_bytes_max = max(self.worker_bytes_max, size_bytes)
