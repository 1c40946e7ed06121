"""From what happened in the model to the figures that are compared."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from _scheduler_model import AgentModel, Phase, Samples
from braidlog.cost.bill import Usage, bill

Columns = npt.NDArray[np.float64]
MB = 1e6

RECOVERED = 1.5
"""Times per-shard's latency: what counts as recovered from the start of a burst."""


@dataclass(frozen=True)
class Trace:
    phases: Sequence[Phase]
    burst_s: tuple[float, float]
    """When the burst starts and ends."""

    def spans(self) -> dict[str, tuple[float, float]]:
        spans: dict[str, tuple[float, float]] = {}
        start_s = 0.0
        for phase in self.phases:
            spans[phase.name] = (start_s, start_s + phase.duration_s)
            start_s += phase.duration_s
        return spans

    @property
    def duration_s(self) -> float:
        return sum(phase.duration_s for phase in self.phases)

    def load(self, at_s: float) -> float:
        """Return the load that producers offer, in bytes a second."""
        for phase, (start_s, end_s) in zip(self.phases, self.spans().values(), strict=True):
            if start_s <= at_s < end_s:
                return phase.load(at_s - start_s)
        return 0.0


class Columnar:
    """The samples of one run, as arrays."""

    def __init__(self, samples: Samples) -> None:
        self.arrived_s = np.asarray(samples.arrived_s)
        self.latency_s = np.asarray(samples.latency_s)
        self.acknowledged_s = np.asarray(samples.acknowledged_s)
        self.request_bytes = np.asarray(samples.request_bytes)
        self.put_s = np.asarray(samples.put_s)
        self.put_bytes = np.asarray(samples.put_bytes)
        self.put_locks = np.asarray(samples.put_locks)
        self.held_back_s = np.asarray(samples.held_back_s)
        self.held_back_bytes = np.asarray(samples.held_back_bytes)
        self.regrouped_s = np.asarray(samples.regrouped_s)
        self.group_count = np.asarray(samples.group_count)

    def groups_at(self, times_s: Columns) -> Columns:
        return self.group_count[np.searchsorted(self.regrouped_s, times_s, side="right") - 1]

    def latency_percentiles(self, edges_s: Columns, percent: float) -> Columns:
        """Return the percentile for the requests of each window; nan where none arrived."""
        order = np.argsort(self.arrived_s, kind="stable")
        arrived_s, latency_s = self.arrived_s[order], self.latency_s[order]
        cuts = np.searchsorted(arrived_s, edges_s)
        return np.array(
            [
                np.percentile(latency_s[start:end], percent) if end > start else np.nan
                for start, end in itertools.pairwise(cuts)
            ]
        )

    def per_s(self, times_s: Columns, edges_s: Columns, weights: Columns | None = None) -> Columns:
        sums, _ = np.histogram(times_s, bins=edges_s, weights=weights)
        return sums / np.diff(edges_s)


def put_usd_month(puts_per_s: float, agent: AgentModel) -> float:
    return bill(Usage(put_count=round(puts_per_s * 1e6)), agent.price, elapsed_s=1e6).month_usd


def phase_figures(run: Columnar, agent: AgentModel, span_s: tuple[float, float]) -> dict[str, float]:
    start_s, end_s = span_s
    arrived = (run.arrived_s >= start_s) & (run.arrived_s < end_s)
    acknowledged = (run.acknowledged_s >= start_s) & (run.acknowledged_s < end_s)
    started = (run.put_s >= start_s) & (run.put_s < end_s)
    held_back = (run.held_back_s >= start_s) & (run.held_back_s < end_s)
    regrouped = (run.regrouped_s > start_s) & (run.regrouped_s < end_s)
    duration_s = end_s - start_s
    puts = int(started.sum())
    accepted_bytes = float(run.request_bytes[arrived].sum())
    groups = run.groups_at(np.arange(start_s, end_s, 0.05))
    return {
        "puts": puts,
        "puts_per_s": puts / duration_s,
        "usd_month": put_usd_month(puts / duration_s, agent),
        "put_mb_mean": float(run.put_bytes[started].mean()) / MB,
        "produce_p50_ms": float(np.percentile(run.latency_s[arrived], 50)) * 1000,
        "produce_p99_ms": float(np.percentile(run.latency_s[arrived], 99)) * 1000,
        "offered_mb_per_s": (accepted_bytes + float(run.held_back_bytes[held_back].sum())) / duration_s / MB,
        "throughput_mb_per_s": float(run.request_bytes[acknowledged].sum()) / duration_s / MB,
        "groups_mean": float(groups.mean()),
        "groups_max": int(groups.max()),
        "regroups": int(regrouped.sum()),
        "locks": int(run.put_locks[started].sum()),
    }


def burst_recovery_s(
    adaptive: Columnar, per_shard: Columnar, burst_s: tuple[float, float], percent: float, *, window_s: float
) -> float:
    """Seconds from the burst's start to the end of the last window in which requests waited too long. Windows are by
    arrival, and the yardstick is per-shard's latency over the whole burst: in a single window, it is mostly noise."""
    edges_s = np.arange(burst_s[0], burst_s[1] + window_s / 2, window_s)
    usual_s = per_shard.latency_percentiles(np.array(burst_s), percent)[0]
    slow = adaptive.latency_percentiles(edges_s, percent) > RECOVERED * usual_s
    return float((np.flatnonzero(slow)[-1] + 1) * window_s) if slow.any() else 0.0


def key_figures(runs: Mapping[str, Columnar], agent: AgentModel, trace: Trace) -> dict[str, float]:
    """Return the figures that have goals."""
    spans = trace.spans()
    phases = {
        policy: {name: phase_figures(run, agent, span_s) for name, span_s in spans.items()}
        for policy, run in runs.items()
    }

    def trickle(policy: str, figure: str) -> float:
        return phases[policy]["trickle"][figure] + phases[policy]["trickle again"][figure]

    adaptive, per_shard = phases["adaptive"]["saturation"], phases["per-shard"]["saturation"]
    return {
        "trickle_puts_vs_funnel": trickle("adaptive", "puts") / trickle("funnel", "puts"),
        "trickle_cost_vs_per_shard": trickle("adaptive", "usd_month") / trickle("per-shard", "usd_month"),
        "saturation_throughput_vs_per_shard": adaptive["throughput_mb_per_s"] / per_shard["throughput_mb_per_s"],
        "saturation_p99_vs_per_shard": adaptive["produce_p99_ms"] / per_shard["produce_p99_ms"],
        "burst_recovery_s": burst_recovery_s(runs["adaptive"], runs["per-shard"], trace.burst_s, 50, window_s=0.1),
        # The slowest tenth of a tenth of a second is a few PUTs: it takes more of them to be more than noise.
        "burst_recovery_p90_s": burst_recovery_s(runs["adaptive"], runs["per-shard"], trace.burst_s, 90, window_s=0.5),
    }
