"""Measures how much hostile clients disturb a well-behaved one.

It also measures how long they hold up the event loop.

    python bench/hostile.py --out hostile.json      about two minutes
    python bench/hostile.py --quick                 half a minute

One `braid up` with a topic of many partitions. A client asks for a small topic's metadata, over and over, first alone
and then beside each attack, which comes from a process of its own. The aims: no stall of the loop above 100 ms, and the
client's p99 within three times what it is alone. Both need a quiet machine.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event as ProcessEvent
from pathlib import Path

from _cluster import Process

LARGE_TOPIC, PARTITIONS = "large", 10_000
SMALL_TOPIC = "small"
METADATA, CLIENT = 3, b"bench"
MEASURED_S, MEASURED_QUICK_S = 20.0, 5.0
PAUSE_S = 0.002
"""Between the client's requests."""
STALL_S_MAX, RATIO_MAX = 0.1, 3.0
MIB = 1024 * 1024

Address = tuple[str, int]


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def metadata(*names: str) -> bytes:
    """A request for these topics; for all, where none is named."""
    encoded = b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)
    head = struct.pack(">hhih", METADATA, 1, 7, len(CLIENT)) + CLIENT
    return frame(head + struct.pack(">i", len(names) or -1) + encoded)


def read_answer(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


# ── attacks ──


def pipeline(address: Address) -> None:
    """Everything, many times over, from a client that goes before it is answered."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(metadata() * 500)
        connection.recv(1 << 16)


def repeat(address: Address) -> None:
    """One topic, named a thousand times in a request."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(metadata(*[LARGE_TOPIC] * 1_000))
        read_answer(connection)


def announce(address: Address) -> None:
    """Large requests that are never sent."""
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(socket.create_connection(address, timeout=10))
            connection.sendall(struct.pack(">i", 100 * MIB))
        time.sleep(0.5)


def come_and_go(address: Address) -> None:
    """Connections that send half a request and leave."""
    for _ in range(50):
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(metadata()[:9])


ATTACKS: dict[str, Callable[[Address], None]] = {
    "pipeline": pipeline,
    "repeat": repeat,
    "announce": announce,
    "come_and_go": come_and_go,
}


def attack(name: str, address: Address, done: ProcessEvent) -> None:
    while not done.is_set():
        with contextlib.suppress(OSError):
            ATTACKS[name](address)


# ── what is measured ──


def latencies_s(address: Address, seconds: float) -> list[float]:
    found: list[float] = []
    request = metadata(SMALL_TOPIC)
    with socket.create_connection(address, timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            started_s = time.perf_counter()
            connection.sendall(request)
            read_answer(connection)
            found.append(time.perf_counter() - started_s)
            time.sleep(PAUSE_S)
    return sorted(found)


def p99_ms(latencies: list[float]) -> float:
    return round(1000 * latencies[int(0.99 * len(latencies))], 3)


def measure(seconds: float) -> dict[str, float]:
    from confluent_kafka.admin import AdminClient, NewTopic

    with Process("up", store="memory") as broker:
        address = broker.address("kafka")
        admin = AdminClient({"bootstrap.servers": f"{address[0]}:{address[1]}"})
        for topic in (NewTopic(LARGE_TOPIC, PARTITIONS), NewTopic(SMALL_TOPIC, 3)):
            admin.create_topics([topic])[topic.topic].result(60)
        del admin
        alone = p99_ms(latencies_s(address, seconds))
        figures = {"hostile_alone_p99_ms": alone}
        context = multiprocessing.get_context("spawn")
        for name in ATTACKS:
            done = context.Event()
            attacker = context.Process(target=attack, args=(name, address, done))
            attacker.start()
            try:
                beside = p99_ms(latencies_s(address, seconds))
            finally:
                done.set()
                attacker.join(30)
                if attacker.is_alive():
                    attacker.kill()
            figures[f"hostile_{name}_p99_ms"] = beside
            figures[f"hostile_{name}_ratio"] = round(beside / alone, 2)
            verdict = "ok" if beside <= RATIO_MAX * alone else f"above {RATIO_MAX} times"
            print(f"{name}: p99 {beside} ms, alone {alone} ms: {verdict}", file=sys.stderr)
        stall_s = broker.metric("braidlog_event_loop_stall_max_seconds")
        figures["hostile_stall_max_s"] = round(stall_s, 4)
        figures["hostile_rss_mb"] = round(broker.resident_bytes() / 1e6, 1)
        verdict = "ok" if stall_s <= STALL_S_MAX else f"above {STALL_S_MAX} s"
        print(f"longest stall that was seen: {stall_s:.3f} s: {verdict}", file=sys.stderr)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, as one flat JSON object")
    parser.add_argument("--quick", action="store_true", help=f"measure for {MEASURED_QUICK_S:.0f} s each")
    options = parser.parse_args()
    figures: dict[str, float] = {"hostile_partitions": PARTITIONS}
    figures |= measure(MEASURED_QUICK_S if options.quick else MEASURED_S)
    figures["load_average"] = os.getloadavg()[0]
    text = json.dumps(figures, indent=2)
    if options.out is not None:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
