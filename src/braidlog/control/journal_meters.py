"""Figures about journals for Prometheus, computed when they are asked for."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braidlog.control.journals import Journals


class JournalMeters(Collector):
    def __init__(self, journals: Journals) -> None:
        self._journals = journals

    def collect(self) -> Iterator[Metric]:
        figures = self._journals.statistics()
        files = CounterMetricFamily(
            "braidlog_control_journal_files", "Journaled files that were sequenced, by path.", labels=["path"]
        )
        files.add_metric(["fast"], figures.fast_files)
        files.add_metric(["slow"], figures.slow_files)
        yield files
        for name, text, count in (
            ("duplicate_batches", "Journaled batches that were there already.", figures.duplicate_batches),
            ("late_batches", "Batches appended behind what follows them.", figures.late_batches),
            ("older_epoch_batches", "Batches appended behind a later epoch.", figures.older_epoch_batches),
            ("dropped_batches", "Journaled batches of deleted topics.", figures.dropped_batches),
            ("gaps_given_up", "Gaps of producers that were waited for in vain.", figures.gaps_given_up),
        ):
            yield CounterMetricFamily(f"braidlog_control_journal_{name}", text, count)
        for name, text, value in (
            ("held_batches", "Batches that wait for what comes before them.", figures.held_batches),
            ("open_sequences", "Sequences that are not wholly sequenced.", figures.open_sequences),
            ("unreplayed_files", "Files known to be missing below others.", figures.unreplayed_files),
            ("complete_sequences", "Sequences that wait to be merged away.", figures.complete_sequences),
            ("scans_behind", "Scans that are not replayed.", figures.scans_requested - figures.scans_replayed),
            ("replayed_timestamp_ms", "All journaled before is sequenced.", figures.replayed_ms),
        ):
            yield GaugeMetricFamily(f"braidlog_control_journal_{name}", text, value=value)
