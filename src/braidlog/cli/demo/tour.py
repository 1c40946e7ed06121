"""`braid demo`: a cluster, a crash in the middle, and an account of all records."""

import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from braidlog.cli.demo.account import Account, show, show_pipeline
from braidlog.cli.demo.clients import PADDING, PARTITIONS, TOPICS, Clients, Ledger
from braidlog.cli.demo.cluster import Cluster
from braidlog.cli.demo.pipeline import PipelineAccount, can_run, run_pipeline
from braidlog.cli.output import OutputFormat, emit_json, say
from braidlog.clients.errors import CommandError
from braidlog.cost.bill import Usage, bill
from braidlog.cost.prices import S3_STANDARD
from braidlog.runtime.clock import Clock, SystemClock

RECORDS, RECORDS_QUICK = 300_000, 30_000
PRODUCE_S, PRODUCE_S_QUICK = 20.0, 6.0
"""A laptop keeps up with this pace, so the latency shown is Braidlog's and not that of a full queue."""
SETTLE_S = 1.0
"""Clients take this long to notice that the agent is back."""
STALLED_S = 30.0


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
                clients.consume(0.5)  # duplicates would arrive now
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

        from braidlog.clients.kafka_client import admin, result

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
        """Let the clients work until `done`, and give up when there is no progress."""
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
        """Count the records by the offsets of the log."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        from braidlog.clients.kafka_client import admin, result

        places = [TopicPartition(name, number) for name in TOPICS for number in range(PARTITIONS)]
        client = admin(self._cluster.bootstrap)
        futures = client.list_offsets(dict.fromkeys(places, OffsetSpec.latest()))
        return sum(result(futures, place).offset for place in places)

    def _account(self, clients: Clients, seconds: float, log_length: int) -> Account:
        requests = self._cluster.requests()
        objects, object_bytes = self._cluster.objects()
        # PUTs between the last reading of the agent's metrics and its death show only as objects.
        requests["put"] = max(requests["put"], objects)
        usage = Usage(put_count=requests["put"], get_count=requests["get"])
        cost = bill(usage, S3_STANDARD, elapsed_s=seconds, stored_bytes=object_bytes)
        # A record met the crash if it was sent before the agent was back and answered after it had died.
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
    """Shows progress on standard error: bars on a terminal, lines elsewhere."""

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
    """Run the demo, and give the exit code.

    It is 0 only if every record is there exactly once.
    """
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
        finished = True  # an interrupted demo is no failure, so its folder can go
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
