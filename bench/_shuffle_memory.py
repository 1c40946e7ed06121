"""Much more data than memory through `BlobShuffle`, and what the executor takes for it."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from braidlog.spark.shuffle.columns.spark_hash import partitions_of

Figures = dict[str, Any]
RECORD_BYTES = 1024
DIGITS = 8
REPEATS = (RECORD_BYTES - 8) // DIGITS
"""A record is a key of eight bytes, and its number in so many copies."""
ROWS_PER_KEY = 4
LIMIT_MIB = 1024
"""The limit of the executor: its JVM, its Python workers, and the process that they are forked from."""
HEAP_MIB = 480
"""The part of the limit that is the heap. Spark refuses less than 450."""
CORES = 2
SETTINGS: Figures = {"batch_bytes": "8MiB", "uploads_in_flight": 2, "read_ahead": "32MiB", "compression": "none"}
CONFIG = {
    "spark.executor.memory": f"{HEAP_MIB}m",
    # A JVM takes all of its heap before it looks for what it could use again, unless it begins small.
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -Xms96m -Xmn48m -XX:MinHeapFreeRatio=10"
    " -XX:MaxHeapFreeRatio=30 -XX:MaxDirectMemorySize=128m -XX:MaxMetaspaceSize=160m -XX:ReservedCodeCacheSize=64m",
    # Otherwise each task has a file with buffers for every partition, even for notifications.
    "spark.shuffle.sort.bypassMergeThreshold": "1",
    # Spark wants more direct memory than this.
    "spark.network.maxRemoteBlockSizeFetchToMem": "32m",
    "spark.driver.memory": "1g",
}
CHECKED_SCHEMA = "partition int, rows bigint, total bigint"
EXECUTOR_CLASS = b"CoarseGrainedExecutorBackend"
INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True)
class Taken:
    """The memory that an executor used at some time."""

    at_s: float
    java_bytes: int
    python_bytes: int
    worker_bytes: int
    """The memory of the largest Python worker alone, including pages that it shares with others."""

    @property
    def total_bytes(self) -> int:
        return self.java_bytes + self.python_bytes


def bounded_memory(gigabytes: float) -> tuple[Figures, list[Taken]]:
    """Shuffles so much through an executor with 1 GiB of memory in all, and looks at every byte that comes out."""
    from braidlog.spark import create_session
    from braidlog.spark.shuffle import BlobShuffle

    # Executors import what is below.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    partitions = max(2, round(gigabytes * 5))
    key_count = int(gigabytes * 1e9 / RECORD_BYTES) // ROWS_PER_KEY
    rows = key_count * ROWS_PER_KEY
    session = create_session(f"local-cluster[1,{CORES},{LIMIT_MIB}]", progress=False, config=CONFIG)
    try:
        with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
            shuffle = BlobShuffle(f"file://{folder}/store", **SETTINGS)
            # Rows of a key are far from each other, so that they come from several tasks.
            records = session.range(0, rows, 1, partitions).selectExpr(
                f"id % {key_count} AS key", f"CAST(repeat(lpad(hex(id), {DIGITS}, '0'), {REPEATS}) AS BINARY) AS value"
            )
            checked = shuffle.apply(records, partitions, "key", Check(partitions, key_count).__call__, CHECKED_SCHEMA)
            started_s = time.perf_counter()
            with ExecutorWatch() as watch:
                found = checked.collect()
            elapsed_s = time.perf_counter() - started_s
            shuffle.stop()
    finally:
        session.stop()
    if sorted(each["partition"] for each in found) != list(range(partitions)):
        raise SystemExit("rows of a partition are missing, or in two places")
    rows_out = sum(each["rows"] for each in found)
    if rows_out != rows or sum(each["total"] for each in found) != rows * (rows - 1) // 2:
        raise SystemExit(f"{rows} rows went in, and {rows_out} came out, or others")
    limit_bytes = LIMIT_MIB << 20
    peak_bytes = max(each.total_bytes for each in watch.samples)
    figures = {
        "memory_gb_shuffled": rows * RECORD_BYTES / 1e9,
        "memory_elapsed_s": elapsed_s,
        "memory_limit_mb": limit_bytes / 1e6,
        "memory_executor_mb_max": peak_bytes / 1e6,
        "memory_java_mb_max": max(each.java_bytes for each in watch.samples) / 1e6,
        "memory_python_mb_max": max(each.python_bytes for each in watch.samples) / 1e6,
        "memory_worker_mb_max": max(each.worker_bytes for each in watch.samples) / 1e6,
        "memory_vs_limit": peak_bytes / limit_bytes,
    }
    return figures, watch.samples


# ── in the executor ──


@dataclass(frozen=True, slots=True)
class Check:
    """Looks at every row of a partition: at its key's partition, at its key, and at each copy of its number."""

    partitions: int
    key_count: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = total = 0
        partition = -1
        for batch in batches:
            keys, values = batch.columns
            numbers = numbers_in(values)
            chosen = partitions_of([keys], self.partitions)
            partition = int(chosen[0]) if partition < 0 else partition
            if (chosen != partition).any():
                raise RuntimeError(f"a row of partition {chosen[chosen != partition][0]} is in {partition}")
            if (numbers % self.key_count != keys.to_numpy()).any():
                raise RuntimeError("a row has another one's key")
            rows += batch.num_rows
            total += int(numbers.sum())
        yield pa.record_batch(
            {"partition": pa.array([partition], pa.int32()), "rows": pa.array([rows]), "total": pa.array([total])}
        )


def numbers_in(values: pa.Array) -> np.ndarray:
    """The number in each record, of which all copies must be the same."""
    _, bounds, data = values.buffers()
    ends = np.frombuffer(bounds, np.int32)[values.offset : values.offset + len(values) + 1]
    if (np.diff(ends) != DIGITS * REPEATS).any():
        raise RuntimeError("a record has another size")
    copies = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].view(np.uint64).reshape(len(values), REPEATS)
    if (copies != copies[:, :1]).any():
        raise RuntimeError("bytes of a record have changed")
    digits = np.ascontiguousarray(copies[:, :1]).view(np.uint8).astype(np.int64)
    digits -= np.where(digits >= ord("A"), ord("A") - 10, ord("0"))
    return digits @ (np.int64(16) ** np.arange(DIGITS - 1, -1, -1))


# ── processes ──


class ExecutorWatch:
    """Adds up, several times a second, what all processes of an executor have in memory. Pages that they share, as
    forked processes do, count once."""

    def __init__(self) -> None:
        self.samples: list[Taken] = []
        self._started_s = time.perf_counter()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "ExecutorWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            java_bytes = python_bytes = worker_bytes = 0
            for pid in executor_processes():
                own_bytes, resident_bytes = memory_of(pid)
                if _read(pid, "comm") == b"java\n":
                    java_bytes += own_bytes
                else:
                    python_bytes += own_bytes
                    worker_bytes = max(worker_bytes, resident_bytes)
            self.samples.append(Taken(time.perf_counter() - self._started_s, java_bytes, python_bytes, worker_bytes))


def executor_processes() -> set[int]:
    """Executors below this process, and all below them."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _read(int(name), "stat")):
            parents[int(name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    ours = _with_all_below({os.getpid()}, parents)
    return _with_all_below({pid for pid in ours if EXECUTOR_CLASS in _read(pid, "cmdline")}, parents)


def _with_all_below(roots: set[int], parents: dict[int, int]) -> set[int]:
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def memory_of(pid: int) -> tuple[int, int]:
    """Its share of the pages that it has, and all of them."""
    fields = dict(line.split(b":", 1) for line in _read(pid, "smaps_rollup").splitlines()[1:])
    if not fields:
        return 0, 0
    share, resident = (1024 * int(fields[name].split()[0]) for name in (b"Pss", b"Rss"))
    return share, resident


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended
