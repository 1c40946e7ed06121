"""Stages of the write path compose: one is put in front of the others, and none of them knows."""

from pathlib import Path

import confluent_kafka
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.topics import create_topic

from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import RequestStage

RECORDS = 40
VALUE = b"v" * 1000


class BytesByTopic:
    """A stage that nobody planned for: it counts what passes, and passes it on."""

    def __init__(self, next_stage: RequestStage) -> None:
        self._next = next_stage
        self.counted: dict[bytes, int] = {}

    def submit(self, request: WriteRequest) -> None:
        self.counted[request.topic_id] = self.counted.get(request.topic_id, 0) + request.entry.length
        self._next.submit(request)


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for _ in range(count):
        producer.produce(topic, VALUE)
        producer.flush(60)
    assert len(producer) == 0


def figures_by_topic(braidlog: InProcessBraidlog, name: str) -> dict[str, float]:
    return {
        sample.labels["topic"]: sample.value
        for family in text_string_to_metric_families(braidlog.metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_a_byte_counter_by_topic_is_one_more_stage(tmp_path: Path) -> None:
    with InProcessBraidlog(tmp_path) as braidlog:
        topics = [create_topic(braidlog.bootstrap, 2) for _ in range(2)]
        write_path = braidlog.agent.write_path
        counter = BytesByTopic(write_path.first_stage)
        write_path.first_stage = counter
        for topic, count in zip(topics, (RECORDS, RECORDS // 4), strict=True):
            produce(braidlog.bootstrap, topic, count)
        by_name = braidlog.agent.view.topics_by_name
        counted = [counter.counted[by_name[topic].info.topic_id] for topic in topics]
        assert counted[0] >= RECORDS * len(VALUE)
        assert counted[0] == pytest.approx(4 * counted[1], rel=0.01)
        # The agent's own stage behind the upload has seen the same.
        assert figures_by_topic(braidlog, "braidlog_upload_bytes_total") == dict(zip(topics, counted, strict=True))


def test_the_bill_is_by_topic(tmp_path: Path) -> None:
    with InProcessBraidlog(tmp_path, store_price="s3-standard") as braidlog:
        topics = [create_topic(braidlog.bootstrap, 1) for _ in range(2)]
        for topic in topics:
            produce(braidlog.bootstrap, topic, 5)
        spent_usd = figures_by_topic(braidlog, "braidlog_upload_usd_total")
        # One record at a time, so every object has one topic, and a PUT is 5 USD for a million.
        assert spent_usd == {topic: pytest.approx(5 * 5e-6) for topic in topics}
        projected_usd = figures_by_topic(braidlog, "braidlog_upload_usd_month_projection")
        assert set(projected_usd) == set(topics)
        assert all(usd > 1 for usd in projected_usd.values())
