"""Batches that take long to check: neither do they stop the agent, nor does what comes behind overtake them."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from kio.schema.errors import ErrorCode as E
from tests.kafka.conformance.records import raw_batch, record
from tests.kafka.conformance.test_records import now_ms, offset_at, produce
from tests.kafka.conformance.wire import Wire
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import create_topic

from braidlog.records.codec import Codec, compress

ZSTD = int(Codec.ZSTD)
MIB = 1024 * 1024
PRODUCE, PRODUCE_VERSION = 0, 7


@pytest.fixture
def braidlog(tmp_path: Path) -> Iterator[InProcessBraidlog]:
    with InProcessBraidlog(tmp_path, batch_expanded_bytes_max="4MiB") as running:
        yield running


def heavy(value_bytes: int, mark: bytes) -> bytes:
    payload = record(0, mark + bytes(value_bytes), b"k")
    return raw_batch(compress(Codec.ZSTD, payload), 1, attributes=ZSTD, timestamp_ms=now_ms())


def light(value: bytes) -> bytes:
    return raw_batch(record(0, value), 1, timestamp_ms=now_ms())


@pytest.mark.parametrize(
    "config", [{}, {"cleanup_policy": "compact"}, {"compression_type": "gzip"}, {"braidlog_topic_type": "lightning"}]
)
def test_a_batch_that_expands_past_the_limit_is_refused(braidlog: InProcessBraidlog, config: dict[str, str]) -> None:
    topic = create_topic(braidlog.bootstrap, 1, **config)
    with Wire(braidlog.bootstrap) as wire:
        refused = produce(wire, topic, heavy(5 * MIB, b"bomb"))
        assert refused.error_code == E.message_too_large
        assert "batch_expanded_bytes_max" in refused.error_message
        assert produce(wire, topic, heavy(3 * MIB, b"large")).error_code == E.none


def frame_of(topic: str, data: bytes) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 30_000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(data)) + data
    return frame(header(PRODUCE, PRODUCE_VERSION) + body)


def base_offset(topic: str, answer: bytes) -> int:
    _, error_code, offset = struct.unpack_from(">ihq", answer, 4 + 4 + 2 + len(topic) + 4)
    assert error_code == E.none
    return int(offset)


def test_requests_behind_a_heavy_one_stay_behind_it(braidlog: InProcessBraidlog) -> None:
    topic = create_topic(braidlog.bootstrap, 1)
    count = 20
    frames = [frame_of(topic, heavy(MIB, b"%02d" % at) if at % 4 == 1 else light(b"%02d" % at)) for at in range(count)]
    peer = Peer(braidlog.bootstrap)
    try:
        peer.send(b"".join(frames))
        answers = [peer.read_frame() for _ in range(count)]
    finally:
        peer.socket.close()
    assert [base_offset(topic, answer) for answer in answers] == list(range(count))
    consumer = Consumer(
        {"bootstrap.servers": braidlog.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        read = [(message.value() or b"")[:2] for message in consumer.consume(count, 60) if message.error() is None]
    finally:
        consumer.close()
    assert read == [b"%02d" % at for at in range(count)]


def test_what_is_found_by_its_time_may_be_in_a_heavy_batch(braidlog: InProcessBraidlog) -> None:
    topic = create_topic(braidlog.bootstrap, 1)
    with Wire(braidlog.bootstrap) as wire:
        begun_ms = now_ms()
        assert produce(wire, topic, heavy(3 * MIB, b"large")).error_code == E.none
        assert offset_at(wire, topic, begun_ms - 60_000).offset == 0
