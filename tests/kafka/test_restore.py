"""The metadata's disk is lost under real processes that serve clients, and restored from the store alone."""

import json
from pathlib import Path

import pytest
from tests.cluster import Cluster, wait_until
from tests.kafka.clients import CLIENTS, Record, SteadyProducer
from tests.kafka.conftest import QUICK_SETTINGS
from tests.kafka.topics import create_topic
from typer.testing import CliRunner

from braidlog.cli.main import app

PARTITIONS = 2
KEPT = 50


@pytest.mark.slow
def test_a_lost_disk_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    # The copy advances only when something waits for it: so much lies behind it when the disk is lost.
    settings = {**QUICK_SETTINGS, "request_timeout_ms": 60_000, "metadata_copy_interval_s": 3_600}
    with Cluster(tmp_path, settings=settings) as cluster:
        control = cluster.control()
        agent = cluster.agent(control=control)
        topic = create_topic(agent.address, PARTITIONS)
        kept = [Record(b"kept %d" % number) for number in range(KEPT)]
        offsets = CLIENTS["confluent"].produce(agent.address, topic, kept)
        create_topic(agent.address, 1)  # the copy has everything before it
        producer = SteadyProducer(
            agent.address,
            topic,
            partition_count=PARTITIONS,
            per_s=100.0,
            **{"enable.idempotence": True, "socket.timeout.ms": 60_000},
        )
        wait_until(lambda: len(producer.acknowledged) > 50, what="the load")

        for path in tmp_path.glob("metadata.db*"):
            path.unlink()
        control.kill()
        arguments = ["control", "restore", "--store", cluster.store_url, "--metadata", cluster.metadata_url]
        result = CliRunner().invoke(app, [*arguments, "--skip-wait", "--format", "json"])
        assert result.exit_code == 0, (result.stderr, result.exception)
        report = json.loads(result.stdout)
        assert report["source"] == "copy"
        assert {each["topic"] for each in report["partitions"]} == {topic}
        assert all(each["end_offset"] > each["gap_end_offset"] for each in report["partitions"])

        control.start()
        before = len(producer.acknowledged)
        wait_until(lambda: len(producer.acknowledged) > before + 50, what="acknowledgements again", timeout_s=120)
        producer.stop()
        assert producer.failed == {}
        assert producer.fatal == ""
        count = KEPT + producer.sent_count
        everything = CLIENTS["confluent"].consume(agent.address, topic, count, partitions=range(PARTITIONS))
        values = sorted(record.value.split(b" \0")[0].strip() for record in everything if record.value is not None)
        wanted = [record.value for record in kept] + [b"%d" % number for number in range(producer.sent_count)]
        assert values == sorted(value for value in wanted if value is not None)
        found = sorted(record.offset for record in everything if (record.value or b"").startswith(b"kept"))
        assert found == sorted(offsets)
