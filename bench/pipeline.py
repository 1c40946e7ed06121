"""Measures the cost of the data pipeline for each core.

It converts records to columns and back, compacts, and works off a backlog on Spark.

    python bench/pipeline.py --out figures.json     about ten minutes
    python bench/pipeline.py --quick                about three minutes

All but `source` and `rounds` run on one core, and time is the process's CPU time, so that neighbours disturb little.
Every such figure is the median of its runs after a warm-up. README.md says what each one means.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _pipeline_records import Partition

MB = 1e6
RUNS = 5
SMALL_VALUE_BYTES = 90
"""With a key of 10 bytes, a record of 100."""
LARGE_VALUE_BYTES = 1014
"""With a key of 10 bytes, a record of 1 KiB."""
BATCH_BYTES = 1_000_000

TARGETS: dict[str, float] = {
    "decode_records_per_s_core": 10e6,
    "encode_mb_per_s_core": 1000,
    "source_vs_arrow_scan": 0.6,
    "compaction_mb_per_s_core": 400,
    "compaction_growth_10x": 1.2,
    "two_executors_vs_one": 1.7,
    "spark_share_of_bytes": 1.0,
    "local2_vs_process": 1.0,
}
LOWER_IS_BETTER = {"compaction_growth_10x"}

Figures = dict[str, Any]


class Scale:
    """How much is done."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.runs = 3 if quick else RUNS
        self.column_bytes = 16_000_000 if quick else 64_000_000
        self.aiokafka_records = 50_000 if quick else 200_000
        self.compaction_records = 200_000 if quick else 1_000_000
        """Growth is measured up to ten times as many."""
        self.source_mb = 256 if quick else 1024


def cpu_s(work: Callable[[], object]) -> float:
    started_s = time.process_time()
    work()
    return time.process_time() - started_s


def median_cpu_s(work: Callable[[], object], runs: int) -> float:
    work()
    return statistics.median(cpu_s(work) for _ in range(runs))


def partition_of(value_bytes: int, record_count: int, key_count: int, batch_records: int | None = None) -> Partition:
    batch_records = batch_records or (1_000 if value_bytes >= 1_000 else 10_000)
    extent_batches = max(1, 10_000 // batch_records)
    return Partition(record_count, key_count, value_bytes, batch_records, extent_batches)


# ── scenarios ──


def decode(scale: Scale) -> Figures:
    """All columns but headers, out of 1 MB batches that are not compressed; CRCs are checked."""
    from braidlog.records.arrow import ExtentBytes, PartitionRange, iter_decoded

    figures: Figures = {}
    for name, value_bytes in (("decode", SMALL_VALUE_BYTES), ("decode_1k", LARGE_VALUE_BYTES)):
        count = scale.column_bytes // (value_bytes + 10) // 10_000 * 10_000
        partition = partition_of(value_bytes, count, count)
        extents = [ExtentBytes(base, data, end) for (base, end), data in partition.read_all()]

        def run(extents: list[ExtentBytes] = extents, count: int = count) -> None:
            rows = sum(batch.num_rows for batch in iter_decoded(extents, PartitionRange("bench", 0)))
            if rows != count:
                raise RuntimeError(f"{rows} of {count} records were decoded")

        spent_s = median_cpu_s(run, scale.runs)
        figures[f"{name}_records_per_s_core"] = count / spent_s
        figures[f"{name}_mb_per_s_core"] = partition.size_bytes / MB / spent_s
    return figures | decode_beside_aiokafka(scale)


def decode_beside_aiokafka(scale: Scale) -> Figures:
    """The same batches, decoded in turn by aiokafka's compiled decoder and by this one: a ratio that machines share."""
    from aiokafka.record.default_records import DefaultRecordBatch

    from braidlog.records.arrow import ExtentBytes, PartitionRange, iter_decoded

    partition = partition_of(SMALL_VALUE_BYTES, scale.aiokafka_records, scale.aiokafka_records)
    extents = [ExtentBytes(base, data, end) for (base, end), data in partition.read_all()]
    batch_bytes = partition.size_bytes // (partition.record_count // partition.batch_records)
    batches = [
        bytearray(extent.data[start : start + batch_bytes])
        for extent in extents
        for start in range(0, len(extent.data), batch_bytes)
    ]

    def theirs() -> None:
        for data in batches:
            batch = DefaultRecordBatch(data)
            if not batch.validate_crc():
                raise RuntimeError("CRC does not match")
            for record in batch:
                record.offset, record.timestamp, record.key, record.value  # noqa: B018

    def ours() -> None:
        for _ in iter_decoded(extents, PartitionRange("bench", 0)):
            pass

    ours()
    theirs()
    pairs = [(cpu_s(theirs), cpu_s(ours)) for _ in range(scale.runs)]
    return {
        "aiokafka_decode_records_per_s_core": partition.record_count / statistics.median(pair[0] for pair in pairs),
        "decode_vs_aiokafka": statistics.median(theirs_s / ours_s for theirs_s, ours_s in pairs),
    }


def encode(scale: Scale) -> Figures:
    """Columns of key, value and timestamp into batches of 1 MB, as they are and compressed."""
    from braidlog.records.arrow import ExtentBytes, PartitionRange, decode_extents, encode_batches
    from braidlog.records.codec import Codec

    figures: Figures = {}
    for name, value_bytes in (("encode_100b", SMALL_VALUE_BYTES), ("encode", LARGE_VALUE_BYTES)):
        count = scale.column_bytes // (value_bytes + 10) // 10_000 * 10_000
        partition = partition_of(value_bytes, count, count)
        tables = [
            decode_extents(
                [ExtentBytes(base, data, end)], PartitionRange("bench", 0), columns=["key", "value", "timestamp"]
            ).combine_chunks()
            for (base, end), data in partition.read_all()
        ]

        def run(codec: Codec, tables: list[Any] = tables) -> int:
            return sum(len(encode_batches(each, batch_bytes_max=BATCH_BYTES, codec=codec).data) for each in tables)

        spent_s = median_cpu_s(lambda: run(Codec.NONE), scale.runs)
        figures[f"{name}_mb_per_s_core"] = run(Codec.NONE) / MB / spent_s
    return figures


def compact_once(partition: Partition) -> float:
    """CPU time of a compaction of the whole partition, without that of making its data."""
    from braidlog.compaction.key_collector import KeyCollector
    from braidlog.compaction.limits import CompactionLimits
    from braidlog.compaction.rewriter import Rewriter
    from braidlog.compaction.rules import Rules
    from braidlog.records.arrow import ExtentBytes

    made_before_s = partition.made_cpu_s
    started_s = time.process_time()
    rules, limits = Rules(now_ms=0, delete_retention_ms=0), CompactionLimits()
    collector = KeyCollector(dirty_offset=0, rules=rules, seed=bytes(16), limits=limits)
    for extent in partition.extents:
        if collector.wants(extent.end_offset):
            collector.add(ExtentBytes(extent.base_offset, partition.read(extent), extent.end_offset))
    rewriter = Rewriter[Any](collector.finish(), limits)
    records_out = 0
    for extent in partition.extents:
        if rewriter.wants(extent):
            records_out += sum(run.summary.record_count for run in rewriter.add(extent, partition.read(extent)))
    records_out += sum(run.summary.record_count for run in rewriter.finish())
    spent_s = time.process_time() - started_s - (partition.made_cpu_s - made_before_s)
    if records_out != partition.distinct_keys():
        raise RuntimeError(f"{records_out} records are left of {partition.distinct_keys()} keys")
    return spent_s


def compaction(scale: Scale) -> Figures:
    """1 KiB records, five for each key at random, from the reading of extents to finished objects."""
    count = scale.compaction_records
    small = partition_of(LARGE_VALUE_BYTES, count, count // 5)
    large = partition_of(LARGE_VALUE_BYTES, 10 * count, 2 * count)
    fine = partition_of(LARGE_VALUE_BYTES, count // 5, count // 25, batch_records=16)
    compact_once(fine)
    small_s = statistics.median(compact_once(small) for _ in range(scale.runs))
    large_s = compact_once(large)
    return {
        "compaction_mb_per_s_core": small.size_bytes / MB / small_s,
        "compaction_10x_mb_per_s_core": large.size_bytes / MB / large_s,
        "compaction_growth_10x": large_s / 10 / small_s,
        "compaction_16k_batches_mb_per_s_core": fine.size_bytes / MB / compact_once(fine),
    }


def source(scale: Scale) -> Figures:
    """A topic of 1 KiB records through Spark, beside the same columns in Arrow files: wall time, on all cores."""
    from _source import measure

    return dict(measure(scale.source_mb, scale.runs))


def rounds(scale: Scale) -> Figures:
    """A backlog of small objects, merged and compacted by rounds on Spark: wall time, without the start of Spark."""
    from _rounds import measure

    return dict(measure(scale.quick))


SCENARIOS: dict[str, Callable[[Scale], Figures]] = {
    "decode": decode,
    "encode": encode,
    "compaction": compaction,
    "source": source,
    "rounds": rounds,
}


# ── report ──


def surroundings(quick: bool) -> Figures:
    packages = ("numpy", "numba", "pyarrow", "aiokafka", "crc32c", "braidlog")
    return {
        "quick": quick,
        "load_average": os.getloadavg()[0],
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        **{name: version(name) for name in packages},
    }


def show(figures: Figures) -> None:
    for name, value in figures.items():
        if not isinstance(value, float):
            continue
        target = TARGETS.get(name)
        verdict = ""
        if target is not None:
            is_met = value <= target if name in LOWER_IS_BETTER else value >= target
            verdict = (
                f"{'at most' if name in LOWER_IS_BETTER else 'at least'} {target:,.6g}: {'yes' if is_met else 'NO'}"
            )
        print(f"{name:40} {value:>16,.6g}  {verdict}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as one flat JSON object")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append", help="repeat for more; all by default")
    options = parser.parse_args()
    gc.disable()
    scale = Scale(options.quick)
    figures: Figures = {}
    for name in options.only or SCENARIOS:
        started_s = time.perf_counter()
        figures |= SCENARIOS[name](scale)
        print(f"{name}: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    figures = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value
        for name, value in (figures | surroundings(options.quick)).items()
    }
    show(figures)
    text = json.dumps(figures, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
