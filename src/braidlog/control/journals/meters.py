"""Metrics of journals for Prometheus, computed on each scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidlog.control.journals.journals import Journals


class JournalMeters(Collector):
    def __init__(self, journals: Journals) -> None:
        self._journals = journals

    def collect(self) -> Iterator[Metric]:
        figures = self._journals.statistics()
        files = CounterMetricFamily(
            "braidlog_control_journal_files",
            "Journal files that were sequenced: fast, by their agent; slow, by a replay.",
            labels=["path"],
        )
        files.add_metric(["fast"], figures.fast_files)
        files.add_metric(["slow"], figures.slow_files)
        yield files
        for name, text, count in (
            ("duplicate_batches", "Journaled batches that were there already.", figures.duplicate_batches),
            ("late_batches", "Batches appended behind later batches of the same producer.", figures.late_batches),
            (
                "older_epoch_batches",
                "Batches appended behind a later epoch of their producer.",
                figures.older_epoch_batches,
            ),
            ("dropped_batches", "Journaled batches of deleted topics.", figures.dropped_batches),
            (
                "gaps_given_up",
                "Gaps in producers' sequence numbers that were given up after the wait.",
                figures.gaps_given_up,
            ),
        ):
            yield CounterMetricFamily(f"braidlog_control_journal_{name}", text, count)
        for name, text, value in (
            ("held_batches", "Batches that wait for earlier batches of their producer.", figures.held_batches),
            ("open_sequences", "Journal sequences with files that may still be unsequenced.", figures.open_sequences),
            (
                "unreplayed_files",
                "Journal files before a sequenced one that are not sequenced yet.",
                figures.unreplayed_files,
            ),
            (
                "complete_sequences",
                "Journal sequences that are done and wait to be merged away.",
                figures.complete_sequences,
            ),
            (
                "scans_behind",
                "Scans whose journals are not all replayed yet.",
                figures.scans_requested - figures.scans_replayed,
            ),
            (
                "replayed_timestamp_seconds",
                "Everything journaled before this moment is sequenced.",
                figures.replayed_ms / 1000,
            ),
        ):
            yield GaugeMetricFamily(f"braidlog_control_journal_{name}", text, value=value)
