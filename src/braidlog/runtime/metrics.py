"""What a process counts and measures. Each `Metrics` has a registry of its own: nothing here is global."""

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
        self.registry = CollectorRegistry()
        if process:
            ProcessCollector(registry=self.registry)
        self.gauge("build_info", "Constant 1, labelled with the version that runs.", ["version"]).labels(
            __version__
        ).set(1)

        # what clients see
        self.connections = self.gauge("connections", "Open client connections.")
        self.requests = self.counter("requests_total", "Kafka requests answered, by API name.", ["api"])
        self.request_errors = self.counter(
            "request_errors_total", "Kafka errors sent to clients, by API name and error code.", ["api", "code"]
        )
        self.request_seconds = self.histogram(
            "request_seconds", "From the last byte of a request to the first of its answer.", LATENCY_BUCKETS_S, ["api"]
        )
        self.produced_records = self.counter("produced_records_total", "Records acknowledged to producers.")
        self.produced_bytes = self.counter("produced_bytes_total", "Bytes of record batches acknowledged to producers.")
        self.duplicate_batches = self.counter(
            "duplicate_batches_total", "Batches that an idempotent producer sent again and that were recognised."
        )
        self.fetched_bytes = self.counter("fetched_bytes_total", "Bytes of record batches sent to consumers.")

        # the write path
        self.backlog_bytes = self.gauge("backlog_bytes", "Bytes of produced records that are not yet acknowledged.")
        self.throttled = self.counter("throttled_total", "Times that reading from sockets stopped for want of memory.")
        self.uploads_in_flight = self.gauge("uploads_in_flight", "Uploads that are under way.")
        self.objects_uploaded = self.counter(
            "objects_uploaded_total",
            "Objects uploaded, by what closed the batch: size, interval, idle, flush.",
            ["closed_by"],
        )
        self.object_bytes = self.histogram("object_bytes", "Sizes of uploaded objects.", SIZE_BUCKETS_BYTES)
        self.upload_seconds = self.histogram("upload_seconds", "How long an upload takes.", LATENCY_BUCKETS_S)
        self.upload_failures = self.counter("upload_failures_total", "Objects that could not be uploaded.")
        self.commit_seconds = self.histogram(
            "commit_seconds", "How long the control plane takes to sequence an object.", LATENCY_BUCKETS_S
        )
        self.commit_failures = self.counter("commit_failures_total", "Objects that could not be sequenced.")

        # the read path
        self.cache_hits = self.counter("cache_hits_total", "Reads of object bytes that were answered from memory.")
        self.cache_misses = self.counter("cache_misses_total", "Reads of object bytes that went to the store.")
        self.cache_bytes = self.gauge("cache_bytes", "Bytes in the cache.")

        # the view of the cluster
        self.feed_reloads = self.counter("feed_reloads_total", "Times that the view was built anew from a snapshot.")
        self.topics = self.gauge("topics", "Topics in the catalog.")
        self.partitions = self.gauge("partitions", "Partitions in the catalog.")

    def counter(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"braidlog_{name}", documentation, labels, registry=self.registry)

    def gauge(self, name: str, documentation: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"braidlog_{name}", documentation, labels, registry=self.registry)

    def histogram(
        self, name: str, documentation: str, buckets: Sequence[float], labels: Sequence[str] = ()
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
