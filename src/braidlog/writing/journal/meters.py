"""The journal's figures for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from braidlog.writing.journal.path import JournalPath


def journal_figures(journal: JournalPath) -> Iterator[Metric]:
    batcher, uploader, sequencing = journal.statistics()
    for name, text, gauge in (
        ("backlog_bytes", "Bytes of records that wait to be put into the journal.", batcher.backlog_bytes),
        ("uploads_in_flight", "Files on their way into the journal.", batcher.drafts_in_flight),
        ("open_sequences", "Journal sequences that this agent fills now.", uploader.open_sequences),
        ("files_pending", "Files in the journal that this agent still has to have sequenced.", sequencing.pending),
    ):
        yield GaugeMetricFamily(f"braidlog_journal_{name}", text, value=gauge)
    for name, text, count in (
        ("files", "Files put into the journal.", uploader.files),
        ("file_bytes", "Bytes of files put into the journal.", uploader.bytes),
        ("sequences", "Journal sequences that this agent opened.", uploader.sequences),
        ("sealed_out", "Files that found their slot fenced and went to another sequence.", uploader.sealed_out),
        ("files_failed", "Files that the store did not take.", uploader.failed),
        (
            "files_sequenced",
            "Journal files that took the fast path: this agent had them sequenced.",
            sequencing.sequenced,
        ),
        ("files_left", "Journal files that this agent left for the slow path, a replay.", sequencing.left),
    ):
        yield CounterMetricFamily(f"braidlog_journal_{name}", text, count)
