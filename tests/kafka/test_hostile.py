"""Valid but hostile requests: nobody stops the loop, takes memory past its budgets, or keeps others from being served.

How long a step takes is measured in CPU time of the loop's own thread, so that a busy machine changes nothing. The aim
is 100 ms at most; this test allows five times that. `bench/hostile.py` measures what other clients notice.
"""

import gc
import mmap
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from tests.cluster import wait_until
from tests.kafka.hostile import Hostility, advertised, announced, exchange
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import admin_client
from tests.step_meter import StepMeter

from braidlog.cli.servers.process import tune_garbage_collection
from braidlog.runtime.clock import SystemClock

pytestmark = pytest.mark.slow

SEEDS = (1, 2)
STEP_CPU_S_MAX = 0.5
MIB = 1024 * 1024
BUDGET_BYTES = 64 * MIB
GROWTH_BYTES_MAX = 12 * BUDGET_BYTES
"""Three budgets, half as much again for what arrives, the catalog, and what Python keeps."""
TOPICS = [f"topic-{number}" for number in range(30)]
LARGE_TOPIC, LARGE_PARTITIONS = "large", 5_000
PRODUCE, FETCH, METADATA = 0, 1, 3


@pytest.fixture
def tuned() -> Iterator[None]:
    """Collect garbage as servers do: pytest's own objects would be a large part of each step otherwise."""
    threshold = gc.get_threshold()
    tune_garbage_collection()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.fixture
def braidlog(tmp_path: Path, tuned: None) -> Iterator[InProcessBraidlog]:
    budgets = dict.fromkeys(("memory_budget_bytes", "response_budget_bytes", "cache_bytes"), BUDGET_BYTES)
    with InProcessBraidlog(tmp_path, group_initial_rebalance_delay_ms=0, **budgets) as running:
        admin = admin_client(running.bootstrap)
        wanted = [NewTopic(LARGE_TOPIC, LARGE_PARTITIONS, 1), *(NewTopic(name, 3, 1) for name in TOPICS)]
        for created in admin.create_topics(wanted).values():
            created.result(60)
        yield running


@pytest.fixture
def meter(braidlog: InProcessBraidlog) -> Iterator[StepMeter]:
    meter = StepMeter(SystemClock())
    braidlog._loop.call_soon_threadsafe(meter.start)
    yield meter
    meter.stop()


@pytest.fixture
def connect(braidlog: InProcessBraidlog) -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def connect() -> Peer:
        peers.append(Peer(braidlog.bootstrap))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.socket.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def check(braidlog: InProcessBraidlog, meter: StepMeter, connect: Callable[[], Peer], what: object) -> None:
    assert connect().is_alive(), what
    assert meter.cpu_s_max < STEP_CPU_S_MAX, f"a step took {meter.cpu_s_max} s of CPU: {what}"
    assert braidlog.agent.connections.request_memory.used_bytes <= 2 * BUDGET_BYTES + 100 * MIB, what
    assert braidlog.agent.connections.response_memory.used_bytes <= BUDGET_BYTES, what


@pytest.mark.parametrize("seed", SEEDS)
def test_every_api_in_every_version(
    braidlog: InProcessBraidlog, meter: StepMeter, connect: Callable[[], Peer], seed: int
) -> None:
    hostility = Hostility(seed, [LARGE_TOPIC, *TOPICS], elements_max=4_000)
    before_bytes = resident_bytes()
    apis = advertised()
    random.Random(seed).shuffle(apis)
    for key, version in apis:
        peer = connect()
        exchange(peer, hostility.request(key, version) + hostility.request(key, version))
        peer.socket.close()
        check(braidlog, meter, connect, (seed, key, version))
    assert resident_bytes() - before_bytes < GROWTH_BYTES_MAX
    wait_until(lambda: braidlog.agent.connections.request_memory.used_bytes == 0, what="all is given back")


def long_requests() -> dict[str, bytes]:
    """Requests that name as many things as they may, or nearly: none of them is answered in one step."""

    def array(elements: list[bytes]) -> bytes:
        return struct.pack(">i", len(elements)) + b"".join(elements)

    def named(name: str) -> bytes:
        return struct.pack(">h", len(name)) + name.encode()

    many = range(150_000)
    start = struct.pack(">iiiib", -1, 0, 0, MIB, 0)
    fetched = array([struct.pack(">iqi", index, 0, 1_000) for index in many])
    unknown = array([named(f"unknown-{number}") for number in many])
    produced = array([struct.pack(">ii", index % LARGE_PARTITIONS, 0) for index in range(19_000)])
    in_session = struct.pack(">iiiibii", -1, 0, 0, MIB, 0, 0, 0)
    kept = array([struct.pack(">iqqi", index, 0, -1, 1_000) for index in range(19_000)])
    return {
        "a fetch of many partitions": frame(header(FETCH, 4) + start + array([named(LARGE_TOPIC) + fetched])),
        "a session of many partitions": frame(
            header(FETCH, 7) + in_session + array([named(LARGE_TOPIC) + kept]) + array([])
        ),
        "unknown names": frame(header(METADATA, 4) + unknown + b"\x00"),
        "a produce request of many partitions": frame(
            header(PRODUCE, 3) + struct.pack(">hhi", -1, 1, 1_000) + array([named(LARGE_TOPIC) + produced])
        ),
    }


def test_pipelines_floods_and_half_connections(
    braidlog: InProcessBraidlog, meter: StepMeter, connect: Callable[[], Peer]
) -> None:
    before_bytes = resident_bytes()
    all_topics = frame(header(METADATA, 1) + struct.pack(">i", -1))
    named = struct.pack(">h", len(LARGE_TOPIC)) + LARGE_TOPIC.encode()
    repeated = frame(header(METADATA, 1) + struct.pack(">i", 2_000) + named * 2_000)
    exchange(connect(), all_topics * 500)
    check(braidlog, meter, connect, "deep pipelining")
    exchange(connect(), repeated * 20)
    check(braidlog, meter, connect, "a name many times over")
    for what, request in long_requests().items():
        exchange(connect(), request)
        check(braidlog, meter, connect, what)
    deaf = [connect() for _ in range(20)]
    for peer in deaf:
        peer.send(all_topics * 100)
    check(braidlog, meter, connect, "answers that nobody takes")
    for peer in deaf:
        peer.socket.close()
    for _ in range(300):
        connect().send(announced(100 * MIB))
    check(braidlog, meter, connect, "announced and never sent")
    for length in (2, 7, 1_000, 60_000, 900_000):
        for _ in range(20):
            connect().send(announced(MIB, all_topics[4:] + bytes(length)))
    check(braidlog, meter, connect, "halves of requests")
    slow = connect()
    for byte in frame(header(18, 0)):
        slow.send(bytes([byte]))
    assert slow.read_frame()
    for _ in range(200):
        connect().socket.close()
    check(braidlog, meter, connect, "come and gone")
    assert resident_bytes() - before_bytes < GROWTH_BYTES_MAX
