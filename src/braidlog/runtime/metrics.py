"""What a process counts and measures. Each `Metrics` has a registry of its own: nothing here is global.

Each room adds its own figures, so that they stand beside what they measure.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from braidlog import __version__

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Named as Prometheus asks: `braidlog_<what>_<unit>`, `_total` on what only grows."""

    def __init__(self, *, process: bool = False) -> None:
        """With `process`, also the process' CPU, memory and descriptors."""
        self.registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=self.registry)
        what = "Always 1; its label is the version that runs."
        build = Gauge("braidlog_build_info", what, ["version"], registry=self.registry)
        build.labels(__version__).set(1)

    def register(self, collector: Collector) -> None:
        """Add something that computes its figures when asked, such as an agent's meters."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def merge_figures(own: str, parts: Mapping[str, str], label: str) -> bytes:
    """Several processes' figures as one text: those of each part with its name as a label, this process' without."""
    families: dict[str, Metric] = {}
    for name, text in [("", own), *parts.items()]:
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                labels = {**sample.labels, label: name} if name else sample.labels
                merged.samples.append(sample._replace(labels=labels))
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)
