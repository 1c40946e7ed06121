"""Executors as processes of their own: each fills batches and reads those of its partitions, over the latency model of
S3, in real time. They tell each other of batches as Spark's tasks do, and those of a zone share a cache."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from _shuffle_model import MIB, RECORD_BYTES, TICK_S, Source, Timed, requests_p95_s
from braidlog.cache.layers import MemoryLayer
from braidlog.cache.zone_ring import ZoneRingLayer, zone_ring_handlers
from braidlog.cost.shuffle import ShuffleLoad, predict
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.rpc.client import RpcClient
from braidlog.runtime.rpc.server import RpcServer
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.shared_buffers import decode_notifications, encode_notifications

Figures = dict[str, Any]
RATE_MIB = 16
"""The rate of each executor."""
BATCH_MIB = 4
PARTITIONS_EACH = 9
ZONES_MAX = 3
WAIT_S = 120.0


def load_of(count: int) -> ShuffleLoad:
    size = BATCH_MIB * MIB
    return ShuffleLoad(
        count * RATE_MIB * MIB,
        size,
        zones=min(ZONES_MAX, count),
        instances=count,
        interval_s=1e6,
        **requests_p95_s(size),
    )


def executors(counts: tuple[int, ...], seconds: float) -> Figures:
    figures: Figures = {}
    errors: dict[str, float] = {"puts": 0.0, "gets": 0.0}
    for count in counts:
        load = load_of(count)
        predicted = predict(load)
        # Whole batches of every buffer, and a half, so that no batch ends with the run.
        run_s = (max(2, round(seconds / predicted.batch_fill_s)) + 0.5) * predicted.batch_fill_s
        found = run(count, run_s)

        def total(name: str, found: list[Figures] = found) -> float:
            return sum(each[name] for each in found)

        if total("rows_in") != total("rows_out"):
            raise SystemExit(f"{count} executors: not every row came out")
        # A slow machine takes longer for the same work, so requests are counted, and rates are of the time it took.
        elapsed_s = max(each["elapsed_s"] for each in found)
        unfilled_s = 0.5 * predicted.batch_fill_s
        gets_per_put = total("gets") / total("puts")
        errors["puts"] = max(errors["puts"], _error(total("puts_full"), predicted.puts_per_s * (run_s - unfilled_s)))
        errors["gets"] = max(errors["gets"], _error(gets_per_put, predicted.gets_per_s / predicted.puts_per_s))
        puts_per_s = total("puts_full") / (elapsed_s - unfilled_s)
        shuffled_mib = total("rows_in") * RECORD_BYTES / MIB
        found_of_all = {
            "mib_per_s": shuffled_mib / elapsed_s,
            "mib_per_s_offered": load.bytes_per_s / MIB,
            "late_s": max(each["late_s"] for each in found),
            "puts_per_s": puts_per_s,
            "puts_per_s_predicted": predicted.puts_per_s,
            "gets_per_s": puts_per_s * gets_per_put,
            "gets_per_s_predicted": predicted.gets_per_s,
            "gets_per_put": gets_per_put,
            "gets_per_put_predicted": load.zones_crossed,
            "latency_p95_s": statistics.fmean(each["latency_p95_s"] for each in found),
            "latency_bound_s_predicted": predicted.latency_s_max,
            "cpu_s_per_gib": total("cpu_s") / (shuffled_mib / 1024),
        }
        figures |= {f"executors_{count}_{name}": value for name, value in found_of_all.items()}
    return figures | {f"executors_model_error_{name}": value for name, value in errors.items()}


def _error(found: float, predicted: float) -> float:
    return abs(found - predicted) / predicted if predicted else found


def run(count: int, seconds: float) -> list[Figures]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-", dir=memory) as folder:
        children = [
            subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]
        try:
            for number, child in enumerate(children):
                tell(child, {"number": number, "count": count, "store": f"file://{folder}", "seconds": seconds})
            addresses = [json.loads(hear(child))["address"] for child in children]
            for child in children:
                tell(child, {"addresses": addresses})
            for child in children:
                hear(child)  # it has produced, and told the others
            for child in children:
                tell(child, {})
            return [json.loads(hear(child)) for child in children]
        finally:
            for child in children:
                child.kill()
                child.communicate()


def tell(child: "subprocess.Popen[str]", message: Figures) -> None:
    assert child.stdin is not None
    child.stdin.write(json.dumps(message) + "\n")
    child.stdin.flush()


def hear(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise SystemExit("an executor ended")
    return line


# ── the child's side ──


def owner_of_partition(partition: int, count: int) -> int:
    """An executor in the partition's zone."""
    zones = min(ZONES_MAX, count)
    members = [number for number in range(count) if number % zones == partition % zones]
    return members[partition // zones % len(members)]


async def told() -> Figures:
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    found: Figures = json.loads(line)
    return found


def say(message: Figures) -> None:
    print(json.dumps(message), flush=True)


class Executor:
    def __init__(self, orders: Figures) -> None:
        self.number, self.count = orders["number"], orders["count"]
        self.seconds = orders["seconds"]
        self.clock, entropy = SystemClock(), SystemEntropy()
        self.load = load_of(self.count)
        slow = SlowStore(
            open_store(orders["store"], clock=self.clock, entropy=entropy),
            latency_profile("s3"),
            clock=self.clock,
            entropy=entropy,
        )
        self.store = slow
        self.bottom = Timed(slow)
        self.memory = MemoryLayer(self.bottom, bytes_max=512 * MIB, on_write=True)
        self.server = RpcServer({**zone_ring_handlers(self.memory), "notify": self._notified})
        self.reads: set[asyncio.Task[None]] = set()
        self.latency_s: list[float] = []
        self.rows_out = 0
        self.entropy = entropy

    async def join(self, addresses: list[str]) -> None:
        zones = self.load.zones
        ring = {str(each): addresses[each] for each in range(self.count) if each % zones == self.number % zones}
        self.layer = ZoneRingLayer(
            self.store,
            ring,
            clock=self.clock,
            entropy=self.entropy,
            own_name=str(self.number),
            own_layer=self.memory,
        )
        self.debatcher = Debatcher(self.layer, DebatcherSettings())
        self.clients = [RpcClient(address, self.clock, self.entropy) for address in addresses]

    async def _notified(self, body: bytes, _: float | None) -> bytes:
        task = asyncio.get_running_loop().create_task(self._read(decode_notifications(body)))
        self.reads.add(task)
        task.add_done_callback(self.reads.discard)
        return b""

    async def _read(self, notifications: list[Notification]) -> None:
        async for rows in self.debatcher.rows(notifications):
            at_s = rows.column("at").to_numpy()
            self.rows_out += rows.num_rows
            self.latency_s += (time.time() - at_s[:: max(1, len(at_s) // 16)]).tolist()

    async def tell(self, notifications: list[Notification]) -> None:
        by_owner: dict[int, list[Notification]] = {}
        for each in notifications:
            by_owner.setdefault(owner_of_partition(each.partition, self.count), []).append(each)
        for owner, found in by_owner.items():
            await self.clients[owner].call("notify", encode_notifications(found), WAIT_S)

    async def produce(self) -> Figures:
        zones = [f"zone{number}" for number in range(self.load.zones)]
        partitions = PARTITIONS_EACH * self.count
        source = Source(self.load, self.number, partitions)
        batcher = Batcher(
            self.layer,
            BatcherSettings(
                "bench", BATCH_MIB * MIB, 1e6, compression="none", uploads_in_flight_max=16,
                zone=zones[self.number % len(zones)],
            ),
            [zones[partition % len(zones)] for partition in range(partitions)],
            clock=self.clock,
            entropy=self.entropy,
        )  # fmt: skip
        started_s, rows_in, late_s = time.monotonic(), 0, 0.0
        ticks = round(self.seconds / TICK_S)
        for tick in range(ticks):
            due_s = started_s + tick * TICK_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            late_s = max(late_s, time.monotonic() - due_s)
            rows, chosen = source.chunk(time.time())
            rows_in += rows.num_rows
            await batcher.add(rows, chosen)
            await self.tell(batcher.take_finished())
        elapsed_s = max(self.seconds, time.monotonic() - started_s)
        await batcher.finish()
        await self.tell(batcher.take_finished())
        return {"rows_in": rows_in, "late_s": late_s, "elapsed_s": elapsed_s}


async def child() -> None:
    executor = Executor(await told())
    say({"address": await executor.server.start("127.0.0.1:0")})
    await executor.join((await told())["addresses"])
    cpu_s_before = time.process_time()
    made = await executor.produce()
    say({})
    await told()
    async with asyncio.timeout(WAIT_S):
        while executor.reads:
            await asyncio.gather(*executor.reads)
    say(
        {
            **made,
            "rows_out": executor.rows_out,
            "puts": len(executor.bottom.put_s),
            "puts_full": sum(size >= 0.9 * executor.load.batch_bytes for size in executor.bottom.put_sizes),
            "gets": len(executor.bottom.get_s),
            "latency_p95_s": float(np.percentile(executor.latency_s, 95)),
            "cpu_s": time.process_time() - cpu_s_before,
        }
    )


if __name__ == "__main__":
    asyncio.run(child())
