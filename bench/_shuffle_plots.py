"""The evaluation's figures: latencies, batch sizes, cost, partitions, executors and memory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _plotting import styled_pyplot
from _shuffle_memory import Taken
from _shuffle_model import MIB, Outcome
from braidlog.cost.prices import MACHINES, S3_STANDARD
from braidlog.cost.shuffle import ShuffleLoad, kafka_bill, native_spark_bill, shuffle_bill

Figures = dict[str, Any]
GIB = 1 << 30
Panel = tuple[str, str, str | None]
"""A title, what was measured, and what the model says of it."""
_PREDICTIONS = {"latency_bound_s_predicted": "bound of the model", "mib_per_s_offered": "offered"}


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
    """Plot the effect of the batch size, in the run and in the model."""
    plt = styled_pyplot()
    figure, axes = plt.subplots(2, 3, figsize=(11, 6))
    panels: list[Panel] = [
        ("PUTs a second", "puts_per_s", "puts_per_s_predicted"),
        ("GETs a second", "gets_per_s", "gets_per_s_predicted"),
        ("GETs per PUT", "gets_per_put", None),
        ("latency p95, s", "latency_p95_s", "latency_bound_s_predicted"),
        ("size of batches, of the target", "batch_fill", None),
    ]
    for axis, panel in zip(axes.flat, panels, strict=False):
        _measured_and_predicted(axis, figures, "sweep_{}mib", sizes_mib, panel, logarithmic=panel[2] is not None)
        _sizes_axis(axis, sizes_mib)
    axis = axes.flat[-1]
    axis.plot(sizes_mib, [_usd_per_h(figures, size) for size in sizes_mib], "o-", label="store")
    axis.axhline(_other_usd(native_spark_bill), linestyle="--", label="native Spark, between zones")
    axis.axhline(_other_usd(kafka_bill), linestyle=":", label="Kafka, between zones")
    axis.set(title="USD an hour for 1 GiB/s", yscale="log")
    _sizes_axis(axis, sizes_mib)
    axis.set(ylim=(None, 20_000))
    axis.legend(loc="upper right")
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
    panels: list[Panel] = [
        ("MiB a second of one core", "core_mib_per_s", None),
        ("latency p95, s", "latency_p95_s", "latency_bound_s_predicted"),
        ("notifications a second", "notifications_per_s", "notifications_per_s_predicted"),
    ]
    for axis, panel in zip(axes, panels, strict=True):
        _measured_and_predicted(axis, figures, "partitions_x{}", factors, panel)
        axis.set(xlabel="partitions of each instance")
    _save(plt, figure, folder / "shuffle-partitions.png")


def executors_figure(figures: Figures, counts: Sequence[int], folder: Path) -> None:
    plt = styled_pyplot()
    figure, axes = plt.subplots(1, 4, figsize=(12, 3))
    panels: list[Panel] = [
        ("MiB a second", "mib_per_s", "mib_per_s_offered"),
        ("PUTs a second", "puts_per_s", "puts_per_s_predicted"),
        ("GETs a second", "gets_per_s", "gets_per_s_predicted"),
        ("latency p95, s", "latency_p95_s", "latency_bound_s_predicted"),
    ]
    for axis, panel in zip(axes, panels, strict=True):
        _measured_and_predicted(axis, figures, "executors_{}", counts, panel)
        axis.set(xlabel="executors")
    _save(plt, figure, folder / "shuffle-executors.png")


def memory_figure(samples: Sequence[Taken], limit_mib: int, folder: Path) -> None:
    """Plot the memory of the executor's processes while it worked."""
    plt = styled_pyplot()
    figure, axis = plt.subplots(figsize=(6, 3))
    at_s = [each.at_s for each in samples]
    java_mib = np.array([each.java_bytes for each in samples]) / MIB
    python_mib = np.array([each.python_bytes for each in samples]) / MIB
    axis.stackplot(at_s, java_mib, python_mib, labels=["JVM", "Python"], alpha=0.7)
    axis.axhline(limit_mib, linestyle="--", label="limit")
    axis.set(xlabel="seconds", ylabel="MiB of the executor", ylim=(0, 1.3 * limit_mib))
    axis.legend(loc="upper left", ncols=3)
    _save(plt, figure, folder / "shuffle-memory.png")


def _measured_and_predicted(
    axis: Any, figures: Figures, prefix: str, places: Sequence[int], panel: Panel, *, logarithmic: bool = False
) -> None:
    title, measured, predicted = panel
    highest = 0.0
    for name, line, label in ((measured, "o-", "run"), (predicted, "x--", _PREDICTIONS.get(predicted or "", "model"))):
        if name is not None:
            values = [figures[f"{prefix.format(each)}_{name}"] for each in places]
            axis.plot(places, values, line, label=label)
            highest = max(highest, *values)
    axis.set(title=title, xticks=list(places))
    axis.set(**({"yscale": "log"} if logarithmic else {"ylim": (0, 1.15 * highest or 1.0)}))
    axis.legend()


def _sizes_axis(axis: Any, sizes_mib: Sequence[int]) -> None:
    axis.set(xlabel="MiB a batch", xscale="log")
    axis.set_xticks(sizes_mib, labels=[str(size) for size in sizes_mib])
    axis.minorticks_off()


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
