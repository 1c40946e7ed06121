"""A shuffle through the store, beside Spark's own and beside what the model predicts.

    python bench/shuffle.py --out figures.json --images docs/images     an hour; all plots
    python bench/shuffle.py --quick                ten minutes
    python bench/shuffle.py --only model           without Spark: core, model

`model` runs batcher, caches and debatcher over the latency model of S3 in virtual time: its latencies and requests do
not depend on this machine. `core` is CPU per byte without a store's waiting. `executors` are processes of their own, in
real time. `zones` are Spark's executors in two and in three zones: their requests, and where reduce tasks run.
`saturated` are Spark's executors that shuffle as fast as they can, over the same model. `memory` shuffles 20 GB through
an executor that has 1 GiB for all of its processes. `spark` compares elapsed time and exchanged bytes with the native
shuffle in the same session; `aggregate` is a stream of groups, and `fused` a pipeline from topic to topic, both beside
Spark's own. README.md says what each figure means.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from _shuffle_model import MIB, Outcome, mean, requests_p95_s, run
from braidlog.cache.layers import StoreLayer
from braidlog.cost.prices import MACHINES, S3_STANDARD
from braidlog.cost.shuffle import ShuffleLoad, kafka_bill, native_spark_bill, predict, shuffle_bill
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

GIB = 1 << 30
CORE_PARTITIONS = 200
SCALED_MIB_PER_S = 32
"""The rate of each instance."""
CORE_MIB_PER_FACTOR = 128
Figures = dict[str, Any]

TARGETS = {
    "exchange_bytes_vs_native": 0.01,
    "gets_per_put_2_zones": 0.55,
    "gets_per_put_3_zones": 0.72,
    "model_error_puts": 0.05,
    "model_error_gets": 0.05,
    "executors_model_error_puts": 0.05,
    "executors_model_error_gets": 0.05,
    "elapsed_vs_native_16": 1.1,
    "elapsed_vs_native_200": 1.5,
    "fused_vs_native": 0.6,
    "memory_vs_limit": 1.0,
}
AT_LEAST = {
    "batch_fill_16mib": 0.95,
    "cost_vs_kafka": 40.0,
    "aggregate_vs_native_count": 1.0,
    "reduce_tasks_in_zone": 0.95,
    "t_shuffle_max_holds": 1.0,
}


class Scale:
    def __init__(self, quick: bool) -> None:
        self.batch_mib = (1, 4, 16) if quick else (1, 4, 8, 16, 32, 64, 128)
        self.rate_mib = 96
        self.seconds_min = 6.0 if quick else 12.0
        self.partition_factors = (3, 9) if quick else (3, 6, 9, 18)
        self.core_mib = 256 if quick else 1024
        self.spark_rows = 100_000 if quick else 1_000_000
        self.spark_runs = 2 if quick else 7
        self.spark_warm_ups = 2 if quick else 4
        self.aggregate_batches = 4 if quick else 8
        self.aggregate_runs = 2 if quick else 5
        self.fused_mb = 512 if quick else 2048
        self.fused_runs = 2 if quick else 5
        self.executors = (1, 3) if quick else (1, 2, 3, 4)
        self.executors_s = 4.0 if quick else 10.0
        self.saturated_mib = 48 if quick else 192
        self.saturated_runs = 1 if quick else 3
        self.saturated_sizes = (1, 16) if quick else (1, 4, 8, 16, 32, 64)
        self.saturated_factors = (3, 9) if quick else (3, 6, 9, 18)
        self.saturated_executors = (1, 4) if quick else (1, 2, 3, 4)
        self.quick = quick
        self.memory_gb = 1.0 if quick else 20.0


def load_of(batch_mib: int, scale: Scale, instances: int = 3) -> ShuffleLoad:
    size = batch_mib * MIB
    return ShuffleLoad(
        scale.rate_mib * MIB,
        size,
        zones=3,
        instances=instances,
        interval_s=inf if batch_mib <= 16 else 60.0,
        **requests_p95_s(size),
    )


# ── the model, in virtual time ──


def simulated(batch_mib: int, scale: Scale, partitions: int = 27) -> Outcome:
    load = load_of(batch_mib, scale)
    if load.interval_s == inf:
        load = ShuffleLoad(**{**_fields(load), "interval_s": 1e6})
    # Whole batches of every buffer, and a half: see `described`.
    fill_s = predict(load).batch_fill_s
    seconds = (max(4, round(scale.seconds_min / fill_s)) + 0.5) * fill_s
    outcome = run(load, seconds=seconds, partitions=partitions)
    if outcome.rows_in != outcome.rows_out:
        raise SystemExit(f"{outcome.rows_in} rows went in, and {outcome.rows_out} came out")
    return outcome


def _fields(load: ShuffleLoad) -> dict[str, Any]:
    return {name: getattr(load, name) for name in ShuffleLoad.__dataclass_fields__}


def described(outcome: Outcome) -> Figures:
    load = outcome.load
    stored_bytes = sum(outcome.put_bytes)
    rows_bytes = outcome.rows_in * 1024
    # A run has ends and a steady state has none, so only a window in its middle counts: it leaves out half a batch at
    # its beginning, and at its end those that are closed early.
    predicted = predict(load)
    start_s, end_s = 0.5 * predicted.batch_fill_s, outcome.elapsed_s
    window = [
        size for at_s, size in zip(outcome.put_at_s, outcome.put_bytes, strict=True) if start_s < at_s <= end_s - 1e-9
    ]
    puts_per_s = len(window) / (end_s - start_s)
    gets_per_put = len(outcome.get_s) / len(outcome.put_bytes)
    return {
        "puts_per_s": puts_per_s,
        "puts_per_s_predicted": predicted.puts_per_s,
        "gets_per_s": puts_per_s * gets_per_put,
        "gets_per_s_predicted": predicted.gets_per_s,
        "gets_per_put": gets_per_put,
        "batch_fill": mean(window) / load.batch_bytes,
        "overhead": stored_bytes / rows_bytes,
        "latency_p50_s": outcome.latency(50),
        "latency_p95_s": outcome.latency(95),
        "latency_p99_s": outcome.latency(99),
        "latency_bound_s_predicted": predicted.latency_s_max,
        "put_p95_s": float(np.percentile(outcome.put_s, 95)),
        "get_p95_s": float(np.percentile(outcome.get_s, 95)) if outcome.get_s else 0.0,
        "notifications_per_s": outcome.notifications / outcome.elapsed_s,
    }


def model(scale: Scale) -> Figures:
    figures: Figures = {}
    outcomes: dict[int, Outcome] = {}
    for batch_mib in scale.batch_mib:
        outcomes[batch_mib] = simulated(batch_mib, scale)
        found = described(outcomes[batch_mib])
        figures |= {f"sweep_{batch_mib}mib_{name}": value for name, value in found.items()}
        say(f"batches of {batch_mib} MiB: p95 {found['latency_p95_s']:.2f} s, {found['puts_per_s']:.2f} PUT/s")
    for factor in scale.partition_factors:
        found = described(simulated(16, scale, partitions=3 * factor))
        names = ("latency_p95_s", "latency_bound_s_predicted", "notifications_per_s", "puts_per_s")
        figures |= {f"partitions_x{factor}_{name}": found[name] for name in names}
        # A batch has the partitions of one zone.
        figures[f"partitions_x{factor}_notifications_per_s_predicted"] = found["puts_per_s_predicted"] * factor
        batched_s, debatched_s = core_seconds(CORE_MIB_PER_FACTOR, 3 * factor)
        figures[f"partitions_x{factor}_core_mib_per_s"] = CORE_MIB_PER_FACTOR / (batched_s + debatched_s)
    figures |= scaling()
    at = {name: figures[f"sweep_16mib_{name}"] for name in described(outcomes[16])}
    load = ShuffleLoad(GIB, 16 * MIB, instances=24, fill=min(1.0, at["batch_fill"]), overhead=at["overhead"])
    bill = shuffle_bill(load, S3_STANDARD)
    with_machines = shuffle_bill(load, S3_STANDARD, machine=MACHINES["r6in.xlarge"]).total_usd
    figures |= {
        "p95_s_16mib": at["latency_p95_s"],
        "batch_fill_16mib": at["batch_fill"],
        "t_shuffle_max_holds": float(all(max(each.latency_s) <= each.latency_bound_s for each in outcomes.values())),
        **{f"{name}_s_16mib": percentiles(values) for name, values in distributions(outcomes[16]).items()},
        "model_error_puts": abs(at["puts_per_s"] / at["puts_per_s_predicted"] - 1),
        "model_error_gets": abs(at["gets_per_s"] / at["gets_per_s_predicted"] - 1),
        "usd_per_h_per_gib_s_16mib": bill.total_usd,
        "cost_vs_kafka": kafka_bill(load, S3_STANDARD).total_usd / with_machines,
        "cost_vs_native_spark": native_spark_bill(load, S3_STANDARD).total_usd / with_machines,
    }
    return figures


def scaling() -> Figures:
    """The latency with one to four instances, each with the same load, and what the model says of it."""
    figures: Figures = {}
    for count in (1, 2, 3, 4):
        load = ShuffleLoad(
            count * SCALED_MIB_PER_S * MIB,
            16 * MIB,
            zones=min(3, count),
            instances=count,
            interval_s=1e6,
            **requests_p95_s(16 * MIB),
        )
        predicted = predict(load)
        outcome = run(load, seconds=4.5 * predicted.batch_fill_s, partitions=6 * count)
        figures[f"scaling_{count}_latency_p95_s"] = outcome.latency(95)
        figures[f"scaling_{count}_latency_bound_s_predicted"] = predicted.latency_s_max
    return figures


def distributions(outcome: Outcome) -> dict[str, list[float]]:
    return {"record": outcome.latency_s, "put": outcome.put_s, "get": outcome.get_s}


def percentiles(values: Sequence[float]) -> list[float]:
    return [float(each) for each in np.percentile(values, range(101))]


# ── CPU, without waiting ──


class Dropped:
    """Takes batches and forgets them."""

    async def put(self, key: str, data: object) -> None:
        await asyncio.sleep(0)


def core(scale: Scale) -> Figures:
    """Random records of 1 KiB in and out again, through a store in memory, on one core."""
    batched_s, debatched_s = core_seconds(scale.core_mib, CORE_PARTITIONS)
    return {
        "batch_mib_per_s_core": scale.core_mib / batched_s,
        "debatch_mib_per_s_core": scale.core_mib / debatched_s,
        "mib_per_s_core": scale.core_mib / (batched_s + debatched_s),
    }


def core_seconds(core_mib: int, partitions: int) -> tuple[float, float]:
    """CPU seconds for so much, of batching and of debatching."""
    from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings, BatchWriter, arena_for
    from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings

    rng = np.random.default_rng(1)
    rows_per_chunk = 8 * 1024
    values = pa.array([rng.bytes(1016) for _ in range(rows_per_chunk)], pa.binary())
    keys = rng.integers(0, 1 << 62, rows_per_chunk)
    rows = pa.record_batch({"key": pa.array(keys), "value": values})
    chosen = (keys % partitions).astype(np.int32)
    chunks = core_mib // 8

    arena = arena_for(16 * MIB)

    async def batched(store: BatchWriter) -> tuple[float, Batcher]:
        settings = BatcherSettings("bench", compression="none", linger=0.5)
        batcher = Batcher(store, settings, [""] * partitions, clock=SystemClock(), entropy=SystemEntropy(), arena=arena)
        started_s = time.process_time()
        for _ in range(chunks):
            await batcher.add(rows, chosen)
        await batcher.finish()
        return time.process_time() - started_s, batcher

    async def work() -> tuple[float, float]:
        # What a store in memory keeps is memory that cannot be used again, and a real store does not keep it.
        batched_s, _ = await batched(Dropped())
        store = StoreLayer(MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock()))
        _, batcher = await batched(store)
        debatcher = Debatcher(store, DebatcherSettings())
        by_partition: dict[int, list[Any]] = {}
        for each in batcher.take_finished():
            by_partition.setdefault(each.partition, []).append(each)
        started_s = time.process_time()
        count = 0
        for partition in sorted(by_partition):
            async for found in debatcher.rows(by_partition[partition]):
                count += found.num_rows
        if count != chunks * rows_per_chunk:
            raise SystemExit(f"{count} rows came out, and {chunks * rows_per_chunk} went in")
        return batched_s, time.process_time() - started_s

    asyncio.run(work())
    runs = [asyncio.run(work()) for _ in range(3)]
    batched_s, debatched_s = (statistics.median(each) for each in zip(*runs, strict=True))
    return batched_s, debatched_s


# ── with Spark, and with several processes ──


def spark(scale: Scale) -> Figures:
    import _shuffle_spark

    return _shuffle_spark.repartition(scale.spark_rows, scale.spark_runs, scale.spark_warm_ups)


def memory(scale: Scale) -> Figures:
    import _shuffle_memory

    figures, samples = _shuffle_memory.bounded_memory(scale.memory_gb)
    shown = samples[:: max(1, len(samples) // 500)]
    return figures | {"memory_samples": [[each.at_s, each.java_bytes, each.python_bytes] for each in shown]}


def zones(scale: Scale) -> Figures:
    import _shuffle_zones

    figures = _shuffle_zones.figures_of(2, quick=scale.quick) | _shuffle_zones.figures_of(3, quick=scale.quick)
    in_zone = [value for name, value in figures.items() if name.startswith("reduce_tasks_in_zone_") and "min" in name]
    return figures | {"reduce_tasks_in_zone": min(in_zone)}


def saturated(scale: Scale) -> Figures:
    import _shuffle_saturated

    load = _shuffle_saturated.Load(scale.saturated_mib, scale.saturated_runs)
    return _shuffle_saturated.saturated(
        scale.saturated_sizes, scale.saturated_factors, scale.saturated_executors, load, say
    )


def executors(scale: Scale) -> Figures:
    import _shuffle_executors

    figures = _shuffle_executors.executors(scale.executors, scale.executors_s)
    for count in scale.executors:
        say(
            f"{count} executors: {figures[f'executors_{count}_mib_per_s']:.1f} MiB/s,"
            f" {figures[f'executors_{count}_puts_per_s']:.2f} PUT/s"
        )
    return figures


def aggregate(scale: Scale) -> Figures:
    import _shuffle_aggregate

    return _shuffle_aggregate.aggregate(1_000_000, scale.aggregate_batches, scale.aggregate_runs)


def fused(scale: Scale) -> Figures:
    import _shuffle_aggregate

    return _shuffle_aggregate.fused(scale.fused_mb, scale.fused_runs)


SCENARIOS: dict[str, Callable[[Scale], Figures]] = {
    "model": model,
    "core": core,
    "executors": executors,
    "zones": zones,
    "saturated": saturated,
    "spark": spark,
    "aggregate": aggregate,
    "fused": fused,
    "memory": memory,
}


def each_alone(
    names: Sequence[str], run_alone: Callable[[str, Path], bool], out: Path | None
) -> tuple[Figures, list[str]]:
    """Runs each scenario by itself, and keeps its figures as soon as it has ended. The second result names those that
    failed."""
    figures: Figures = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
        for name in names:
            found = Path(folder) / f"{name}.json"
            if not run_alone(name, found):
                failed.append(name)
                say(f"FAILED {name}")
                continue
            figures |= json.loads(found.read_text())
            if out is not None:
                out.write_text(json.dumps(figures, indent=2))
    return figures, failed


def in_own_process(name: str, out: Path, *, quick: bool) -> bool:
    """A process has one JVM, which keeps the settings and the environment of its first session. So each scenario has
    a process of its own."""
    command = [sys.executable, __file__, "--only", name, "--out", str(out), *(["--quick"] if quick else [])]
    return subprocess.run(command, check=False).returncode == 0 and out.exists()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def draw(figures: Figures, folder: Path) -> None:
    try:
        import _shuffle_plots
    except ImportError:
        say("no plots: matplotlib is not installed")
        return
    for path in _shuffle_plots.draw_all(figures, folder):
        say(f"plot {path}")


def verdict(name: str, value: float, good: bool, target: str) -> None:
    say(f"{'ok  ' if good else 'MISS'} {name:<28} {value:.4g} ({target})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--images", type=Path, help="the folder for plots")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append")
    arguments = parser.parse_args()
    names = arguments.only or list(SCENARIOS)
    if len(names) == 1:
        say(f"── {names[0]}")
        figures, failed = SCENARIOS[names[0]](Scale(arguments.quick)), []
    else:
        figures, failed = each_alone(names, partial(in_own_process, quick=arguments.quick), arguments.out)
    for name, target in TARGETS.items():
        if name in figures:
            verdict(name, figures[name], figures[name] <= target, f"at most {target:.4g}")
    for name, target in AT_LEAST.items():
        if name in figures:
            verdict(name, figures[name], figures[name] >= target, f"at least {target:.4g}")
    text = json.dumps(figures, indent=2)
    if arguments.out is None:
        print(text)
    else:
        arguments.out.write_text(text)
    if arguments.images is not None:
        draw(figures, arguments.images)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
