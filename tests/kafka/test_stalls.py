"""Clients that hold an agent's memory and do nothing with it do not hold up the others."""

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests.cluster import wait_until
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import create_topic

from braidlog.agent.connections import stalls

MIB = 1024 * 1024
BUDGET_BYTES = 16 * MIB
FETCH, FETCH_VERSION = 1, 4
PIPELINED = 24


@pytest.fixture
def braidlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessBraidlog]:
    """With little memory, and with an eye on it that is quicker than usual."""
    monkeypatch.setattr(stalls, "LOOK_INTERVAL_S", 0.2)
    settings = {"memory_budget_bytes": BUDGET_BYTES, "response_budget_bytes": BUDGET_BYTES, "cache_bytes": BUDGET_BYTES}
    with InProcessBraidlog(tmp_path, **settings) as running:
        yield running


@pytest.fixture
def connect(braidlog: InProcessBraidlog) -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def connect() -> Peer:
        peers.append(Peer(braidlog.bootstrap))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.socket.close()


def produce(bootstrap: str, topic: str, count: int, value: bytes) -> None:
    """Each record in a batch of its own."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 1})
    for _ in range(count):
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed


def fetch(topic: str, offset: int, bytes_max: int) -> bytes:
    """Fetch records of the first partition that are there already."""
    body = struct.pack(">iiiib", -1, 100, 1, bytes_max, 0)
    name = struct.pack(">ih", 1, len(topic)) + topic.encode()
    return frame(header(FETCH, FETCH_VERSION) + body + name + struct.pack(">iiqi", 1, 0, offset, bytes_max))


def test_requests_that_never_arrive(
    braidlog: InProcessBraidlog, connect: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is only announced takes nothing from anybody, so that nobody has to go for it."""
    topic = create_topic(braidlog.bootstrap)
    monkeypatch.setattr(stalls, "LOOK_INTERVAL_S", 3600.0)
    peers = [connect() for _ in range(60)]
    for peer in peers:
        peer.send(struct.pack(">i", 100 * MIB))
    produce(braidlog.bootstrap, topic, 1, b"served all the same")
    produce(braidlog.bootstrap, topic, 8, bytes(900_000))
    assert connect().is_alive()


def test_requests_that_stop_halfway(braidlog: InProcessBraidlog, connect: Callable[[], Peer]) -> None:
    """Together they fill the budget. Small requests pass, and large ones as soon as these are given up."""
    topic = create_topic(braidlog.bootstrap)
    peers = [connect() for _ in range(8)]
    for peer in peers:
        with contextlib.suppress(ConnectionError):  # it may be given up before all of this is sent
            peer.send(struct.pack(">i", 90 * MIB) + header(0, 7) + bytes(4 * MIB))
    assert braidlog.agent.connections.request_memory.used_bytes <= BUDGET_BYTES + 90 * MIB
    assert connect().is_alive()
    produce(braidlog.bootstrap, topic, 1, bytes(900_000))
    for peer in peers:
        peer.socket.close()
    wait_until(lambda: braidlog.agent.connections.request_memory.used_bytes == 0, what="all is given back")


@pytest.mark.parametrize("batch_bytes", [4_000, 400_000], ids=["small batches", "large batches"])
def test_responses_that_nobody_takes(
    braidlog: InProcessBraidlog, connect: Callable[[], Peer], batch_bytes: int
) -> None:
    topic = create_topic(braidlog.bootstrap)
    produce(braidlog.bootstrap, topic, 24 * MIB // batch_bytes, bytes(batch_bytes))
    budget = braidlog.agent.connections.response_memory
    deaf = [connect() for _ in range(4)]
    for peer in deaf:
        peer.send(fetch(topic, 0, 12 * MIB) * PIPELINED)
    wait_until(lambda: budget.waiting, what="the budget is taken")
    assert budget.used_bytes <= BUDGET_BYTES
    # The deaf are not closed for being deaf, but for being in the way: all of these are answered.
    for _ in range(4):
        listener = connect()
        listener.send(fetch(topic, 0, 12 * MIB))
        assert len(listener.read_frame()) > 11 * MIB
        listener.socket.close()
    for peer in deaf:
        peer.socket.close()
    wait_until(lambda: budget.used_bytes == 0 and not budget.waiting, what="all is given back")


def test_pipelined_fetches_are_answered_in_their_order(
    braidlog: InProcessBraidlog, connect: Callable[[], Peer]
) -> None:
    topic = create_topic(braidlog.bootstrap)
    produce(braidlog.bootstrap, topic, 300, bytes(40_000))
    peer = connect()
    peer.send(b"".join(fetch(topic, offset, MIB) for offset in range(PIPELINED)))
    for offset in range(PIPELINED):
        answer = peer.read_frame()
        # Behind correlation id, throttle time, one topic, and one partition up to its records.
        records_position = 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4
        assert struct.unpack_from(">q", answer, records_position)[0] == offset
    wait_until(lambda: braidlog.agent.connections.response_memory.used_bytes == 0, what="all is given back")
