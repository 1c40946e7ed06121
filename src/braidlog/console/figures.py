"""Metrics of processes as numbers: parsed, added up, and compared over time."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
Figures: TypeAlias = Mapping[str, Mapping[Labels, float]]
"""The series of each metric."""

WANTED = (
    "braidlog_agent_",
    "braidlog_upload_",
    "braidlog_store_",
    "braidlog_journal_",
    "braidlog_ripcord_",
    "braidlog_event_loop_",
    "process_",
)
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\n": "\n", r"\"": '"', r"\\": "\\"}


def parse_figures(text: str) -> Figures:
    """Parse Prometheus's text format, as far as the console uses it."""
    found: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        if not line.startswith(WANTED):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            found.setdefault(name, {})[_labels(labels or "")] = float(value)
        except ValueError:
            continue
    return found


def _labels(text: str) -> Labels:
    return tuple(
        (name, re.sub(r"\\[n\"\\]", lambda escape: _ESCAPES[escape[0]], value)) for name, value in _LABEL.findall(text)
    )


def total(figures: Figures, name: str, **labels: str) -> float:
    """Add up the series of a metric that have these labels."""
    wanted = set(labels.items())
    return sum(value for series, value in figures.get(name, {}).items() if wanted <= set(series))


def by_label(figures: Figures, name: str, label: str) -> dict[str, float]:
    """Add up the series of a metric by the value of one label."""
    found: dict[str, float] = {}
    for series, value in figures.get(name, {}).items():
        key = dict(series).get(label, "")
        found[key] = found.get(key, 0.0) + value
    return found


def add_up(parts: Iterable[Figures]) -> Figures:
    """Add up the figures of several processes."""
    found: dict[str, dict[Labels, float]] = {}
    for part in parts:
        for name, series in part.items():
            sums = found.setdefault(name, {})
            for labels, value in series.items():
                sums[labels] = sums.get(labels, 0.0) + value
    return found


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of all processes at one moment."""

    at_ms: int
    by_place: Mapping[str, Figures] = field(default_factory=dict)
    """The figures of each process, with its address as the key."""
    silent: tuple[str, ...] = ()
    """The addresses that did not answer."""


class Change:
    """What changed between two samples, for each second."""

    def __init__(self, before: Sample, after: Sample) -> None:
        self.seconds = max(0.001, (after.at_ms - before.at_ms) / 1000)
        # A process that was not there before, or has restarted, has no change yet.
        self.places = [place for place in after.by_place if place in before.by_place]
        self._before = before
        self._after = after

    def rate(self, name: str, **labels: str) -> float:
        return sum(self.rate_of(place, name, **labels) for place in self.places)

    def rate_of(self, place: str, name: str, **labels: str) -> float:
        old, new = self._before.by_place[place], self._after.by_place[place]
        return max(0.0, total(new, name, **labels) - total(old, name, **labels)) / self.seconds

    def rates_by(self, name: str, label: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for place in self.places:
            old = by_label(self._before.by_place[place], name, label)
            for key, value in by_label(self._after.by_place[place], name, label).items():
                found[key] = found.get(key, 0.0) + max(0.0, value - old.get(key, 0.0)) / self.seconds
        return found

    def quantile(self, name: str, share: float, **labels: str) -> float | None:
        """Estimate a quantile of a histogram's observations between the samples.

        Give None if there were none.
        """
        buckets: dict[float, float] = {}
        for place in self.places:
            old, new = self._before.by_place[place], self._after.by_place[place]
            for series, value in new.get(f"{name}_bucket", {}).items():
                named = dict(series)
                edge = named.pop("le", "")
                if set(labels.items()) <= set(named.items()):
                    before = old.get(f"{name}_bucket", {}).get(series, 0.0)
                    limit = float(edge)
                    buckets[limit] = buckets.get(limit, 0.0) + max(0.0, value - before)
        bounds = sorted(buckets)
        if not bounds or buckets[bounds[-1]] <= 0:
            return None
        wanted, lower, below = share * buckets[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if buckets[bound] >= wanted:
                if bound == float("inf"):
                    return lower
                within = buckets[bound] - below
                return lower + (bound - lower) * ((wanted - below) / within if within > 0 else 1.0)
            lower, below = bound, buckets[bound]
        return lower
