"""What an operator asks first: how long requests take, which errors they end in, how far groups are behind."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import create_topic

from braidlog.control.groups.meters import GroupMeters
from braidlog.runtime.metrics import Metrics

METADATA = 3


@pytest.fixture(scope="module")
def braidlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBraidlog]:
    folder: Path = tmp_path_factory.mktemp("metrics")
    with InProcessBraidlog(folder) as running:
        yield running


def figures(text: bytes) -> dict[tuple[str, str], float]:
    """Return the samples, by name and labels."""
    return {
        (sample.name, ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_requests_are_timed_and_their_errors_are_counted(braidlog: InProcessBraidlog) -> None:
    peer = Peer(braidlog.bootstrap)
    name = b"no-such-topic"
    for _ in range(3):
        # Version 4, which may ask not to create it.
        peer.send(frame(header(METADATA, 4) + struct.pack(">ih", 1, len(name)) + name + b"\x00"))
        peer.read_frame()
    assert peer.is_alive()
    peer.socket.close()
    found = figures(braidlog.metrics.render())
    assert found["braidlog_agent_request_seconds_count", "api=metadata"] == 3
    assert found["braidlog_agent_request_seconds_bucket", "api=metadata,le=+Inf"] == 3
    assert found["braidlog_agent_request_seconds_sum", "api=metadata"] > 0
    assert found["braidlog_agent_request_seconds_count", "api=api_versions"] >= 1
    errors = "api=metadata,error=unknown_topic_or_partition"
    assert found["braidlog_agent_request_errors_total", errors] == 3
    assert not [each for each, _ in found if each.endswith("_created")]
    assert not [each for each, _ in found if "_ms" in each]


def test_groups_lag_behind_the_end(braidlog: InProcessBraidlog) -> None:
    topic = create_topic(braidlog.bootstrap)
    CLIENTS["confluent"].produce(braidlog.bootstrap, topic, [Record(b"%d" % number) for number in range(10)])
    consumer = Consumer({"bootstrap.servers": braidlog.bootstrap, "group.id": "slow"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    service = braidlog._service
    assert service is not None
    metrics = Metrics()
    metrics.register(GroupMeters(service.parts.groups.commits.offsets, service.parts.catalog))
    found = figures(metrics.render())
    assert found["braidlog_consumer_group_lag_records", f"group=slow,partition=0,topic={topic}"] == 6
    assert found["braidlog_consumer_group_lag_left_out", ""] == 0
