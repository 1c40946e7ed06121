"""The evaluation's figures: latencies, batch sizes, cost, partitions and executors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _plotting import styled_pyplot
from _shuffle_model import MIB, Outcome
from braidlog.cost.prices import MACHINES, S3_STANDARD
from braidlog.cost.shuffle import ShuffleLoad, kafka_bill, native_spark_bill, shuffle_bill

Figures = dict[str, Any]
GIB = 1 << 30


def latency_figure(outcome: Outcome, folder: Path) -> None:
    """How long records, PUTs and GETs take, as cumulative distributions."""
    plt = styled_pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    for axis, (name, values) in zip(
        axes, {"record": outcome.latency_s, "PUT": outcome.put_s, "GET": outcome.get_s}.items(), strict=True
    ):
        axis.plot(np.sort(values), np.linspace(0, 1, len(values)))
        axis.axvline(np.percentile(values, 95), linestyle=":", label=f"p95 {np.percentile(values, 95):.2f} s")
        axis.set(title=f"{name}, batches of 16 MiB", xlabel="seconds", ylim=(0, 1))
        axis.legend()
    _save(plt, figure, folder / "shuffle-latency.png")


def sweep_figure(figures: Figures, sizes_mib: Sequence[int], folder: Path) -> None:
    """What the size of batches does, in the run and in the model."""
    plt = styled_pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6))
    panels: list[tuple[str, str, str | None]] = [
        ("PUTs a second", "puts_per_s", "puts_per_s_predicted"),
        ("GETs a second", "gets_per_s", "gets_per_s_predicted"),
        ("GETs per PUT", "gets_per_put", None),
        ("latency p95, s", "latency_p95_s", "latency_bound_s_predicted"),
        ("size of batches, of the target", "batch_fill", None),
    ]
    for axis, (title, measured, predicted) in zip(axes.flat, panels, strict=False):
        axis.plot(sizes_mib, _column(figures, sizes_mib, measured), "o-", label="run")
        if predicted is not None:
            axis.plot(sizes_mib, _column(figures, sizes_mib, predicted), "x--", label="model")
            axis.set(yscale="log")
        else:
            axis.set(ylim=(0, 1.1))
        axis.set(title=title, xlabel="MiB a batch", xscale="log")
        axis.legend()
    axis = axes.flat[-1]
    axis.plot(sizes_mib, [_usd_per_h(figures, size) for size in sizes_mib], "o-", label="store")
    axis.axhline(_other_usd(native_spark_bill), linestyle="--", label="native Spark, between zones")
    axis.axhline(_other_usd(kafka_bill), linestyle=":", label="Kafka, between zones")
    axis.set(title="USD an hour for 1 GiB/s", xlabel="MiB a batch", xscale="log", yscale="log")
    axis.legend()
    _save(plt, figure, folder / "shuffle-sweep.png")


def cost_figure(figures: Figures, sizes_mib: Sequence[int], folder: Path) -> None:
    """Latency against cost, of store and machines together."""
    plt = styled_pyplot()
    figure, axis = plt.subplots(figsize=(5, 3.5))
    usd = [_usd_per_h(figures, size, machines=True) for size in sizes_mib]
    latency_s = _column(figures, sizes_mib, "latency_p95_s")
    axis.plot(usd, latency_s, "o-")
    for size, x, y in zip(sizes_mib, usd, latency_s, strict=True):
        axis.annotate(f"{size} MiB", (x, y), textcoords="offset points", xytext=(4, 4))
    axis.set(xlabel="USD an hour for 1 GiB/s", ylabel="latency p95, s", xscale="log", yscale="log")
    _save(plt, figure, folder / "shuffle-cost.png")


def partitions_figure(figures: Figures, factors: Sequence[int], folder: Path) -> None:
    plt = styled_pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    panels = {
        "MiB a second of one core": "core_mib_per_s",
        "latency p95, s": "latency_p95_s",
        "notifications a second": "notifications_per_s",
    }
    for axis, (title, name) in zip(axes, panels.items(), strict=True):
        axis.plot(factors, [figures[f"partitions_x{each}_{name}"] for each in factors], "o-", label="run")
        if f"partitions_x{factors[0]}_{name}_predicted" in figures:
            predicted = [figures[f"partitions_x{each}_{name}_predicted"] for each in factors]
            axis.plot(factors, predicted, "x--", label="model")
        axis.set(title=title, xlabel="partitions of each instance", ylim=(0, None))
        axis.legend()
    _save(plt, figure, folder / "shuffle-partitions.png")


def executors_figure(figures: Figures, counts: Sequence[int], folder: Path) -> None:
    plt = styled_pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    for axis, (title, measured, predicted) in zip(
        axes,
        [
            ("MiB a second", "mib_per_s", None),
            ("PUTs a second", "puts_per_s", "puts_per_s_predicted"),
            ("latency p95, s", "latency_p95_s", "latency_bound_s_predicted"),
        ],
        strict=True,
    ):
        axis.plot(counts, [figures[f"executors_{each}_{measured}"] for each in counts], "o-", label="run")
        if predicted is not None:
            axis.plot(counts, [figures[f"executors_{each}_{predicted}"] for each in counts], "x--", label="model")
        axis.set(title=title, xlabel="executors", ylim=(0, None), xticks=list(counts))
        axis.legend()
    _save(plt, figure, folder / "shuffle-executors.png")


def _column(figures: Figures, sizes_mib: Sequence[int], name: str) -> list[float]:
    return [figures[f"sweep_{size}mib_{name}"] for size in sizes_mib]


def _usd_per_h(figures: Figures, size_mib: int, *, machines: bool = False) -> float:
    fill = min(1.0, figures[f"sweep_{size_mib}mib_batch_fill"])
    overhead = figures[f"sweep_{size_mib}mib_overhead"]
    load = ShuffleLoad(GIB, size_mib * MIB, instances=24, fill=fill, overhead=overhead)
    return shuffle_bill(load, S3_STANDARD, machine=MACHINES["r6in.xlarge"] if machines else None).total_usd


def _other_usd(bill: Any) -> float:
    found: float = bill(ShuffleLoad(GIB, 16 * MIB), S3_STANDARD).total_usd
    return found


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
