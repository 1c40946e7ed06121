"""The outage at a glance: what was accepted, what waited to be sequenced, in how many sequences, and on which path."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from _plotting import styled_pyplot

AWAY = "#f6e7e4"
ACCEPTED, BACKLOG, SEQUENCES, FAST, SLOW = "#30638e", "#d1495b", "#8a8f98", "#edae49", "#d1495b"
BARS = 160
RECORDS_PER_S = 10_000


class Samples(Protocol):
    at_s: list[float]
    accepted: list[int]
    fast_files: list[int]
    slow_files: list[int]
    sequences: list[int]

    @property
    def backlog(self) -> list[int]: ...


def headline(figures: Mapping[str, Any]) -> str:
    """Say in words what the lines below show."""
    return (
        f"The control plane is away for {figures['outage_s'] / 60:.0f} minutes at 10,000 records a second\n"
        f"{figures['records_accepted_in_outage'] / 1e6:.1f} million records are accepted meanwhile; "
        f"{figures['failed']:,} fail, {figures['lost']:,} are lost; "
        f"the backlog is gone {figures['drain_s'] / 60:.1f} minutes after its return, "
        f"with {figures['live_p99_ratio']:.2f} times the usual p99"
    )


def plot(
    samples: Samples,
    outage_s: tuple[float, float],
    records_per_batch: int,
    figures: Mapping[str, Any],
    path: Path,
) -> None:
    plt = styled_pyplot()
    figure, axes = plt.subplots(4, 1, figsize=(11, 9), sharex=True, layout="constrained")
    at_s = np.array(samples.at_s)
    edges_s = np.linspace(at_s[0], at_s[-1], min(BARS, len(at_s) - 1) + 1)
    middles_min = (edges_s[:-1] + edges_s[1:]) / 2 / 60
    width_min = (edges_s[1] - edges_s[0]) / 60

    def per_s(counts: Sequence[int]) -> Any:
        return np.diff(np.interp(edges_s, at_s, np.array(counts, dtype=float))) / np.diff(edges_s)

    for axis in axes:
        axis.axvspan(outage_s[0] / 60, outage_s[1] / 60, color=AWAY, zorder=0)
    axes[0].plot(middles_min, per_s(samples.accepted) * records_per_batch, color=ACCEPTED)
    axes[0].set_ylabel("accepted\nrecords/s")
    axes[0].annotate(
        "the control plane is away",
        xy=(sum(outage_s) / 120, 0.1),
        xycoords=("data", "axes fraction"),
        ha="center",
        color=BACKLOG,
    )
    axes[1].fill_between(at_s / 60, samples.backlog, color=BACKLOG, alpha=0.3, linewidth=0)
    axes[1].plot(at_s / 60, samples.backlog, color=BACKLOG)
    axes[1].set_ylabel("backlog\nfiles not sequenced")
    axes[2].plot(at_s / 60, samples.sequences, color=SEQUENCES)
    axes[2].set_ylabel("open sequences")
    fast, slow = per_s(samples.fast_files), per_s(samples.slow_files)
    axes[3].bar(middles_min, fast, width_min, color=FAST, label="fast path: by the agent that wrote them, at once")
    axes[3].bar(middles_min, slow, width_min, bottom=fast, color=SLOW, label="slow path: found and replayed")
    axes[3].set_ylabel("files sequenced\nper second")
    axes[3].set_xlabel("minutes")
    axes[3].legend(loc="upper left", frameon=False)
    for axis in axes:
        axis.set_ylim(bottom=0)  # after what is drawn, or it would keep the scale of nothing
    axes[0].set_ylim(top=1.3 * RECORDS_PER_S)
    figure.suptitle(headline(figures), ha="left", x=0.01)
    figure.savefig(path, dpi=130)
    plt.close(figure)
