"""The comparison at a glance: load, groups, latency and cost over time, and the burst's first seconds from near."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from _plotting import INK, styled_pyplot
from _scheduler_model import AgentModel
from _scheduler_report import MB, Columnar, Columns, Trace, put_usd_month

COLORS = {"adaptive": "#d1495b", "per-shard": "#30638e", "funnel": "#edae49", "coordinator": "#8a8f98"}
ORDER = ("funnel", "coordinator", "per-shard", "adaptive")
"""Drawn last is drawn on top."""
DASHED = {"coordinator"}
"""It nearly always coincides with the funnel, which must show through."""
WINDOWS = 300
"""Points of a line over the whole trace."""


def headline(keys: Mapping[str, float], agent: AgentModel) -> str:
    """Say in words what the lines below show."""
    return (
        f"{agent.shard_count} shards: adaptive uploads against one stream per shard\n"
        f"{keys['trickle_cost_vs_per_shard']:.0%} of the cost at a trickle; "
        f"{keys['saturation_throughput_vs_per_shard']:.0%} of the throughput and "
        f"{keys['saturation_p99_vs_per_shard']:.0%} of the p99 at full load; "
        f"a burst is met within {keys['burst_recovery_s']:g} s"
    )


def plot(runs: Mapping[str, Columnar], agent: AgentModel, trace: Trace, keys: Mapping[str, float], path: Path) -> None:
    plt = styled_pyplot()
    figure, axes = plt.subplots(
        4, 2, figsize=(14, 10), width_ratios=[3.2, 1], sharex="col", sharey="row", layout="constrained"
    )
    before_s, after_s = 2.0, 10.0
    whole = np.linspace(0.0, trace.duration_s, WINDOWS + 1)
    near = np.arange(trace.burst_s[0] - before_s, trace.burst_s[0] + after_s + 0.01, 0.25)
    burst_s = trace.burst_s[0]
    for column, (edges_s, scale_s, origin_s) in enumerate([(whole, 60.0, 0.0), (near, 1.0, burst_s)]):
        _draw(axes[:, column], runs, agent, trace, edges_s, origin_s, scale_s)
    _label(axes, trace, agent, before_s, after_s)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(headline(keys, agent), fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(
    axes: Any,
    runs: Mapping[str, Columnar],
    agent: AgentModel,
    trace: Trace,
    edges_s: Columns,
    origin_s: float,
    scale_s: float,
) -> None:
    middles_s = (edges_s[:-1] + edges_s[1:]) / 2
    at = (middles_s - origin_s) / scale_s
    offered = np.array([trace.load(at_s) for at_s in middles_s]) / MB
    axes[0].fill_between(at, offered, 0.5, color="#dfe3ea", lw=0, label="offered", step="mid")
    for policy in ORDER:
        if policy not in runs:
            continue
        run = runs[policy]
        is_main = policy == "adaptive"
        style = {"color": COLORS[policy], "lw": 2.0 if is_main else 1.3, "zorder": 3 if is_main else 2}
        if policy in DASHED:
            style["dashes"] = (2, 2)
        axes[0].plot(at, run.per_s(run.acknowledged_s, edges_s, run.request_bytes) / MB, **style, label=policy)
        shown = (run.regrouped_s > edges_s[0]) & (run.regrouped_s < edges_s[-1])
        changes_s = np.concatenate(([edges_s[0]], run.regrouped_s[shown], [edges_s[-1]]))
        axes[1].step((changes_s - origin_s) / scale_s, run.groups_at(changes_s), where="post", **style)
        axes[2].plot(at, run.latency_percentiles(edges_s, 50) * 1000, **style)
        axes[2].plot(at, run.latency_percentiles(edges_s, 99) * 1000, **{**style, "lw": 0.8, "alpha": 0.55})
        costs = np.array([put_usd_month(rate, agent) for rate in run.per_s(run.put_s, edges_s)])
        axes[3].plot(at, np.where(costs > 0, costs, np.nan), **style)


def _label(axes: Any, trace: Trace, agent: AgentModel, before_s: float, after_s: float) -> None:
    from matplotlib.ticker import FuncFormatter

    titles = ("Load, MB/s", "Groups", "Produce latency, ms", "PUTs, USD a month at this pace")
    plain = FuncFormatter(lambda value, _: f"{value:,.0f}")
    for row, title in enumerate(titles):
        axes[row][0].set_ylabel(title)
        axes[row][0].set_yscale("log")
        axes[row][0].yaxis.set_major_formatter(plain)
    axes[0][0].set_ylim(0.5, 4000)
    axes[1][0].set_yscale("log", base=2)
    axes[1][0].set_yticks([2**power for power in range(agent.shard_count.bit_length())])
    axes[1][0].yaxis.set_major_formatter(plain)
    axes[1][0].set_ylim(0.85, agent.shard_count * 1.25)
    axes[2][0].set_ylim(100, 60_000)
    axes[3][0].axhline(agent.budget_usd_month, color=INK, lw=0.8, ls=":")
    axes[3][0].annotate(
        f"budget for early uploads: {agent.budget_usd_month:.0f} USD",
        (0, agent.budget_usd_month),
        xytext=(4, -12),
        textcoords="offset points",
        fontsize=8,
    )
    axes[2][0].annotate("thick: median, thin: 99th percentile", (0.008, 0.92), xycoords="axes fraction", fontsize=8)
    for name, (start_s, end_s) in trace.spans().items():
        axes[0][0].annotate(
            name, ((start_s + end_s) / 120, 1.03), xycoords=("data", "axes fraction"), ha="center", fontweight="bold"
        )
        for row in range(4):
            axes[row][0].axvline(start_s / 60, color="#c8ccd4", lw=0.8)
    axes[0][0].set_xlim(0, trace.duration_s / 60)
    axes[3][0].set_xlabel("minutes")
    axes[0][1].set_title("the burst, from near", fontweight="bold", fontsize=9)
    axes[0][1].set_xlim(-before_s, after_s)
    axes[3][1].set_xlabel("seconds since its start")
