"""The figures of a demo, and the tables that show them."""

from dataclasses import dataclass

from braidlog.cli.demo.pipeline import PipelineAccount
from braidlog.cli.demo.shuffle import ShuffleAccount
from braidlog.cli.output import emit
from braidlog.runtime.quantities import format_bytes

SEEN = """\
Every acknowledged record came out exactly once, though the agent was killed
with records in flight: an agent holds no state that matters. The new one
loaded its view from the control plane, the idempotent producer sent again what
was not acknowledged, and the sequencer recognised what it had already."""


@dataclass(frozen=True, slots=True)
class Account:
    """The records in and out, and what they cost."""

    records_in: int
    records_out: int
    missing: int
    duplicates: int
    bytes_in: int
    seconds: float
    agent_away_s: float
    puts: int
    gets: int
    objects: int
    object_bytes_mean: int
    produce_ms_p50: float
    produce_ms_p99: float
    """Both leave out the records that met the crash."""
    produce_ms_max: float
    """The longest wait of any record: the crash, as a producer felt it."""
    usd: float
    usd_month: float

    @property
    def ok(self) -> bool:
        return self.missing == 0 and self.duplicates == 0 and self.records_in == self.records_out


def show(account: Account) -> None:
    """Print the account as a table, and what it means."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="What went in, what came out, what it cost", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in (
        ("records in (acknowledged)", f"{account.records_in:,}"),
        ("records out", f"{account.records_out:,}"),
        ("missing", f"{account.missing:,}"),
        ("duplicates", f"{account.duplicates:,}"),
        ("bytes in", format_bytes(account.bytes_in)),
        ("time", f"{account.seconds:.1f} s"),
        ("agent away", f"{account.agent_away_s:.1f} s"),
        ("objects", f"{account.objects:,} of {format_bytes(account.object_bytes_mean)}"),
        ("PUTs", f"{account.puts:,}"),
        ("GETs", f"{account.gets:,}"),
        ("produce latency p50", f"{account.produce_ms_p50:,.1f} ms"),
        ("produce latency p99", f"{account.produce_ms_p99:,.1f} ms"),
        ("longest wait (the crash)", f"{account.produce_ms_max:,.1f} ms"),
        ("cost so far, at S3 prices", f"{account.usd:.6f} USD"),
        ("a month at this pace", f"{account.usd_month:,.2f} USD"),
    ):
        table.add_row(name, value)
    Console().print(table)
    emit(
        SEEN
        if account.ok
        else "Records are missing or doubled: this is a bug. Run again with --keep, and keep the folder."
    )


def show_pipeline(pipeline: PipelineAccount) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Totals per key, by Spark, before and after their compaction")
    table.add_column()
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    before, after = pipeline.before, pipeline.after
    table.add_row("records", f"{before.records:,}", f"{after.records:,}")
    table.add_row("objects", f"{before.objects:,}", f"{after.objects:,}")
    table.add_row("bytes", format_bytes(before.bytes), format_bytes(after.bytes))
    Console().print(table)
    emit(
        f"A stream on Spark counted {pipeline.records_read:,} records by {pipeline.keys:,} keys, through the\n"
        "bucket alone. Compaction left the newest total of each key."
    )
    show_shuffle(pipeline.shuffle)


def show_shuffle(shuffle: ShuffleAccount) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Records shuffled by key over three zones: USD per TiB")
    table.add_column()
    table.add_column("USD", justify="right")
    table.add_column("for")
    for name, paid_for in (
        ("store", f"requests: {shuffle.batches:,} batches, {shuffle.notifications:,} notifications"),
        ("store, full batches", "requests: batches of 16 MiB, as a longer shuffle fills them"),
        ("native", "traffic between zones, Spark's own shuffle"),
        ("kafka", "traffic between zones, a topic with three replicas"),
    ):
        table.add_row(name, f"{shuffle.usd_per_tib[name]:,.2f}", paid_for)
    Console().print(table)
    emit(
        f"All {shuffle.rows:,} records are in the partitions where Spark's own shuffle puts them.\n"
        f"Of {format_bytes(shuffle.rows_bytes)}, {format_bytes(shuffle.cross_zone_bytes)} would have crossed zones."
    )
