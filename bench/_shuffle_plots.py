"""The figures of the published evaluation, from our runs and beside its own points.

They are drawn from figures alone, so that a run can be drawn again: python bench/_shuffle_plots.py figures.json FOLDER
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _plotting import styled_pyplot
from braidlog.cost.prices import MACHINES, S3_STANDARD
from braidlog.cost.shuffle import ShuffleLoad, kafka_bill, native_spark_bill, shuffle_bill

Figures = dict[str, Any]
Points = Sequence[tuple[float, float]]
MIB = 1 << 20
GIB = 1 << 30
SIZES_MIB = (1, 4, 8, 16, 32, 64, 128)
FACTORS = (3, 6, 9, 12, 18)
COUNTS = (1, 2, 3, 4)
MACHINE = MACHINES["r6in.xlarge"]
LIMIT_MIB = 1024

# The published evaluation: 24 instances on 12 nodes in three zones of AWS, as far as its text has numbers.
PAPER_RECORD_S = ((1.07, 0.50), (1.73, 0.95), (2.24, 0.99))
PAPER_NODE_MIB = ((16, 116.7), (32, 122.2))
PAPER_P95_S = ((16, 1.73),)
PAPER_RATIO = tuple((size, 2 / 3) for size in SIZES_MIB)
PAPER_FILL = ((16, 0.975), (32, 0.975), (128, 0.90))
PAPER_STORE_USD = ((1, 20.63), (16, 1.40), (128, 0.29))
PAPER_MACHINES_USD = ((16, 3.06), (32, 3.00), (64, 3.00))
PAPER_COST = ((4.46, 1.73),)
PAPER_PARTITIONS = ((3, 1.0), (9, 0.74))
PAPER_NODES = ((3, 0.37 * 1024), (6, 6 * 144.2), (12, 12 * 116.7), (24, 2.39 * 1024))
PAPER_NODES_P95_S = ((6, 1.56), (12, 1.73), (24, 1.88))


def draw_all(figures: Figures, folder: Path) -> Iterator[Path]:
    """Draw every figure whose runs are there."""
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, tuple[str, Callable[[Any, Figures], Any]]] = {
        "shuffle-latency.png": ("record_s_16mib", latency_figure),
        "shuffle-sweep.png": ("sweep_16mib_puts_per_s", sweep_figure),
        "shuffle-cost.png": ("sweep_16mib_puts_per_s", cost_figure),
        "shuffle-partitions.png": ("partitions_x3_latency_p95_s", partitions_figure),
        "shuffle-executors.png": ("real_1ex_mib_per_s", executors_figure),
        "shuffle-memory.png": ("memory_samples", memory_figure),
    }
    plt = styled_pyplot()
    for name, (needed, drawing) in drawings.items():
        if needed in figures:
            figure = drawing(plt, figures)
            figure.tight_layout()
            figure.savefig(folder / name, dpi=110)
            plt.close(figure)
            yield folder / name


def latency_figure(plt: Any, figures: Figures) -> Any:
    """Figure 6: how long records, PUTs and GETs take, as cumulative distributions."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3))
    shares = [percent / 100 for percent in range(101)]
    for axis, (name, title) in zip(
        axes, {"record": "6a record", "put": "6b PUT", "get": "6c GET"}.items(), strict=True
    ):
        axis.plot(figures[f"{name}_s_16mib"], shares, label="virtual time")
        if figures.get(f"real_{name}_s"):
            axis.plot(figures[f"real_{name}_s"], shares, "--", label="executors")
        if name == "record":
            _paper(axis, PAPER_RECORD_S)
        axis.set(title=f"{title}, batches of 16 MiB", xlabel="seconds", ylim=(0, 1.02), xlim=(0, None))
        axis.legend(loc="lower right")
    return figure


def sweep_figure(plt: Any, figures: Figures) -> Any:
    """Figure 7: the effect of the batch size."""
    figure, axes = plt.subplots(3, 3, figsize=(12, 9))
    a, b, c, d, e, f, g, h, i = axes.flat
    _real(a, figures, "real_{}mib", SIZES_MIB, "mib_per_s", ranged=True)
    a.set(title="7a MiB a second, 3 executors")
    _real(b, figures, "real_{}mib", SIZES_MIB, "mib_per_s", scale=1 / 3)
    b.set(title="7b MiB a second for each executor (paper: node)")
    _paper(b, PAPER_NODE_MIB)
    _virtual(c, figures, "sweep_{}mib", SIZES_MIB, "latency_p95_s")
    _virtual(c, figures, "sweep_{}mib", SIZES_MIB, "latency_bound_s_predicted", "x:", "bound of the model")
    _paper(c, PAPER_P95_S)
    c.set(title="7c latency p95, s")
    for axis, name, title in ((d, "puts", "7d PUTs"), (e, "gets", "7e GETs")):
        _virtual(axis, figures, "sweep_{}mib", SIZES_MIB, f"{name}_per_s")
        _virtual(axis, figures, "sweep_{}mib", SIZES_MIB, f"{name}_per_s_predicted", "x:", "model")
        axis.set(title=f"{title} a second at 96 MiB/s", yscale="log")
    _real(f, figures, "real_{}mib", SIZES_MIB, "gets_per_put")
    _virtual(f, figures, "sweep_{}mib", SIZES_MIB, "gets_per_put")
    _paper(f, PAPER_RATIO)
    f.set(title="7f GETs per PUT", ylim=(0, 1.1))
    _virtual(g, figures, "sweep_{}mib", SIZES_MIB, "batch_fill")
    _paper(g, PAPER_FILL)
    g.set(title="7g size of batches, of the target", ylim=(0, 1.1))
    sizes = _there(figures, "sweep_{}mib_puts_per_s", SIZES_MIB)
    h.plot(sizes, [_store_usd(figures, size) for size in sizes], "o-", label="virtual time")
    for line, bill in (("--", native_spark_bill), (":", kafka_bill)):
        name = "Spark's own" if bill is native_spark_bill else "Kafka"
        h.axhline(
            bill(ShuffleLoad(GIB, 16 * MIB), S3_STANDARD).total_usd, linestyle=line, label=f"{name}, between zones"
        )
    _paper(h, PAPER_STORE_USD)
    h.set(title="7h store, USD an hour for 1 GiB/s", yscale="log", ylim=(None, 5000))
    real = _there(figures, "real_{}mib_mib_per_s", SIZES_MIB)
    i.plot(real, [_machines_usd(figures[f"real_{size}mib_mib_per_s"] / 3) for size in real], "s-", label="executors")
    _paper(i, PAPER_MACHINES_USD)
    i.set(title="7i machines, USD an hour for 1 GiB/s", yscale="log")
    for axis in axes.flat:
        axis.set(xlabel="MiB a batch", xscale="log")
        axis.set_xticks(SIZES_MIB, labels=[str(size) for size in SIZES_MIB])
        axis.minorticks_off()
        axis.legend()
    return figure


def cost_figure(plt: Any, figures: Figures) -> Any:
    """Figure 8: latency against cost, with the machines of the paper."""
    figure, axis = plt.subplots(figsize=(5, 3.5))
    sizes = _there(figures, "sweep_{}mib_puts_per_s", SIZES_MIB)
    usd = [_store_usd(figures, size, machines=True) for size in sizes]
    latency_s = [figures[f"sweep_{size}mib_latency_p95_s"] for size in sizes]
    axis.plot(usd, latency_s, "o-", label="virtual time")
    for size, x, y in zip(sizes, usd, latency_s, strict=True):
        axis.annotate(f"{size} MiB", (x, y), textcoords="offset points", xytext=(4, 4))
    _paper(axis, PAPER_COST)
    axis.set(title="8 latency against cost", xlabel="USD an hour for 1 GiB/s", ylabel="latency p95, s")
    axis.set(xscale="log", yscale="log")
    axis.legend()
    return figure


def partitions_figure(plt: Any, figures: Figures) -> Any:
    """Figure 9: the number of partitions."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3))
    first = figures.get("real_x3_mib_per_s")
    if first:
        _real(axes[0], figures, "real_x{}", FACTORS, "mib_per_s", scale=1 / first, ranged=True)
    core = figures.get("partitions_x3_core_mib_per_s")
    if core:
        _virtual(axes[0], figures, "partitions_x{}", FACTORS, "core_mib_per_s", "o-", "one core", scale=1 / core)
    _paper(axes[0], PAPER_PARTITIONS)
    axes[0].set(title="9a throughput, of that with x3", ylim=(0, None))
    _virtual(axes[1], figures, "partitions_x{}", FACTORS, "latency_p95_s")
    axes[1].set(title="9b latency p95, s", ylim=(0, None))
    _virtual(axes[2], figures, "partitions_x{}", FACTORS, "notifications_per_s")
    _virtual(axes[2], figures, "partitions_x{}", FACTORS, "notifications_per_s_predicted", "x:", "model")
    axes[2].set(title="9c notifications a second at 96 MiB/s", ylim=(0, None))
    for axis in axes:
        axis.set(xlabel="partitions for each instance, batches of 16 MiB", xticks=list(FACTORS))
        axis.legend()
    return figure


def executors_figure(plt: Any, figures: Figures) -> Any:
    """Figure 10: the number of executors. The paper's smallest cluster has three nodes, and counts as one."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3))
    one = figures["real_1ex_mib_per_s"]
    times = [(nodes / 3, rate / PAPER_NODES[0][1]) for nodes, rate in PAPER_NODES]
    _real(axes[0], figures, "real_{}ex", COUNTS, "mib_per_s", scale=1 / one, ranged=True)
    _paper(axes[0], times)
    axes[0].set(title="10a throughput, of the smallest")
    counts = _there(figures, "real_{}ex_mib_per_s", COUNTS)
    axes[1].plot(
        counts, [figures[f"real_{count}ex_mib_per_s"] / count / one for count in counts], "s-", label="executors"
    )
    _paper(axes[1], [(x, y / x) for x, y in times])
    axes[1].set(
        title="10b for each, of the smallest", ylim=(0, None), xlabel="executors; paper: nodes, a third of them"
    )
    _virtual(axes[2], figures, "scaling_{}", COUNTS, "latency_p95_s")
    _virtual(axes[2], figures, "scaling_{}", COUNTS, "latency_bound_s_predicted", "x:", "bound of the model")
    _paper(axes[2], [(nodes / 3, latency_s) for nodes, latency_s in PAPER_NODES_P95_S])
    axes[2].set(title="10c latency p95, s", ylim=(0, None))
    for axis in axes:
        axis.set(xlabel="executors; paper: nodes, a third of them")
        axis.legend()
    return figure


def memory_figure(plt: Any, figures: Figures) -> Any:
    """The memory of the executor's processes while it worked."""
    figure, axis = plt.subplots(figsize=(6, 3))
    at_s, java, python = zip(*figures["memory_samples"], strict=True)
    axis.stackplot(
        at_s, [each / MIB for each in java], [each / MIB for each in python], labels=["JVM", "Python"], alpha=0.7
    )
    axis.axhline(LIMIT_MIB, linestyle="--", label="limit")
    axis.set(xlabel="seconds", ylabel="MiB of the executor", ylim=(0, 1.3 * LIMIT_MIB))
    axis.legend(loc="upper left", ncols=3)
    return figure


def _there(figures: Figures, pattern: str, places: Sequence[int]) -> list[int]:
    return [place for place in places if pattern.format(place) in figures]


def _real(
    axis: Any,
    figures: Figures,
    prefix: str,
    places: Sequence[int],
    name: str,
    *,
    scale: float = 1.0,
    ranged: bool = False,
) -> None:
    """Executors of Spark: the median, and the range over repetitions."""
    there = _there(figures, f"{prefix}_{name}", places)
    values = [scale * figures[f"{prefix.format(place)}_{name}"] for place in there]
    axis.plot(there, values, "s-", label="executors")
    if ranged and there:
        low, high = (
            [scale * figures[f"{prefix.format(place)}_{name}_{end}"] for place in there] for end in ("min", "max")
        )
        axis.fill_between(there, low, high, alpha=0.2)


def _virtual(
    axis: Any,
    figures: Figures,
    prefix: str,
    places: Sequence[int],
    name: str,
    line: str = "o-",
    label: str = "virtual time",
    *,
    scale: float = 1.0,
) -> None:
    there = _there(figures, f"{prefix}_{name}", places)
    axis.plot(there, [scale * figures[f"{prefix.format(place)}_{name}"] for place in there], line, label=label)


def _paper(axis: Any, points: Points) -> None:
    axis.plot([x for x, _ in points], [y for _, y in points], "k^", markersize=5, label="paper")


def _store_usd(figures: Figures, size_mib: int, *, machines: bool = False) -> float:
    fill = min(1.0, figures[f"sweep_{size_mib}mib_batch_fill"])
    overhead = figures[f"sweep_{size_mib}mib_overhead"]
    load = ShuffleLoad(GIB, size_mib * MIB, instances=24, fill=fill, overhead=overhead)
    return shuffle_bill(load, S3_STANDARD, machine=MACHINE if machines else None).total_usd


def _machines_usd(mib_per_s: float) -> float:
    """As many of the paper's machines as it takes, if each did what one executor does here."""
    return 1024 / mib_per_s * MACHINE.usd_per_hour


if __name__ == "__main__":
    for made in draw_all(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])):
        print(made)
