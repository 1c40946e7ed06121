"""Histograms that cost the hot path a fraction of a microsecond.

They are plain integers, and become metrics when somebody asks for them.
"""

from bisect import bisect_left
from collections.abc import Mapping

from prometheus_client.core import HistogramMetricFamily

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets."""


class Tally:
    """Counts values by bucket, and sums them up."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count a value that occurred `count` times."""
        self.counts[bisect_left(SECONDS, seconds)] += count
        self.sum_s += seconds * count

    @property
    def count(self) -> int:
        return sum(self.counts)


def histogram(name: str, text: str, tallies: Mapping[str, Tally], label: str = "") -> HistogramMetricFamily:
    """Return one histogram of several tallies, told apart by a label.

    Without a label, there is only one tally.
    """
    family = HistogramMetricFamily(name, text, labels=[label] if label else [])
    bounds = [*map(str, SECONDS), "+Inf"]
    for value, tally in tallies.items():
        reached, buckets = 0, []
        for bound, count in zip(bounds, tally.counts, strict=True):
            reached += count
            buckets.append((bound, reached))
        family.add_metric([value] if label else [], buckets, tally.sum_s)
    return family
