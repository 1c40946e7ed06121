"""Measures how much faster Lightning topics acknowledge than classic ones.

Lightning topics acknowledge records when they are stored, classic ones when they are stored and sequenced.

    python bench/lightning.py --out lightning.json     a minute or two; also writes lightning.png
    python bench/lightning.py --quick                  a sixth of it

Latencies of the store (`s3-express`), and of the control plane in the first part, are modelled, and pass in virtual
time: these figures are the same on every machine. The second part measures Braidlog's own sequencer. README.md says
what each figure means.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _lightning_model import CLASSIC, FLOOR, LIGHTNING, Plan, Samples, World
from _lightning_plot import plot
from _lightning_shards import Trickle, count_puts
from _lightning_storm import Storm, measure
from braidlog import __version__
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.logs import configure_logs
from braidlog.sim.virtual import loop as sim_loop
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.network import Network

AT_MOST: dict[str, float] = {
    "p50_vs_classic": 0.5,
    "p50_over_floor": 1.1,
    "p99_over_floor": 1.1,
    "end_to_end_vs_classic": 1.05,
    "trickle_puts_lightning_vs_classic": 1.05,
    "storm_p99_vs_without": 1.5,
}
COMMIT_S = 0.05
"""The assumed duration of a commit at a distant control plane that gathers commits."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    quick: bool
    seed: int


def modelled(options: Options) -> tuple[Figures, dict[str, Samples]]:
    """All three kinds at one agent, in virtual time."""
    plan = Plan(duration_s=10.0 if options.quick else 60.0, commit_s=COMMIT_S)
    with tempfile.TemporaryDirectory() as folder, virtual_loop(options.seed) as (loop, entropy):
        world = World(plan, Path(folder), SimClock(loop), entropy)
        loop.run_until_complete(world.run())
    runs = world.samples
    figures: Figures = {}
    for kind, samples in runs.items():
        figures |= percentiles(f"{kind}_produce", samples.acknowledged_s)
        if kind != FLOOR:
            figures |= percentiles(f"{kind}_end_to_end", samples.visible_s)
    figures |= {
        "p50_vs_classic": figures["lightning_produce_p50_ms"] / figures["classic_produce_p50_ms"],
        "p50_over_floor": figures["lightning_produce_p50_ms"] / figures["floor_produce_p50_ms"],
        "p99_over_floor": figures["lightning_produce_p99_ms"] / figures["floor_produce_p99_ms"],
        "end_to_end_vs_classic": figures["lightning_end_to_end_p50_ms"] / figures["classic_end_to_end_p50_ms"],
        "end_to_end_p99_vs_classic": figures["lightning_end_to_end_p99_ms"] / figures["classic_end_to_end_p99_ms"],
        "requests": len(runs[LIGHTNING].acknowledged_s),
    }
    return figures, runs


def trickle(options: Options) -> Figures:
    """PUTs of a trickle of writes to an agent of eight shards, to one kind of topic alone and to both."""
    figures: Figures = {}
    for name, kinds in (("classic", (CLASSIC,)), ("lightning", (LIGHTNING,)), ("both", (CLASSIC, LIGHTNING))):
        plan = Trickle(kinds, duration_s=30.0 if options.quick else 180.0)
        with tempfile.TemporaryDirectory() as folder, virtual_loop(options.seed) as (loop, entropy):
            puts = loop.run_until_complete(count_puts(plan, Path(folder), loop, entropy))
        figures[f"trickle_{name}_puts_per_s"] = puts / plan.duration_s
    classic, lightning = figures["trickle_classic_puts_per_s"], figures["trickle_lightning_puts_per_s"]
    figures["trickle_puts_lightning_vs_classic"] = lightning / classic
    return figures


@contextmanager
def virtual_loop(seed: int) -> Iterator[tuple[VirtualLoop, SeededEntropy]]:
    entropy = SeededEntropy(seed)
    sim_loop.STEPS_MAX = 100_000_000  # a long run, and not one without an end
    loop = VirtualLoop(entropy)
    loop.network = Network(loop, entropy)
    try:
        yield loop, entropy
    finally:
        loop.close()
    if loop.failures:
        raise RuntimeError(f"something went wrong: {loop.failures[0]}")


def real_sequencer(options: Options) -> Figures:
    """The same store, and the sequencer as it is: behind a socket, with SQLite that syncs to this machine's disk."""
    plan = Plan(
        duration_s=3.0 if options.quick else 15.0, producers=8, pause_s=None, kinds=(CLASSIC, LIGHTNING), over_rpc=True
    )
    with tempfile.TemporaryDirectory() as folder:
        world = World(plan, Path(folder), SystemClock(), SeededEntropy(options.seed))
        asyncio.run(world.run())
    figures: Figures = {}
    for kind, samples in world.samples.items():
        figures |= percentiles(f"{kind}_real_produce", samples.acknowledged_s)
    classic_ms, lightning_ms = figures["classic_real_produce_p50_ms"], figures["lightning_real_produce_p50_ms"]
    figures["classic_p50_over_lightning_real_sequencer"] = classic_ms / lightning_ms
    figures["classic_p50_ms_above_lightning_real_sequencer"] = classic_ms - lightning_ms
    return figures


def storm(options: Options) -> Figures:
    """A Lightning producer in an outage, without and with classic producers that try again and again."""
    calm_s, stormy_s, refused, throttled = measure(Storm(records=300 if options.quick else 1_500))
    figures = percentiles("storm_without", calm_s) | percentiles("storm_with", stormy_s)
    figures["storm_p99_vs_without"] = figures["storm_with_p99_ms"] / figures["storm_without_p99_ms"]
    return figures | {"storm_refused_writes": refused, "storm_throttled_answers": throttled}


def percentiles(name: str, seconds: Sequence[float]) -> Figures:
    ordered = sorted(seconds)
    return {
        f"{name}_p{percent}_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
        for percent in (50, 99)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, and the plot beside them")
    parser.add_argument("--quick", action="store_true", help="a sixth of it")
    parser.add_argument("--only", choices=["modelled", "trickle", "real", "storm"], help="one part alone")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    out: Path | None = arguments.out
    configure_logs("error", "human")
    options = Options(arguments.quick, arguments.seed)
    figures: Figures = {}
    started_s = time.perf_counter()
    if arguments.only in (None, "modelled"):
        figures, runs = modelled(options)
        print(f"modelled: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
        if out is not None:
            plot(runs, figures, out.with_suffix(".png"))
    if arguments.only in (None, "trickle"):
        started_s = time.perf_counter()
        figures |= trickle(options)
        print(f"trickle: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    if arguments.only in (None, "real"):
        started_s = time.perf_counter()
        figures |= real_sequencer(options)
        print(f"real sequencer: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    if arguments.only in (None, "storm"):
        started_s = time.perf_counter()
        figures |= storm(options)
        print(f"storm: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    figures |= {"quick": options.quick, "seed": options.seed, "braidlog": __version__}
    figures = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()}
    show(figures)
    text = json.dumps(figures, indent=2)
    if out is not None:
        out.write_text(text + "\n")
    else:
        print(text)
    return 0 if all(figures[name] <= goal for name, goal in AT_MOST.items() if name in figures) else 1


def show(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Braidlog: Lightning topics")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    for name, value in figures.items():
        goal = AT_MOST.get(name)
        style = None if goal is None else "green" if value <= goal else "red"
        table.add_row(name, str(value), "" if goal is None else f"≤ {goal:g}", style=style)
    Console(stderr=True).print(table)


if __name__ == "__main__":
    sys.exit(main())
