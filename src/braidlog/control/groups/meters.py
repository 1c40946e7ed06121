"""Metrics of consumer lag for Prometheus, computed on each scrape."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidlog.control.catalog import Catalog
from braidlog.control.groups.offsets import GroupOffsets

SERIES_MAX = 2000
"""The most series. More would hold up the event loop, and few monitoring systems want them."""


class GroupMeters(Collector):
    def __init__(self, offsets: GroupOffsets, catalog: Catalog) -> None:
        self._offsets = offsets
        self._catalog = catalog

    def collect(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "braidlog_consumer_group_lag_records",
            "Offsets between what a group has committed and the end of the partition.",
            labels=["group", "topic", "partition"],
        )
        groups = self._offsets.group_ids()
        told = 0
        for group_id in groups:
            if told + self._offsets.count(group_id) > SERIES_MAX:
                continue
            for committed in self._offsets.fetch(group_id, None):
                topic = self._catalog.topics.get(committed.topic_id)
                if topic is None or committed.partition >= len(topic.partitions):
                    continue
                partition = topic.partitions[committed.partition]
                behind = partition.next_offset - max(committed.offset, partition.log_start_offset)
                lag.add_metric([group_id, topic.info.name, str(committed.partition)], max(0, behind))
                told += 1
        yield lag
        left_out = sum(self._offsets.count(group_id) for group_id in groups) - told
        yield GaugeMetricFamily(
            "braidlog_consumer_group_lag_left_out",
            "Committed partitions whose lag is not shown, because there are too many or they are gone.",
            value=left_out,
        )
