"""The metrics of a process.

Each `Metrics` has its own registry: nothing here is global.

Each room defines its own metrics, so that they stand beside what they measure.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from braidlog import __version__

# The creation time of a series is of no use here, and doubles the number of lines.
disable_created_metrics()  # type: ignore[no-untyped-call]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """A registry of metrics.

    Names follow Prometheus: `braidlog_<what>_<unit>`, with `_total` on counters.
    """

    def __init__(self, *, process: bool = False) -> None:
        """With `process`, include the process's CPU, memory and file descriptors."""
        self.registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=self.registry)
        what = "Always 1; its label is the version that runs."
        build = Gauge("braidlog_build_info", what, ["version"], registry=self.registry)
        build.labels(__version__).set(1)

    def register(self, collector: Collector) -> None:
        """Add a collector that computes its metrics when asked, such as an agent's meters."""
        self.registry.register(collector)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def merge_figures(own: str, parts: Mapping[str, str], label: str) -> bytes:
    """Merge the metrics of several processes into one text.

    Those of each part get its name as a label.
    """
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
