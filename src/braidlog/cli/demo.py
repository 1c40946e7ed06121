"""`braid demo`: real processes, real clients, a crash in the middle, and an account of every record."""

import contextlib
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from braidlog.cli.children import BraidProcess
from braidlog.cli.demo_pipeline import PipelineAccount, can_run, run_pipeline
from braidlog.cli.demo_shuffle import ShuffleAccount
from braidlog.cli.errors import CommandError
from braidlog.cli.output import OutputFormat, emit, emit_json, say
from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import S3_STANDARD
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.quantities import format_bytes

TOPICS = ("demo-orders", "demo-clicks")
PARTITIONS = 2
"""Of each topic. An idempotent client has five requests under way, each for one partition: with more partitions than
that, they would wait for each other in the client, and the latency shown would be the client's."""
GROUP = "demo"
RECORDS, RECORDS_QUICK = 300_000, 30_000
PRODUCE_S, PRODUCE_S_QUICK = 20.0, 6.0
"""A pace that a laptop keeps up with, so that the latency shown is Braidlog's and not that of a full queue."""
PADDING = b"." * 188
SETTLE_S = 1.0
"""Clients take this long to notice that the agent is back."""
STALLED_S = 30.0


SEEN = """\
Every acknowledged record came out exactly once, though the agent was killed
with records in flight: it holds nothing that matters. The new one loaded its
view from the control plane, the idempotent producer sent again what had not
been acknowledged, and the sequencer recognised what it had already."""


@dataclass(frozen=True, slots=True)
class Account:
    """What went in, what came out, and what it took."""

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
    """Both without the records that met the crash."""
    produce_ms_max: float
    """Of all records: the crash, as a producer felt it."""
    usd: float
    usd_month: float

    @property
    def ok(self) -> bool:
        return self.missing == 0 and self.duplicates == 0 and self.records_in == self.records_out


class Ledger:
    """Where each record was found. A record is known by its number, which is the start of its value."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._places = array("q", [-1]) * count
        self.found = 0
        self.duplicates = 0

    def read(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        number = int(value[:12])
        place = (offset * PARTITIONS + partition) * len(TOPICS) + TOPICS.index(topic)
        known = self._places[number]
        if known == -1:
            self._places[number] = place
            self.found += 1
        elif known != place:  # the same place again would be the consumer's rereading, not the log's doubling
            self.duplicates += 1

    @property
    def missing(self) -> int:
        return self.count - self.found


class Cluster:
    """A control plane and an agent, each a process, over a store in a folder."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self.store = f"file://{folder}/store"
        quiet = ["--set", "log_level=warning", "--metrics", "127.0.0.1:0", "--store", self.store]
        self.control = BraidProcess(
            "control",
            ["control", "--listen", "127.0.0.1:0", "--metadata", f"sqlite://{folder}/meta.db", *quiet],
            folder,
            clock,
        )
        self._agent_options = ["--set", "store_price=s3-standard", *quiet]
        self.agent = BraidProcess("agent", [], folder, clock)
        self._requests = {"put": 0, "get": 0}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with self.control:
            self._start_agent("127.0.0.1:0")
            try:
                self.agent.wait_ready()
                yield
            finally:
                self.agent.__exit__(None, None, None)

    def _start_agent(self, listen: str) -> None:
        control = self.control.addresses["control"]
        self.agent.arguments = ["agent", "--control", control, "--listen", listen, *self._agent_options]
        self.agent.start()

    @property
    def bootstrap(self) -> str:
        return str(self.agent.addresses["kafka"])

    def crash_agent(self) -> None:
        """kill -9, and start it again where clients expect it. Does not wait for it."""
        self._requests = self.requests()
        where = self.bootstrap
        self.agent.kill()
        self._start_agent(where)

    def requests(self) -> dict[str, int]:
        """Requests to the store so far, the crashed agent's included."""
        figures = self.agent.metrics()

        def count(*operations: str) -> int:
            return int(
                sum(
                    figures.get(f'braidlog_store_requests_total{{operation="{name}",store="main"}}', 0)
                    for name in operations
                )
            )

        return {
            "put": self._requests["put"] + count("put", "update"),
            "get": self._requests["get"] + count("get", "get_range", "get_ranges", "get_tail", "head"),
        }

    def objects(self) -> tuple[int, int]:
        """How many objects there are, and their bytes."""
        sizes = [path.stat().st_size for path in (self.folder / "store" / "data").rglob("*") if path.is_file()]
        return len(sizes), sum(sizes)


class Clients:
    """One idempotent producer and a group of two consumers, all driven from here, a slice of time each."""

    def __init__(self, bootstrap: str, ledger: Ledger, clock: Clock) -> None:
        from confluent_kafka import Consumer, Producer

        common = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
        self.ledger = ledger
        self._clock = clock
        self.latencies_s = array("d")
        self.delivered_s = array("d")
        self.refused: Any = None
        self.producer: Producer = Producer(
            {**common, "enable.idempotence": True, "linger.ms": 5, "batch.size": 1_000_000, "statistics.interval.ms": 0}
        )
        self.consumers: list[Consumer] = [
            Consumer({**common, "group.id": GROUP, "auto.offset.reset": "earliest", "client.id": f"demo-{number}"})
            for number in range(2)
        ]
        for consumer in self.consumers:
            consumer.subscribe(list(TOPICS))

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused = self.refused or error
        else:
            self.latencies_s.append(message.latency())
            self.delivered_s.append(self._clock.monotonic_s())

    def produce(self, number: int) -> None:
        topic = TOPICS[number % len(TOPICS)]
        value = b"%012d" % number + PADDING
        while True:
            try:
                self.producer.produce(topic, value, key=b"%d" % (number % 1000), on_delivery=self._delivered)
                return
            except BufferError:
                self.producer.poll(0.1)

    def consume(self, wait_s: float = 0.0) -> None:
        self.producer.poll(0)
        for consumer in self.consumers:
            for message in consumer.consume(5_000, wait_s):
                if message.error() is None:
                    self.ledger.read(message.topic(), message.partition(), message.offset(), message.value())
                elif message.error().fatal():
                    raise CommandError(f"a consumer failed: {message.error().str()}", help="See the agent's log.")

    @property
    def assigned(self) -> bool:
        return all(consumer.assignment() for consumer in self.consumers)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


class Demo:
    def __init__(self, cluster: Cluster, clock: Clock, count: int, produce_s: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._count = count
        self._produce_s = produce_s
        self._crash_s = 0.0
        self._back_s = 0.0

    def run(self, progress: "Progress") -> tuple[Account, PipelineAccount | None]:
        with self._cluster.running():
            self._create_topics()
            ledger = Ledger(self._count)
            clients = Clients(self._cluster.bootstrap, ledger, self._clock)
            try:
                self._wait(lambda: clients.assigned, clients, "the group did not form")
                start_s = self._clock.monotonic_s()
                self._produce(clients, progress)
                self._wait(lambda: len(clients.latencies_s) == self._count, clients, "records were not acknowledged")
                seconds = self._clock.monotonic_s() - start_s
                self._wait(lambda: ledger.missing == 0, clients, None)
                progress.update(self._count, ledger.found)
                clients.consume(0.5)  # whatever is there twice would come now
            finally:
                clients.close()
            account = self._account(clients, seconds, self._log_length())
            if not can_run():
                progress.note("no Spark here (pip install 'braidlog[spark]'), so no aggregation and no compaction")
                return account, None
            return account, run_pipeline(
                topics=TOPICS,
                record_count=self._count,
                bootstrap=self._cluster.bootstrap,
                control=self._cluster.control.addresses["control"],
                store=self._cluster.store,
                folder=self._cluster.folder,
                clock=self._clock,
                note=progress.note,
            )

    def _create_topics(self) -> None:
        from confluent_kafka.admin import NewTopic

        from braidlog.cli.kafka import admin, result

        client = admin(self._cluster.bootstrap)
        futures = client.create_topics([NewTopic(name, PARTITIONS) for name in TOPICS])
        for name in TOPICS:
            result(futures, name)

    def _produce(self, clients: Clients, progress: "Progress") -> None:
        start_s, number = self._clock.monotonic_s(), 0
        while number < self._count or not self._back_s:
            elapsed_s = self._clock.monotonic_s() - start_s
            due = min(int(elapsed_s / self._produce_s * self._count), self._count)
            while number < due:
                clients.produce(number)
                number += 1
            clients.consume(0.002)
            progress.update(number, clients.ledger.found)
            if not self._crash_s and number >= self._count // 2:
                progress.note("kill -9 of the agent, with records in flight")
                self._crash_s = self._clock.monotonic_s()
                self._cluster.crash_agent()
            elif self._crash_s and not self._back_s and (self._cluster.agent.is_ready or number == self._count):
                self._cluster.agent.wait_ready()
                self._back_s = self._clock.monotonic_s()
                progress.note(f"the agent is back after {self._back_s - self._crash_s:.1f} s")

    def _wait(self, done: Any, clients: Clients, complaint: str | None) -> None:
        """Let the clients work until `done`; give up when nothing moves any more."""
        moved_s, before = self._clock.monotonic_s(), (-1, -1)
        while not done():
            clients.consume(0.02)
            if clients.refused is not None:
                raise CommandError(f"a record was refused: {clients.refused.str()}", help="See the agent's log.")
            now = (clients.ledger.found, len(clients.latencies_s))
            if now != before:
                moved_s, before = self._clock.monotonic_s(), now
            elif self._clock.monotonic_s() - moved_s > STALLED_S:
                if complaint is None:
                    return
                raise CommandError(
                    f"{complaint} within {STALLED_S:.0f} s", help="Run with --keep, and read the processes' logs."
                )

    def _log_length(self) -> int:
        """How many records the log itself says it has."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        from braidlog.cli.kafka import admin, result

        places = [TopicPartition(name, number) for name in TOPICS for number in range(PARTITIONS)]
        client = admin(self._cluster.bootstrap)
        futures = client.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
        return sum(result(futures, place).offset for place in places)

    def _account(self, clients: Clients, seconds: float, log_length: int) -> Account:
        requests = self._cluster.requests()
        objects, object_bytes = self._cluster.objects()
        # What the agent put between the last look at its figures and its end is known by its objects only.
        requests["put"] = max(requests["put"], objects)
        usage = Usage(put_count=requests["put"], get_count=requests["get"])
        cost = bill(usage, S3_STANDARD, elapsed_s=seconds, stored_bytes=object_bytes)
        # A record met the crash if it was sent before the agent was back, and answered after it had gone.
        calm_s = sorted(
            latency_s
            for latency_s, delivered_s in zip(clients.latencies_s, clients.delivered_s, strict=True)
            if delivered_s < self._crash_s or delivered_s - latency_s > self._back_s + SETTLE_S
        )
        ledger = clients.ledger
        return Account(
            records_in=len(clients.latencies_s),
            records_out=ledger.found,
            missing=ledger.missing,
            duplicates=max(ledger.duplicates, log_length - self._count, 0),
            bytes_in=self._count * (12 + len(PADDING)),
            seconds=round(seconds, 2),
            agent_away_s=round(self._back_s - self._crash_s, 2),
            puts=requests["put"],
            gets=requests["get"],
            objects=objects,
            object_bytes_mean=object_bytes // objects if objects else 0,
            produce_ms_p50=_percentile_ms(calm_s, 50),
            produce_ms_p99=_percentile_ms(calm_s, 99),
            produce_ms_max=round(max(clients.latencies_s) * 1000, 1),
            usd=cost.total_usd,
            usd_month=round(cost.month_usd, 2),
        )


def _percentile_ms(sorted_s: list[float], percent: int) -> float:
    return round(sorted_s[len(sorted_s) * percent // 100] * 1000, 1) if sorted_s else 0.0


class Progress:
    """Two bars on a terminal, a few lines elsewhere; always on standard error."""

    def __init__(self, count: int, bars: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._bars = bars and console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description:>9}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console,
            disable=not self._bars,
        )
        self._produced = self._progress.add_task("produced", total=count)
        self._consumed = self._progress.add_task("consumed", total=count)

    def __enter__(self) -> "Progress":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, produced: int, consumed: int) -> None:
        self._progress.update(self._produced, completed=produced)
        self._progress.update(self._consumed, completed=consumed)

    def note(self, text: str) -> None:
        if self._bars:
            self._progress.console.print(f"  {text}")
        else:
            say(f"  {text}")


def run_demo(*, quick: bool, keep: bool, output: OutputFormat) -> int:
    """Run it all; gives the exit code: 0 only if every record is there once."""
    folder = Path(tempfile.mkdtemp(prefix="braidlog-demo-"))
    clock = SystemClock()
    count, produce_s = (RECORDS_QUICK, PRODUCE_S_QUICK) if quick else (RECORDS, PRODUCE_S)
    finished = False
    try:
        say(f"A control plane and an agent start, with their store in {folder}/store.")
        with Progress(count, bars=not quick) as progress:
            account, pipeline = Demo(Cluster(folder, clock), clock, count, produce_s).run(progress)
        finished = True
    except KeyboardInterrupt:
        finished = True  # nothing went wrong that anybody would want to look into
        raise
    finally:
        if keep or not finished:
            say(f"Data and logs are in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    ok = account.ok and (pipeline is None or pipeline.is_right(account.records_in))
    if output is OutputFormat.JSON:
        emit_json({**asdict(account), "pipeline": asdict(pipeline) if pipeline is not None else None, "ok": ok})
    else:
        show(account)
        if pipeline is not None:
            show_pipeline(pipeline)
    return 0 if ok else 1


def show(account: Account) -> None:
    """The account as a table, and what it means."""
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
