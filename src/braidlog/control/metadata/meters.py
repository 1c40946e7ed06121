"""Metrics of the copy of the metadata in the bucket."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from braidlog.control.metadata.store import CopiedMetadata


class CopyMeters(Collector):
    def __init__(self, copy: CopiedMetadata) -> None:
        self._copy = copy

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "braidlog_metadata_copy_age_seconds",
            "Age of the oldest change that the copy of the metadata in the bucket lacks",
            value=self._copy.copy_age_s,
        )
        yield GaugeMetricFamily(
            "braidlog_metadata_copy_position",
            "How many transactions the copy of the metadata has",
            value=self._copy.copy_position,
        )
