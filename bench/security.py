"""Measures what security costs: TLS in CPU, ACLs per request, handshakes per core.

    python bench/security.py --out security.json     about two minutes
    python bench/security.py --quick                 under a minute

One `braid up` on `memory://` with a listener for each of PLAINTEXT and SSL. The same records are produced and consumed
over both, in turn, by confluent-kafka. CPU is user plus system time of the broker; the client's is not counted.
`openssl_cpu_s_per_gb` is what AES-256-GCM alone takes here, to compare the TLS figures with.
"""

import argparse
import json
import re
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _cluster import Process
from braidlog.cli.tools.certificates import write_certificate
from braidlog.security.acls import ALLOW, LITERAL, PREFIXED, TOPIC, WRITE, Acl
from braidlog.security.decisions import AclBook
from braidlog.security.rights import AclRights

RECORD_BYTES = 1024
ACL_COUNT = 1_000
TARGETS = {"tls_produce_cpu_s_per_gb_more": 1.0, "tls_consume_cpu_s_per_gb_more": 1.0, "acl_us_per_request": 1.0}


def measure_acls(rounds: int) -> float:
    """Microseconds of one decision, when all have been made before: 1,000 rules, 100 topics."""
    book = AclBook()
    names = [f"topic-{number}" for number in range(100)]
    book.load(
        Acl(TOPIC, f"topic-{number}", LITERAL if number % 2 else PREFIXED, "User:a", "*", WRITE, ALLOW)
        for number in range(ACL_COUNT)
    )
    rights = AclRights(book, "User:a", "10.0.0.1", allow_unlisted=False)
    took: list[float] = []
    for _ in range(5):
        begun_s = time.process_time()
        for _ in range(rounds):
            for name in names:
                if rights.is_limited and not rights.topic(WRITE, name):
                    raise AssertionError(name)
        took.append((time.process_time() - begun_s) / rounds / len(names) * 1e6)
    return statistics.median(took)


def measure_openssl() -> float | None:
    """CPU seconds of AES-256-GCM for a GB, in pieces as large as TLS has them; None without `openssl`."""
    command = ["openssl", "speed", "-evp", "aes-256-gcm", "-bytes", "16384", "-seconds", "1"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^AES-256-GCM\s+([\d.]+)k", told, re.MULTILINE)
    return 1e9 / (float(found[1]) * 1000) if found else None


def produce(config: dict[str, Any], total_bytes: int) -> None:
    import confluent_kafka

    producer = confluent_kafka.Producer(
        {**config, "linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.messages": 200_000, "acks": "all"}
    )
    value = bytes(RECORD_BYTES)
    for _ in range(total_bytes // RECORD_BYTES):
        while True:
            try:
                producer.produce("load", value)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def consume(config: dict[str, Any], total_bytes: int) -> None:
    import confluent_kafka

    consumer = confluent_kafka.Consumer({**config, "group.id": "bench", "fetch.max.bytes": 50_000_000})
    consumer.assign([confluent_kafka.TopicPartition("load", 0, 0)])
    left = total_bytes // RECORD_BYTES
    while left > 0:
        left -= sum(message.error() is None for message in consumer.consume(min(left, 10_000), 60))
    consumer.close()


def cpu_s_per_gb(
    broker: Process, work: Callable[[dict[str, Any], int], None], config: dict[str, Any], total_bytes: int
) -> float:
    before_s = broker.cpu_s()
    work(config, total_bytes)
    return (broker.cpu_s() - before_s) / (total_bytes / 1e9)


def measure_handshakes(broker: Process, port: int, ca: Path, count: int) -> float:
    """Whole TLS handshakes that a core does in a second, by the broker's CPU time."""
    context = ssl.create_default_context(cafile=str(ca))
    before_s = broker.cpu_s()
    for _ in range(count):
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1"),
        ):
            pass
    return count / (broker.cpu_s() - before_s)


def measure_tls(folder: Path, total_bytes: int, rounds: int, handshakes: int) -> dict[str, float]:
    made = write_certificate(folder, ["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {
        "listeners": f"SSL://127.0.0.1:{port}",
        "ssl_certificate_file": str(made["certificate"]),
        "ssl_key_file": str(made["key"]),
        "cache_bytes": "1GiB",
        "pipeline": "off",
    }
    with Process("up", store="memory", settings=settings) as broker:
        ways = {
            "plain": {"bootstrap.servers": broker.endpoints["kafka"]},
            "tls": {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "security.protocol": "SSL",
                "ssl.ca.location": str(made["ca"]),
            },
        }
        taken: dict[tuple[str, str], list[float]] = {}
        for turn in range(rounds + 1):
            for name, config in ways.items():
                for what, work in (("produce", produce), ("consume", consume)):
                    figure = cpu_s_per_gb(broker, work, config, total_bytes)
                    if turn:  # the first turn warms up
                        taken.setdefault((what, name), []).append(figure)
        per_core = measure_handshakes(broker, port, made["ca"], handshakes)
    figures = {f"{name}_{what}_cpu_s_per_gb": statistics.median(each) for (what, name), each in taken.items()}
    for what in ("produce", "consume"):
        plain, tls = figures[f"plain_{what}_cpu_s_per_gb"], figures[f"tls_{what}_cpu_s_per_gb"]
        figures[f"tls_{what}_cpu_vs_plain"] = tls / plain
        figures[f"tls_{what}_cpu_s_per_gb_more"] = tls - plain
    return {**figures, "handshakes_per_s_core": per_core}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: dict[str, float | None] = {"acl_us_per_request": measure_acls(100 if options.quick else 1000)}
    figures["openssl_cpu_s_per_gb"] = measure_openssl()
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
        size = 200_000_000 if options.quick else 500_000_000
        figures |= measure_tls(Path(folder), size, 1 if options.quick else 3, 100 if options.quick else 500)
    for name, figure in figures.items():
        target = f"  (goal: at most {TARGETS[name]:g})" if name in TARGETS else ""
        sys.stderr.write(f"{name:36} {'-' if figure is None else format(figure, '.3f')}{target}\n")
    text = json.dumps(figures, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
