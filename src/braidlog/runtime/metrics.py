"""What a process counts and measures. Each `Metrics` has a registry of its own: nothing here is global.

Each room adds its own figures, so that they stand beside what they measure.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from braidlog import __version__

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 30)
"""From a cache hit to a store in trouble; finest where uploads live."""

SIZE_BUCKETS_BYTES = tuple(4**power * 1024 for power in range(9))
"""1 KiB to 64 MiB."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Named as Prometheus asks: `braidlog_<what>_<unit>`, `_total` on what only grows."""

    def __init__(self, *, process: bool = False) -> None:
        """With `process`, also the process' CPU, memory and descriptors."""
        self.registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=self.registry)
        build = self.gauge("build_info", "Always 1; its label is the version that runs.", ["version"])
        build.labels(__version__).set(1)

    def counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"braidlog_{name}", documentation, labels, registry=self.registry)

    def gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"braidlog_{name}", documentation, labels, registry=self.registry)

    def histogram(
        self, name: str, documentation: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = LATENCY_BUCKETS_S
    ) -> Histogram:
        return Histogram(f"braidlog_{name}", documentation, labels, registry=self.registry, buckets=buckets)

    def register(self, collector: Collector) -> None:
        """Add something that computes its figures when asked, such as a store's meter."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)

    def value(self, name: str, **labels: str) -> float:
        """One figure by its full name, 0 where nothing was counted yet."""
        return self.registry.get_sample_value(name, labels) or 0.0
