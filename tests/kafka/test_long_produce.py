"""A produce request of many partitions is handled in slices, and its connection's records keep their order."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode as E
from kio.serial import entity_reader
from tests.kafka.conformance.records import batch
from tests.kafka.conformance.test_records import PRODUCE, now_ms
from tests.kafka.conformance.wire import ms
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import create_topic
from tests.wire.kio_entities import encode, requests

from braidlog.agent.apis.records import api_00_produce

VERSION = 9
PARTITIONS = 50


@pytest.fixture
def braidlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessBraidlog]:
    monkeypatch.setattr(api_00_produce, "LONG_PARTITIONS", 10)
    monkeypatch.setattr(api_00_produce, "SLICE_LENGTH", 7)
    with InProcessBraidlog(tmp_path) as running:
        yield running


def request(topic: str, indexes: range) -> bytes:
    new = requests(PRODUCE, VERSION)
    data = tuple(
        new("PartitionProduceData", index=index, records=batch(b"%d" % index, timestamp_ms=now_ms()))
        for index in indexes
    )
    topics = tuple(new("TopicProduceData", name=name, partition_data=data) for name in (topic, "no-such-topic"))
    entity = new("ProduceRequest", transactional_id=None, acks=-1, timeout=ms(10_000), topic_data=topics)
    return frame(header(PRODUCE, VERSION) + b"\x00" + encode(entity))


def read_answer(peer: Peer) -> list[list[tuple[int, int, int]]]:
    body = memoryview(peer.read_frame()[5:]).toreadonly()
    response: Any = entity_reader(load_response_schema(PRODUCE, VERSION))(body, 0)[0]
    return [
        [(each.index, each.error_code, each.base_offset) for each in topic.partition_responses]
        for topic in response.responses
    ]


def test_every_partition_is_answered_and_requests_behind_it_stay_behind(braidlog: InProcessBraidlog) -> None:
    topic = create_topic(braidlog.bootstrap, PARTITIONS)
    everything, one_too_many = range(PARTITIONS), range(PARTITIONS + 1)
    peer = Peer(braidlog.bootstrap)
    peer.send(request(topic, one_too_many) + request(topic, range(3)) + request(topic, everything))
    found = [read_answer(peer) for _ in range(3)]
    peer.socket.close()
    unknown = E.unknown_topic_or_partition
    written, refused = found[0]
    assert written == [*((index, E.none, 0) for index in everything), (PARTITIONS, unknown, -1)]
    assert refused == [(index, unknown, -1) for index in one_too_many]
    assert found[1][0] == [(index, E.none, 1) for index in range(3)]
    assert found[2][0] == [(index, E.none, 2 if index < 3 else 1) for index in everything]
