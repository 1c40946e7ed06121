"""Compares the cost and the speed of the upload policies on the same load.

The load is that of 32 shards in virtual time.

    python bench/scheduler.py --out scheduler.json     two minutes; also writes scheduler.png
    python bench/scheduler.py --quick                  a fifth of the trace

Every decision is made by the code that runs in an agent; only shards, producers and the store are a model. README.md
says what each figure means.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _scheduler_model import AgentModel, Phase, run_lone_producers, run_trace
from _scheduler_plot import plot
from _scheduler_report import MB, Columnar, Trace, key_figures, phase_figures
from _scheduler_shards import groups_follow_the_load, two_shards
from braidlog import __version__
from braidlog.scheduling.policy import POLICIES

AT_MOST: dict[str, float] = {
    "trickle_puts_vs_funnel": 1.05,
    "trickle_cost_vs_per_shard": 0.1,
    "saturation_p99_vs_per_shard": 1.1,
    "burst_recovery_s": 3,
    "lone_write_p50_vs_put": 1.3,
}
AT_LEAST: dict[str, float] = {"saturation_throughput_vs_per_shard": 0.95, "two_shard_speedup": 1.7}

TRICKLE, BURST, SATURATION = 1 * MB, 1_000 * MB, 1_500 * MB
BURST_S = 10.0

Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    quick: bool
    plot_path: Path | None
    seed: int


def trace_of(phase_s: float) -> Trace:
    burst_start_s = phase_s / 3
    return Trace(
        phases=[
            Phase("trickle", phase_s, lambda _: TRICKLE),
            Phase("ramp", phase_s, lambda at_s: TRICKLE + (SATURATION - TRICKLE) * at_s / phase_s),
            Phase("saturation", phase_s, lambda _: SATURATION),
            Phase(
                "trickle with a burst",
                phase_s,
                lambda at_s: BURST if burst_start_s <= at_s < burst_start_s + BURST_S else TRICKLE,
            ),
            Phase("trickle again", phase_s, lambda _: TRICKLE),
        ],
        burst_s=(3 * phase_s + burst_start_s, 3 * phase_s + burst_start_s + BURST_S),
    )


def compare_policies(options: Options) -> Figures:
    """One trace, every policy."""
    agent = AgentModel()
    trace = trace_of(60.0 if options.quick else 300.0)
    runs: dict[str, Columnar] = {}
    for name, policy in POLICIES.items():
        started_s = time.perf_counter()
        runs[name] = Columnar(run_trace(agent, policy, trace.phases, seed=options.seed).samples)
        print(f"  {name}: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    keys = key_figures(runs, agent, trace)
    if options.plot_path is not None:
        plot(runs, agent, trace, keys, options.plot_path)
        print(f"  plotted to {options.plot_path}", file=sys.stderr)
    return {
        **keys,
        "phases": {
            name: {phase: phase_figures(run, agent, span_s) for phase, span_s in trace.spans().items()}
            for name, run in runs.items()
        },
    }


def lone_writes(options: Options) -> Figures:
    """Producers that send one record at a time, as many a second as the budget pays for."""
    agent = AgentModel()
    figures: Figures = {}
    for name, policy in POLICIES.items():
        run = run_lone_producers(agent, policy, duration_s=60.0 if options.quick else 300.0, seed=options.seed).samples
        figures[f"lone_write_p50_ms_{name.replace('-', '_')}"] = statistics.median(run.latency_s) * 1000
        if name == "adaptive":
            figures["lone_write_p50_vs_put"] = statistics.median(run.latency_s) / statistics.median(run.put_latency_s)
            figures["lone_writes_per_s"] = len(run.latency_s) / run.acknowledged_s[-1]
    return figures


SCENARIOS: dict[str, Callable[[Options], Figures]] = {
    "policies": compare_policies,
    "lone": lone_writes,
    "two-shards": lambda options: two_shards(quick=options.quick),
    "real-groups": lambda options: groups_follow_the_load(quick=options.quick),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, and the plot beside them")
    parser.add_argument("--quick", action="store_true", help="phases of one minute instead of five")
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append", help="repeat for more; all by default")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    out: Path | None = arguments.out
    options = Options(arguments.quick, out.with_suffix(".png") if out is not None else None, arguments.seed)
    figures: Figures = {}
    for name in arguments.only or SCENARIOS:
        started_s = time.perf_counter()
        figures |= SCENARIOS[name](options)
        print(f"{name}: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    figures |= {"quick": options.quick, "seed": options.seed, "braidlog": __version__}
    figures = rounded(figures)
    show(figures)
    text = json.dumps(figures, indent=2)
    if out is not None:
        out.write_text(text + "\n")
    else:
        print(text)
    return 0 if all(is_met(name, figures[name]) for name in {**AT_MOST, **AT_LEAST} if name in figures) else 1


def is_met(name: str, value: float) -> bool:
    return value <= AT_MOST[name] if name in AT_MOST else value >= AT_LEAST[name]


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def show(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=True)
    goals = Table(title="Braidlog: the upload scheduler")
    goals.add_column("figure")
    goals.add_column("measured", justify="right")
    goals.add_column("goal", justify="right")
    for name, value in figures.items():
        if not isinstance(value, int | float | str):
            continue  # by phase: of the policies below, of real shards in the file
        goal = f"≤ {AT_MOST[name]:g}" if name in AT_MOST else f"≥ {AT_LEAST[name]:g}" if name in AT_LEAST else ""
        style = ("green" if is_met(name, value) else "red") if goal else None
        goals.add_row(name, value if isinstance(value, str) else f"{value:g}", goal, style=style)
    console.print(goals)
    if "phases" not in figures:
        return
    phases = Table(title="By phase")
    columns = (
        "usd_month",
        "puts_per_s",
        "produce_p50_ms",
        "produce_p99_ms",
        "throughput_mb_per_s",
        "groups_mean",
        "locks",
    )
    phases.add_column("phase")
    phases.add_column("policy")
    for column in columns:
        phases.add_column(column, justify="right")
    for phase in next(iter(figures["phases"].values())):
        for policy, by_phase in figures["phases"].items():
            phases.add_row(phase, policy, *(f"{by_phase[phase][column]:,.0f}" for column in columns))
        phases.add_section()
    console.print(phases)


if __name__ == "__main__":
    sys.exit(main())
