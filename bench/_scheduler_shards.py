"""The real shards of this machine: what two carry against one, and how their groups follow a load.

Two shards, a control plane and a client do not fit on two cores at full speed. So every shard is given the same fixed
part of a core, as on a machine that has one for each, and the client is never the limit. Where the kernel does not let
us do that (it takes root, and a writable cpu cgroup), the speedup is computed from the CPU time that the same bytes
cost with one and with two.
"""

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _cluster import Process, cpu_s_of
from _frames import BATCH_RECORDS, RECORD_VALUE_BYTES, ProduceFrame, batch_of, produce_error_position
from _load import Address, Connection, produce, run_threads

TOPIC = "bench"
PARTITIONS = 8
CONNECTIONS_PER_SHARD = 2
IN_FLIGHT = 5
BATCH_VALUE_BYTES = BATCH_RECORDS * RECORD_VALUE_BYTES
CORE_SHARE = 0.35
RUNS = 3
CGROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000

Figures = dict[str, Any]


@contextmanager
def core_share(pids: list[int], share: float) -> Iterator[bool]:
    """Hold each process to that part of a core; gives whether that is possible here."""
    folders: list[Path] = []
    try:
        try:
            for pid in pids:
                folder = Path(tempfile.mkdtemp(prefix="braidlog-bench-", dir=CGROUPS))
                folders.append(folder)
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (folder / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * share)))
                (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            yield False
        else:
            yield True
    finally:
        for folder in folders:
            with suppress(OSError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    (CGROUPS / "cgroup.procs").write_text(pid)
                folder.rmdir()


def shard_addresses(agent: Process) -> list[Address]:
    places = agent.endpoints.get("shards", agent.endpoints["kafka"]).split(",")
    return [(host, int(port)) for host, _, port in (place.rpartition(":") for place in places)]


def measure(shard_count: int, *, batches_per_shard: int) -> Figures:
    """Every shard gets the same number of batches over connections of its own."""
    from log import create_topic

    settings = {"shards": str(shard_count)}
    with (
        Process("control", store="file") as control,
        Process("agent", store="file", settings=settings, control=control) as agent,
    ):
        addresses = shard_addresses(agent)
        create_topic(addresses[0], TOPIC, PARTITIONS)
        pids = agent.shard_pids() or [agent.pid]
        batch = batch_of(BATCH_RECORDS)

        def run() -> float:
            return run_threads([lambda address=address: send(address) for address in addresses])  # type: ignore[misc]

        def send(address: Address) -> None:
            produce(
                address,
                TOPIC,
                batch,
                record_bytes=BATCH_VALUE_BYTES,
                batch_count=batches_per_shard,
                connections=CONNECTIONS_PER_SHARD,
                in_flight=IN_FLIGHT,
                partitions=PARTITIONS,
            )

        run()  # memory and groups find their size
        with core_share(pids, CORE_SHARE) as is_limited:
            cpu_s_per_gb, mb_per_s = [], []
            for _ in range(RUNS):
                start_s = sum(map(cpu_s_of, pids))
                elapsed_s = run()
                record_bytes = shard_count * batches_per_shard * BATCH_VALUE_BYTES
                cpu_s_per_gb.append((sum(map(cpu_s_of, pids)) - start_s) / (record_bytes / 1e9))
                mb_per_s.append(record_bytes / 1e6 / elapsed_s)
        return {
            "is_limited": is_limited,
            "cpu_s_per_gb": statistics.median(cpu_s_per_gb),
            "mb_per_s": statistics.median(mb_per_s),
        }


def two_shards(*, quick: bool) -> Figures:
    batches = 60 if quick else 200
    one, two = measure(1, batches_per_shard=batches), measure(2, batches_per_shard=batches)
    by_cpu = 2 * one["cpu_s_per_gb"] / two["cpu_s_per_gb"]
    is_limited = one["is_limited"] and two["is_limited"]
    return {
        "two_shard_speedup": two["mb_per_s"] / one["mb_per_s"] if is_limited else by_cpu,
        "two_shard_speedup_by_cpu": by_cpu,
        "two_shard_speedup_is_by_cpu": not is_limited,
        "shard_cpu_s_per_gb_one": one["cpu_s_per_gb"],
        "shard_cpu_s_per_gb_two": two["cpu_s_per_gb"],
        "shard_cpu_vs_one": two["cpu_s_per_gb"] / one["cpu_s_per_gb"],
        "shard_core_share": CORE_SHARE if is_limited else None,
    }


def groups_follow_the_load(*, quick: bool) -> Figures:
    """A trickle, a load that one stream cannot carry, a trickle: over a store as slow as the cloud's."""
    from log import create_topic

    shard_count = max(4, len(os.sched_getaffinity(0)))
    phases = [("trickle", 5.0, 1), ("load", 10.0, 8 * shard_count), ("trickle again", 10.0 if quick else 20.0, 1)]
    settings = {
        "shards": str(shard_count),
        "store_latency": "s3",
        "upload_size_bytes": "256KiB",
        "uploads_in_flight_max": "4",
    }
    with (
        Process("control", store="file") as control,
        Process("agent", store="file", settings=settings, control=control) as agent,
    ):
        addresses = shard_addresses(agent)
        create_topic(addresses[0], TOPIC, PARTITIONS)
        batch = batch_of(32)
        figures: list[Figures] = []
        for name, duration_s, connections in phases:
            groups: list[float] = []
            latencies_ms: list[float] = []
            puts = agent.metric("braidlog_store_requests_total", operation="put")
            stop_s = time.monotonic() + duration_s

            def send(at: int, stop_s: float = stop_s, latencies_ms: list[float] = latencies_ms) -> None:
                frame = ProduceFrame(TOPIC, at % PARTITIONS, batch).data
                with Connection(addresses[at % len(addresses)]) as connection:
                    while time.monotonic() < stop_s:
                        started_s = time.perf_counter()
                        connection.send(frame)
                        connection.receive_produced(produce_error_position(TOPIC))
                        latencies_ms.append((time.perf_counter() - started_s) * 1000)

            def watch(stop_s: float = stop_s, groups: list[float] = groups) -> None:
                done = threading.Event()
                while time.monotonic() < stop_s:
                    groups.append(agent.metric("braidlog_upload_groups", shard="0"))
                    done.wait(0.25)

            work = [lambda at=at: send(at) for at in range(connections)]  # type: ignore[misc]
            run_threads([*work, watch])
            latencies_ms.sort()
            figures.append(
                {
                    "phase": name,
                    "groups": groups,
                    "puts": agent.metric("braidlog_store_requests_total", operation="put") - puts,
                    "p50_ms": latencies_ms[len(latencies_ms) // 2],
                    "p99_ms": latencies_ms[len(latencies_ms) * 99 // 100],
                    "requests": len(latencies_ms),
                }
            )
        return {
            "real_shards": shard_count,
            "real_groups_max": max(figures[1]["groups"]),
            "real_groups_after": figures[2]["groups"][-1],
            "real_trace": figures,
        }
