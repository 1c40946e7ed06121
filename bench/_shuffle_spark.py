"""`BlobShuffle` on Spark, beside Spark's own shuffle."""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Figures = dict[str, Any]
RECORD_BYTES = 1024
FILES = 4
ROW_GROUP_ROWS = 16_384
"""Spark's reader holds a whole one in memory. Were it all of a file, both tasks together would fill half of the heap,
and what is measured would be the garbage collector, which then never comes to an end."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def random_records(count: int, seed: int) -> pa.Table:
    """Records of random bytes, and their key, which is the first eight of them."""
    raw = np.random.default_rng(seed).integers(0, 256, (count, RECORD_BYTES), dtype=np.uint8)
    bounds = np.arange(0, (count + 1) * RECORD_BYTES, RECORD_BYTES, dtype=np.int32)
    values = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), pa.py_buffer(raw)])
    return pa.table({"key": raw[:, :8].copy().view(np.int64)[:, 0], "value": values})


def repartition(rows: int, runs: int, warm_ups: int) -> Figures:
    """Elapsed and CPU time of `repartition` into nothing, beside the native one in the same session. The first rounds
    are `warm_ups`, which do not count: the JVM compiles what both ways run, and takes several rounds for it."""
    from braidlog.spark import create_session
    from braidlog.spark.shuffle import BlobShuffle

    session = create_session("local[2]", progress=False)
    figures: Figures = {"spark_gb": rows * RECORD_BYTES / 1e9}
    try:
        with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
            (Path(folder) / "rows").mkdir()
            for number in range(FILES):
                table = random_records(rows // FILES, number)
                pq.write_table(
                    table,
                    f"{folder}/rows/{number}.parquet",
                    compression="none",
                    use_dictionary=False,
                    row_group_size=ROW_GROUP_ROWS,
                )
            df = session.read.parquet(f"{folder}/rows")
            shuffle = BlobShuffle(f"file://{folder}/store", compression="none")
            for partitions in (16, 200):
                ways = {
                    "native": df.repartition(partitions, "key"),
                    "blob": shuffle.repartition(df, partitions, "key"),
                }
                found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in ways}
                for run in range(warm_ups + runs):
                    for name, way in ways.items():
                        measured = timed(session, way)
                        if run >= warm_ups:
                            found[name].append(measured)
                for number, what in enumerate(("elapsed", "cpu")):
                    taken = {name: [float(each[number]) for each in measures] for name, measures in found.items()}
                    for name, seconds in taken.items():
                        figures[f"{what}_{name}_{partitions}_s"] = statistics.median(seconds)
                    figures[f"{what}_vs_native_{partitions}"] = ratio_of_rounds(taken["blob"], taken["native"])
                if partitions == 16:
                    figures["exchange_bytes_vs_native"] = found["blob"][-1][2] / found["native"][-1][2]
            shuffle.stop()
    finally:
        session.stop()
    return figures


def ratio_of_rounds(seconds: list[float], native_s: list[float]) -> float:
    """The median over rounds. What else the machine does changes from one round to the next, and less within one."""
    return statistics.median(one / other for one, other in zip(seconds, native_s, strict=True))


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
    """Return the CPU time of this process and all below it, including ended ones."""
    return sum(int(number) for stat in family().values() for number in stat[12:16]) / TICKS_PER_S
