"""Measures the cost of an idle Braidlog.

It has many partitions and many consumers that wait for records, but no record arrives.

    python bench/idle.py --out idle.json        about a minute and a half
    python bench/idle.py --quick                under a minute
    python bench/idle.py --protocol consumer    members whose partitions the coordinator assigns

One `braid up` with 1,000 partitions, and 100 confluent-kafka consumers in ten groups, each group over all partitions of
its own topics. CPU is user plus system time of the broker's process; the clients' is not counted.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path
from typing import Any

from _cluster import Process

TOPICS = 10
PARTITIONS_PER_TOPIC = 100
GROUPS = 10
MEMBERS_PER_GROUP = 10
SETTLE_S_MAX = 60.0
SETTLED_S = 5.0
"""From when all have their partitions until it is measured: then nothing of the rebalance is on its way any more."""
TARGET_CPU_PERCENT = 5.0
MEASURED_S, MEASURED_QUICK_S = 20.0, 6.0


def consume(address: str, group: int, protocol: str, ready: ProcessEvent, done: ProcessEvent) -> None:
    """A group's members in a process of their own: they join, and then wait for records until they are told to go."""
    import confluent_kafka

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": f"idle-{group}",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
    }
    members = [confluent_kafka.Consumer(settings) for _ in range(MEMBERS_PER_GROUP)]
    for member in members:
        member.subscribe([f"idle-{group}"])
    deadline_s = time.monotonic() + SETTLE_S_MAX
    expected = PARTITIONS_PER_TOPIC // MEMBERS_PER_GROUP
    while not all(len(member.assignment()) == expected for member in members) and time.monotonic() < deadline_s:
        for member in members:
            member.poll(0.02)
    ready.set()
    while not done.wait(1.0):
        for member in members:
            member.poll(0)
    for member in members:
        member.close()


def measure(protocol: str, seconds: float) -> dict[str, float]:
    from confluent_kafka.admin import AdminClient, NewTopic

    with Process("up", store="file") as broker:
        host, port = broker.address("kafka")
        address = f"{host}:{port}"
        admin = AdminClient({"bootstrap.servers": address})
        topics = [NewTopic(f"idle-{number}", PARTITIONS_PER_TOPIC) for number in range(TOPICS)]
        for future in admin.create_topics(topics).values():
            future.result(30)
        no_clients = cpu_percent(broker, seconds / 3)
        context = multiprocessing.get_context("spawn")
        done = context.Event()
        groups = []
        for number in range(GROUPS):
            ready = context.Event()
            process = context.Process(target=consume, args=(address, number, protocol, ready, done))
            process.start()
            groups.append((process, ready))
        try:
            for _, ready in groups:
                if not ready.wait(2 * SETTLE_S_MAX):
                    raise TimeoutError("a group has not settled")
            time.sleep(SETTLED_S)
            fetches_before = broker.metric("braidlog_agent_requests_total", api="fetch")
            started_s = time.monotonic()
            waiting = cpu_percent(broker, seconds)
            fetches = broker.metric("braidlog_agent_requests_total", api="fetch") - fetches_before
            return {
                f"idle_{protocol}_cpu_percent": round(waiting, 2),
                f"idle_{protocol}_no_clients_cpu_percent": round(no_clients, 2),
                f"idle_{protocol}_fetches_per_s": round(fetches / (time.monotonic() - started_s), 1),
                f"idle_{protocol}_rss_mb": round(broker.resident_bytes() / 1e6, 1),
            }
        finally:
            done.set()
            for process, _ in groups:
                process.join(20)
                if process.is_alive():
                    process.kill()


def cpu_percent(broker: Process, seconds: float) -> float:
    before_s, started_s = broker.cpu_s(), time.monotonic()
    time.sleep(seconds)
    return 100 * (broker.cpu_s() - before_s) / (time.monotonic() - started_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as one flat JSON object")
    parser.add_argument("--protocol", choices=["classic", "consumer"], action="append", help="both, unless named")
    parser.add_argument("--quick", action="store_true", help=f"measure for {MEASURED_QUICK_S:.0f} s: under a minute")
    parser.add_argument("--seconds", type=float, help=f"how long each figure takes; {MEASURED_S:.0f} if unset")
    options = parser.parse_args()
    seconds = options.seconds or (MEASURED_QUICK_S if options.quick else MEASURED_S)
    figures: dict[str, float] = {"partitions": TOPICS * PARTITIONS_PER_TOPIC, "consumers": GROUPS * MEMBERS_PER_GROUP}
    for protocol in options.protocol or ["classic", "consumer"]:
        figures |= measure(protocol, seconds)
        percent = figures[f"idle_{protocol}_cpu_percent"]
        verdict = "ok" if percent < TARGET_CPU_PERCENT else "above the target"
        print(f"{protocol}: {percent:.1f}% of a core (target {TARGET_CPU_PERCENT}%): {verdict}", file=sys.stderr)
    figures["load_average"] = os.getloadavg()[0]
    text = json.dumps(figures, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
