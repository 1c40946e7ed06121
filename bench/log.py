"""Measures the cost and the speed of the log, on real processes.

It measures produce, consume, small requests and the sequencer.

    python bench/log.py --out figures.json      about three minutes
    python bench/log.py --quick                 under a minute

CPU is user plus system time of Braidlog's processes; the client's is not counted. A GB is 1e9 bytes of records.
Every figure is the median of five runs after a warm-up. README.md says what each one means.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _cluster import Process, fresh_memory_cpu_s
from _frames import BATCH_RECORDS, RECORD_VALUE_BYTES, batch_of
from _load import (
    Address,
    Served,
    consume,
    produce,
    produce_idempotent_small,
    produce_one_by_one,
    produce_small,
)
from _sequencer import EXTENTS_PER_OBJECT, Committed, SequencerLoad
from braidlog import __version__

RUNS = 5
GB = 1e9
MB = 1e6

PARTITIONS = 8
CONNECTIONS = 4
IN_FLIGHT = 5
SMALL_CONNECTIONS = 8
SMALL_BLOCKS = 4
"""Blocks of 64 requests that a connection keeps open."""
COMMITTERS = 8
BATCH_VALUE_BYTES = BATCH_RECORDS * RECORD_VALUE_BYTES
TOPIC = "bench"
WARM_UP_BATCHES = 280
"""Enough to fill the agent's cache: only then does a broker stop growing."""
MEMORY_WARM_UPS = 2

QUICK_SWEEPS = {
    "write_epoch_interval_s": "1",
    "sweep_interval_s": "1",
    "sweep_grace_s": "5",
    "retention_check_interval_s": "1",
}
"""Settings with which deleted data goes within seconds instead of an hour."""
DELETED_TIMEOUT_S = 60.0

TARGETS: dict[str, float] = {
    "produce_file_cpu_s_per_gb": 0.9,
    "produce_memory_cpu_s_per_gb": 0.5,
    "consume_cpu_s_per_gb": 0.3,
    "small_us_per_request": 25,
    "sequencer_extents_per_s": 50_000,
    "sequencer_p99_ms": 20,
}
HIGHER_IS_BETTER = {"sequencer_extents_per_s"}

Figures = dict[str, Any]


class Scale:
    """How much is done. All runs of a scenario share a broker, so all of them must fit into memory."""

    def __init__(self, quick: bool) -> None:
        self.produce_batches = 240 if quick else 750
        self.is_quick = quick
        self.memory_batches = 120 if quick else 400
        self.consume_batches_per_partition = 28
        self.consume_rounds = 1 if quick else 4
        self.small_requests = 8_192 if quick else 81_920
        self.latency_requests = 60 if quick else 300
        self.sequencer_objects = 640 if quick else 5_600
        self.confluent_records = 60_000 if quick else 500_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as one flat JSON object")
    parser.add_argument("--quick", action="store_true", help="less of everything: under a minute")
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append", help="repeat for more; all by default")
    options = parser.parse_args()
    gc.disable()  # a pause of the client's would be taken for one of the broker's
    scale = Scale(options.quick)
    figures: Figures = {}
    for name in options.only or SCENARIOS:
        started_s = time.perf_counter()
        figures |= SCENARIOS[name](scale)
        print(f"{name}: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    figures = {name: round_figure(value) for name, value in (figures | surroundings(options.quick)).items()}
    show(figures)
    text = json.dumps(figures, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 0


def surroundings(quick: bool) -> Figures:
    return {
        "quick": quick,
        "load_average": os.getloadavg()[0],
        "python_loop_ns": python_loop_ns(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "braidlog": __version__,
        **{name.replace("-", "_"): version(name) for name in ("confluent-kafka", "uvloop", "obstore", "apsw", "kio")},
    }


def python_loop_ns() -> float:
    """CPU time of one turn of a fixed loop: neighbours on the same cores slow it down just as they do the broker."""
    found: list[float] = []
    turns = 500_000
    for _ in range(5):
        started_ns = time.process_time_ns()
        slots: dict[int, tuple[int, int]] = {}
        for turn in range(turns):
            slots[turn & 1023] = (turn, turn)
        found.append((time.process_time_ns() - started_ns) / turns)
    return statistics.median(found)


def round_figure(value: Any) -> Any:
    """Four digits are more than any figure here deserves."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Medians:
    """Over the runs."""

    cpu_s_per_gb: float
    cpu_us_per_request: float
    mb_per_s: float


def median_of_runs(broker: Process, run: Callable[[], Served], before: Callable[[], None] | None = None) -> Medians:
    """`before` prepares each run and is not measured."""
    per_gb, per_request, mb_per_s = [], [], []
    for _ in range(RUNS):
        if before is not None:
            before()
        start_s = broker.cpu_s()
        served = run()
        spent_s = broker.cpu_s() - start_s
        per_gb.append(spent_s / (served.record_bytes / GB))
        per_request.append(spent_s * 1e6 / served.request_count)
        mb_per_s.append(served.record_bytes / MB / served.elapsed_s)
    return Medians(statistics.median(per_gb), statistics.median(per_request), statistics.median(mb_per_s))


def create_topic(address: Address, topic: str, partitions: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": f"{address[0]}:{address[1]}"})
    for created in admin.create_topics([NewTopic(topic, num_partitions=partitions)]).values():
        created.result(timeout=20)


def delete_topic(address: Address, topic: str) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": f"{address[0]}:{address[1]}"})
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(timeout=20)


def wait_deleted(broker: Process, deletes_before: float) -> None:
    """Return when the sweeper has deleted what a deleted topic left behind."""
    deadline_s = time.monotonic() + DELETED_TIMEOUT_S
    while broker.metric("braidlog_store_requests_total", operation="delete") == deletes_before:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"nothing was deleted within {DELETED_TIMEOUT_S} s")
        time.sleep(0.2)
    time.sleep(1.0)


def percentiles_ms(prefix: str, latencies_ms: list[float]) -> Figures:
    cuts = statistics.quantiles(latencies_ms, n=100, method="inclusive")
    return {f"{prefix}_p{percent}_ms": cuts[percent - 1] for percent in (50, 95, 99)}


def produce_load(
    address: Address, batch: bytes, count: int, connections: int = CONNECTIONS, topic: str = TOPIC
) -> Served:
    return produce(
        address,
        topic,
        batch,
        record_bytes=BATCH_VALUE_BYTES,
        batch_count=count,
        connections=connections,
        in_flight=IN_FLIGHT,
        partitions=PARTITIONS,
    )


# ── scenarios ──


def produce_to_file(scale: Scale) -> Figures:
    from braidlog.cost.bill import Usage, bill
    from braidlog.cost.prices import S3_STANDARD

    batch = batch_of(BATCH_RECORDS)
    with Process("up", store="file") as broker:
        address = broker.address("kafka")
        create_topic(address, TOPIC, PARTITIONS)
        produce_load(address, batch, WARM_UP_BATCHES)
        puts_before = broker.metric("braidlog_store_requests_total", operation="put")
        medians = median_of_runs(broker, lambda: produce_load(address, batch, scale.produce_batches))
        puts = int(broker.metric("braidlog_store_requests_total", operation="put") - puts_before)
        produced_gb = RUNS * scale.produce_batches * BATCH_VALUE_BYTES / GB
        figures: Figures = {
            "produce_file_cpu_s_per_gb": medians.cpu_s_per_gb,
            "produce_file_mb_per_s": medians.mb_per_s,
            "produced_gb": produced_gb,
            "puts": puts,
            "usd": bill(Usage(put_count=puts), S3_STANDARD, elapsed_s=0).total_usd,
        }
        figures |= latencies(address, batch, scale)
        figures |= confluent(address, scale)
        figures["rss_mb_max"] = broker.resident_bytes() / MB
        return figures


def latencies(address: Address, batch: bytes, scale: Scale) -> Figures:
    """One record at a time, by one producer: on an idle broker, and while others keep it busy."""
    record = batch_of(1)
    produce_one_by_one(address, TOPIC, record, request_count=10)
    alone_ms = produce_one_by_one(address, TOPIC, record, request_count=scale.latency_requests)
    busy = threading.Event()
    loaded_ms: list[float] = []

    def load() -> None:
        while not busy.is_set():
            produce_load(address, batch, 40, connections=2)

    others = threading.Thread(target=load, daemon=True)
    others.start()
    try:
        loaded_ms = produce_one_by_one(address, TOPIC, record, request_count=scale.latency_requests // 2)
    finally:
        busy.set()
        others.join()
    return percentiles_ms("produce_latency", alone_ms) | percentiles_ms("produce_loaded_latency", loaded_ms)


def confluent(address: Address, scale: Scale) -> Figures:
    """Measure what a whole client sees.

    The client uses more CPU than the broker, so on few cores this measures mostly the client.
    """
    from confluent_kafka import Consumer, KafkaError, Producer

    topic, count = "confluent", scale.confluent_records
    create_topic(address, topic, PARTITIONS)
    servers = {"bootstrap.servers": f"{address[0]}:{address[1]}"}
    failures: list[KafkaError] = []
    producer = Producer(
        {
            **servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
            "queue.buffering.max.messages": 10_000_000,
            "on_delivery": lambda error, _: failures.append(error) if error is not None else None,
            "delivery.report.only.error": True,
        }
    )
    consumer = Consumer({**servers, "group.id": "bench", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    value = os.urandom(RECORD_VALUE_BYTES)
    started_s = time.perf_counter()
    for number in range(count):
        producer.produce(topic, value, partition=number // 500 % PARTITIONS)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120) or failures:
        raise RuntimeError(f"confluent-kafka could not deliver: {failures[:1]}")
    produced_s = time.perf_counter()
    try:
        consumer.subscribe([topic])
        received, first_s = 0, produced_s
        deadline_s = produced_s + 120
        while received < count:
            messages = consumer.consume(10_000, timeout=1)
            if not received:
                first_s = time.perf_counter()  # joining the group is a matter of timers, not of speed
            received += sum(message.error() is None for message in messages)
            if time.perf_counter() > deadline_s:
                raise RuntimeError(f"confluent-kafka got {received} of {count} records")
        consumed_s = time.perf_counter()
    finally:
        consumer.close()
    total_mb = count * RECORD_VALUE_BYTES / MB
    return {
        "confluent_produce_mb_per_s": total_mb / (produced_s - started_s),
        "confluent_consume_mb_per_s": total_mb / (consumed_s - first_s),
        "confluent_end_to_end_mb_per_s": total_mb / (produced_s - started_s + consumed_s - first_s),
    }


def produce_to_memory(scale: Scale) -> Figures:
    """In a steady state: `memory://` keeps every byte, so new data goes where older data was deleted, as it would in a
    process that has run for a while. Fresh memory would cost more than the log itself; see `README.md`."""
    batch = batch_of(BATCH_RECORDS)
    with Process("up", store="memory", settings=QUICK_SWEEPS) as broker:
        address = broker.address("kafka")
        generation = 0
        create_topic(address, f"memory-{generation}", PARTITIONS)

        def fill() -> Served:
            return produce_load(address, batch, scale.memory_batches, topic=f"memory-{generation}")

        def make_room() -> None:
            nonlocal generation
            deletes_before = broker.metric("braidlog_store_requests_total", operation="delete")
            delete_topic(address, f"memory-{generation}")
            wait_deleted(broker, deletes_before)
            generation += 1
            create_topic(address, f"memory-{generation}", PARTITIONS)

        # Each deletion takes some seconds. Where there is no time for so many, one makes room for all runs.
        if scale.is_quick:
            for _ in range(RUNS):
                fill()
            make_room()
        else:
            for _ in range(MEMORY_WARM_UPS):
                fill()
                make_room()
            fill()
        medians = median_of_runs(broker, fill, before=None if scale.is_quick else make_room)
        fresh_bytes = scale.memory_batches * len(batch)
        return {
            "produce_memory_cpu_s_per_gb": medians.cpu_s_per_gb,
            "produce_memory_mb_per_s": medians.mb_per_s,
            "fresh_memory_cpu_s_per_gb": fresh_memory_cpu_s(fresh_bytes) / (fresh_bytes / GB),
        }


def consume_from_cache(scale: Scale) -> Figures:
    batch = batch_of(BATCH_RECORDS)
    with Process("up", store="memory", settings={"cache_bytes": "1GiB"}) as broker:
        address = broker.address("kafka")
        create_topic(address, TOPIC, PARTITIONS)
        # One connection sends to the partitions in turn, so that all get the same number of batches.
        produce_load(address, batch, scale.consume_batches_per_partition * PARTITIONS, connections=1)

        def run(rounds: int, verify: bool = False) -> Served:
            return consume(
                address,
                TOPIC,
                partitions=PARTITIONS,
                partition_bytes_max=1024 * 1024,
                batches_per_partition=scale.consume_batches_per_partition,
                batch_bytes=len(batch),
                batch_records=BATCH_RECORDS,
                record_bytes=BATCH_VALUE_BYTES,
                rounds=rounds,
                connections=CONNECTIONS,
                verify=verify,
            )

        run(1, verify=True)
        gets_before = broker.metric("braidlog_store_requests_total", operation="get_range")
        medians = median_of_runs(broker, lambda: run(scale.consume_rounds))
        if broker.metric("braidlog_store_requests_total", operation="get_range") != gets_before:
            raise RuntimeError("the data did not fit into the cache")
        return {"consume_cpu_s_per_gb": medians.cpu_s_per_gb, "consume_mb_per_s": medians.mb_per_s}


def small_requests(scale: Scale) -> Figures:
    batch = batch_of(1)
    with Process("up", store="memory") as broker:
        address = broker.address("kafka")
        create_topic(address, TOPIC, SMALL_CONNECTIONS)

        def plain(count: int) -> Served:
            return produce_small(
                address,
                TOPIC,
                batch,
                record_bytes=RECORD_VALUE_BYTES,
                request_count=count,
                connections=SMALL_CONNECTIONS,
                blocks=SMALL_BLOCKS,
            )

        def idempotent() -> Served:
            return produce_idempotent_small(
                address,
                TOPIC,
                lambda producer_id, epoch: batch_of(1, producer_id=producer_id, producer_epoch=epoch),
                record_bytes=RECORD_VALUE_BYTES,
                request_count=scale.small_requests,
                connections=SMALL_CONNECTIONS,
                in_flight=(SMALL_BLOCKS - 1) * 64,
            )

        plain(scale.small_requests // 4)
        medians = median_of_runs(broker, lambda: plain(scale.small_requests))
        return {
            "small_us_per_request": medians.cpu_us_per_request,
            "small_requests_per_s": medians.mb_per_s * MB / RECORD_VALUE_BYTES,
            "small_idempotent_us_per_request": median_of_runs(broker, idempotent).cpu_us_per_request,
        }


def sequence_objects(scale: Scale) -> Figures:
    import uvloop

    with Process("control", store="file") as control, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runs, cpu_us_per_extent = runner.run(_sequence(control, scale))
    return {
        "sequencer_extents_per_s": statistics.median(run.extents_per_s for run in runs),
        **{
            f"sequencer_p{percent}_ms": statistics.median(
                percentiles_ms("run", run.latencies_ms)[f"run_p{percent}_ms"] for run in runs
            )
            for percent in (50, 99)
        },
        "sequencer_cpu_us_per_extent": cpu_us_per_extent,
    }


async def _sequence(control: Process, scale: Scale) -> tuple[list[Committed], float]:
    from braidlog.control.remote import connect_control
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy

    remote = connect_control(control.endpoints["control"], clock=SystemClock(), entropy=SystemEntropy())
    try:
        load = SequencerLoad(remote, committers=COMMITTERS)
        await load.prepare()
        await load.run(scale.sequencer_objects // 4)
        before_s = control.cpu_s()
        runs = [await load.run(scale.sequencer_objects) for _ in range(RUNS)]
        extent_count = RUNS * scale.sequencer_objects * EXTENTS_PER_OBJECT
        return runs, (control.cpu_s() - before_s) * 1e6 / extent_count
    finally:
        await remote.close()


SCENARIOS: dict[str, Callable[[Scale], Figures]] = {
    "produce-file": produce_to_file,
    "produce-memory": produce_to_memory,
    "consume": consume_from_cache,
    "small": small_requests,
    "sequencer": sequence_objects,
}


def show(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Braidlog: the log")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("target", justify="right")
    for name, value in figures.items():
        target = TARGETS.get(name)
        if target is None:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            table.add_row(name, f"{value:,}" if is_number else str(value), "")
            continue
        is_met = value >= target if name in HIGHER_IS_BETTER else value <= target
        table.add_row(name, f"{value:,}", f"{target:,}", style="green" if is_met else "red")
    Console(stderr=True).print(table)


if __name__ == "__main__":
    sys.exit(main())
