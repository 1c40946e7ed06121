"""How long acknowledgements and readers take, of classic and of Lightning topics: the shares that are done by then."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from _lightning_model import CLASSIC, FLOOR, LIGHTNING, Samples
from _plotting import styled_pyplot

COLORS = {CLASSIC: "#30638e", LIGHTNING: "#d1495b", FLOOR: "#8a8f98"}
LABELS = {CLASSIC: "classic", LIGHTNING: "lightning", FLOOR: "waiting and PUT alone"}


def plot(runs: Mapping[str, Samples], figures: Mapping[str, Any], path: Path) -> None:
    plt = styled_pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharex=True, sharey=True, layout="constrained")
    for kind in (CLASSIC, LIGHTNING, FLOOR):
        _draw(axes[0], kind, runs[kind].acknowledged_s, "--" if kind == FLOOR else "-")
    for kind in (CLASSIC, LIGHTNING):
        _draw(axes[1], kind, runs[kind].visible_s, "--" if kind == LIGHTNING else "-")
    axes[0].set_title("until the producer has its answer", fontsize=10)
    axes[1].set_title("until a reader is told", fontsize=10)
    axes[0].set_ylabel("share of the records")
    for axis in axes:
        axis.set_xlabel("milliseconds")
        axis.set_xlim(left=0, right=140)
        axis.legend(frameon=False, loc="lower right")
    figure.suptitle(
        f"Lightning topics: produce p50 {figures['lightning_produce_p50_ms']:.0f} ms against "
        f"{figures['classic_produce_p50_ms']:.0f} ms, readers wait as long\n"
        "s3-express model, interval of 25 ms, commits of 50 ms",
        fontsize=11.5,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw(axis: Any, kind: str, seconds: Any, style: str) -> None:
    """Lines that lie on others are dashed, so that these show through."""
    ordered = 1000 * np.sort(np.asarray(seconds))
    shares = np.arange(1, len(ordered) + 1) / len(ordered)
    axis.plot(ordered, shares, style, color=COLORS[kind], label=LABELS[kind], linewidth=1.6)
