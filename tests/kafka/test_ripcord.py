"""Real processes without a control plane: agents go on, agents start, and what they took is in the log afterwards."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import msgspec
import pytest
from tests.cluster import Cluster, Process, free_port, wait_until
from tests.kafka.clients import CLIENTS, Record, SteadyProducer, numbers_by_partition
from tests.kafka.conftest import QUICK_SETTINGS
from tests.kafka.topics import admin_client, create_topic

from braidlog.agent.ripcord.discovery import AgentNotice
from braidlog.agent.ripcord.snapshot import decode_snapshot
from braidlog.node.children import read_figures
from braidlog.objects.keys import AGENT_SNAPSHOT_KEY, DISCOVERY_PREFIX

PARTITIONS = 2
AWAY_SETTINGS = {**QUICK_SETTINGS, "ripcord_after_ms": 1000, "agent_session_timeout_s": 2}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, settings=AWAY_SETTINGS) as cluster:
        yield cluster


def wait_snapshot(cluster: Cluster, topic: str) -> None:
    """Until the agents' snapshot knows the topic."""

    def is_there() -> bool:
        path = cluster.store_path / AGENT_SNAPSHOT_KEY
        return path.exists() and topic in [each.name for each in decode_snapshot(path.read_bytes()).topics]

    wait_until(is_there, what=f"the snapshot with {topic}")


def states(cluster: Cluster) -> dict[int, str]:
    """What each agent said last of the control plane, by port."""
    folder = cluster.store_path / DISCOVERY_PREFIX
    written = sorted((path.stat().st_mtime, path) for path in folder.iterdir() if path.is_file())
    notices = [msgspec.msgpack.decode(path.read_bytes(), type=AgentNotice) for _, path in written]
    return {notice.agent.port: notice.state for notice in notices}


def wait_states(cluster: Cluster, state: str) -> None:
    wait_until(lambda: set(states(cluster).values()) == {state}, what=f"agents that say {state}", timeout_s=60.0)


def status(cluster: Cluster) -> dict[str, Any]:
    control = cluster.processes["control"]
    command = [sys.executable, "-m", "braidlog", "ripcord", "status", "--format", "json"]
    found = subprocess.run(
        [*command, "--store", cluster.store_url, "--control", control.address], capture_output=True, check=True
    )
    parsed: dict[str, Any] = json.loads(found.stdout)
    return parsed


def journal_files(cluster: Cluster) -> int:
    return sum(1 for path in (cluster.store_path / "journal").rglob("*") if path.is_file())


def produce(bootstrap: str, topic: str, count: int, *, idempotent: bool) -> None:
    """Write numbers over the partitions; all must be acknowledged."""
    failed: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": idempotent,
            "acks": "all",
            "message.timeout.ms": 60_000,
        }
    )
    for number in range(count):
        producer.produce(
            topic,
            b"%d " % number,
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
    assert producer.flush(90) == 0
    assert failed == []


def read_in_time(bootstrap: str, topic: str, count: int) -> list[Record]:
    """All records, as soon as so many are there."""

    def end() -> int:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
        try:
            places = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(place, timeout=20)[1] for place in places)
        except confluent_kafka.KafkaException:
            return -1
        finally:
            consumer.close()

    there = -1

    def all_there() -> bool:
        nonlocal there
        there = end()
        return there >= count

    wait_until(all_there, what=f"{count} records in {topic}", timeout_s=120.0, interval_s=0.2)
    assert there == count
    return CLIENTS["confluent"].consume(bootstrap, topic, count, partitions=range(PARTITIONS))


def check_in_order(found: list[Record], count: int) -> None:
    """Once each, and in each partition in the order in which they were written."""
    for partition, numbers in numbers_by_partition(found).items():
        assert numbers == list(range(partition, count, PARTITIONS))


def start_cold(cluster: Cluster) -> tuple[Process, Process, str]:
    """A control plane that is away, and an agent that has started without it. Also returns the topic."""
    control = cluster.control()
    agent = cluster.agent(control=control, ripcord="auto")
    topic = create_topic(agent.address, PARTITIONS)
    wait_snapshot(cluster, topic)
    [before] = admin_client(agent.address).list_topics(timeout=60).brokers
    control.kill()
    agent.kill()
    assert journal_files(cluster) == 0
    agent.start()
    known = admin_client(agent.address).list_topics(timeout=60)
    assert list(known.brokers) == [before]  # it is who it was
    assert sorted(known.topics[topic].partitions) == list(range(PARTITIONS))
    return control, agent, topic


def test_an_agent_starts_accepts_and_journals_without_the_control_plane(cluster: Cluster) -> None:
    _, agent, topic = start_cold(cluster)
    produce(agent.address, topic, 100, idempotent=True)
    assert journal_files(cluster) > 0
    told = status(cluster)
    assert told["control"]["control_state"] == "away"
    assert told["snapshot"]["snapshot_topics"] == 1
    assert told["agents"][0]["state"] == "away"


@pytest.mark.slow
def test_agents_that_started_without_it_find_each_other_and_are_taken_in_when_it_is_back(cluster: Cluster) -> None:
    control, agent, topic = start_cold(cluster)
    produce(agent.address, topic, 100, idempotent=True)
    other = cluster.agent("other", control=control, ripcord="auto")  # nobody has ever heard of this one

    def brokers_of(process: Process) -> set[int]:
        return {broker.port for broker in admin_client(process.address).list_topics(timeout=60).brokers.values()}

    for process in (agent, other):
        wait_until(
            lambda process=process: brokers_of(process) == {agent.port, other.port},  # type: ignore[misc]
            what="that the agents find each other",
        )
    control.start()
    check_in_order(read_in_time(agent.address, topic, 100), 100)
    # And the log goes on as if nothing had been.
    wait_states(cluster, "present")
    offsets = CLIENTS["confluent"].produce(other.address, topic, [Record(b"last")])
    assert offsets == [50]
    assert status(cluster)["control"]["control_state"] == "present"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["on", "auto"])
def test_an_outage_under_load(mode: str, cluster: Cluster) -> None:
    control = cluster.control()
    agent = cluster.agent(control=control, ripcord=mode)
    topic = create_topic(agent.address, PARTITIONS)
    wait_snapshot(cluster, topic)
    producer = SteadyProducer(
        agent.address, topic, partition_count=PARTITIONS, per_s=200.0, **{"enable.idempotence": True}
    )
    wait_until(lambda: len(producer.acknowledged) > 50, what="the load")
    control.kill()
    wait_until(lambda: journal_files(cluster) > 20, what="journaled records")
    in_outage = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) > in_outage + 200, what="acknowledgements in the outage")
    control.start()
    in_return = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) > in_return + 500, what="acknowledgements after the return")
    producer.stop()
    assert producer.failed == {}
    assert producer.fatal == ""
    found = read_in_time(agent.address, topic, producer.sent_count)
    check_in_order(found, producer.sent_count)


@pytest.mark.slow
def test_a_partition_leaves_the_journal_when_all_of_the_outage_is_sequenced(cluster: Cluster) -> None:
    cluster.settings["ripcord_after_ms"] = 10_000  # a busy machine must not look like another outage afterwards
    control = cluster.control()
    agent = cluster.agent(control=control, ripcord="auto")
    topic = create_topic(agent.address, PARTITIONS)
    wait_snapshot(cluster, topic)
    control.kill()
    wait_states(cluster, "away")
    produce(agent.address, topic, 100, idempotent=False)
    control.start()
    wait_states(cluster, "present")
    files = journal_files(cluster)
    offsets = CLIENTS["confluent"].produce(agent.address, topic, [Record(b"one"), Record(b"two")])
    assert offsets == [50, 51]  # told again, behind all that was journaled
    assert journal_files(cluster) <= files


@pytest.mark.slow
def test_without_it_topics_that_are_journaled_go_on_and_others_wait(cluster: Cluster) -> None:
    control = cluster.control()
    agent = cluster.agent(control=control, ripcord="off")
    classic = create_topic(agent.address, PARTITIONS)
    lightning = create_topic(agent.address, PARTITIONS, **{"braidlog.topic.type": "lightning"})
    produce(agent.address, lightning, 10, idempotent=True)
    control.kill()
    waiting = SteadyProducer(agent.address, classic, per_s=50.0, **{"enable.idempotence": True})
    time.sleep(3.0)  # so that it is known to be away
    produce(agent.address, lightning, 100, idempotent=True)
    assert waiting.acknowledged == {}
    assert waiting.fatal == ""
    control.start()
    wait_until(lambda: len(waiting.acknowledged) > 100, what="that what waited is written", timeout_s=60.0)
    waiting.stop()
    assert waiting.failed == {}
    assert len(read_in_time(agent.address, lightning, 110)) == 110


@pytest.mark.slow
def test_a_storm_of_classic_producers_is_told_to_wait_while_lightning_goes_on(cluster: Cluster) -> None:
    """Producers that try again at once do not take the agent's time: after each refusal it does not read from them."""
    control = cluster.control()
    metrics = f"127.0.0.1:{free_port()}"
    agent = cluster.agent(control=control, ripcord="off", metrics=metrics)
    classic = create_topic(agent.address, 1)
    lightning = create_topic(agent.address, PARTITIONS, **{"braidlog.topic.type": "lightning"})
    produce(agent.address, lightning, 10, idempotent=True)
    control.kill()
    impatient = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 1, "message.timeout.ms": 600_000}
    storm = [SteadyProducer(agent.address, classic, per_s=50.0, **impatient) for _ in range(4)]
    wait_until(
        lambda: read_figures(metrics)["braidlog_ripcord_refused_writes_total"] >= 20, what="that the storm is refused"
    )
    produce(agent.address, lightning, 100, idempotent=True)
    assert all(producer.acknowledged == {} for producer in storm)
    figures = read_figures(metrics)
    # A request of theirs has one batch, and each refusal is an answer that makes the client wait.
    throttled = figures["braidlog_ripcord_throttled_answers_total"]
    assert throttled >= figures["braidlog_ripcord_refused_writes_total"]
    control.start()
    for producer in storm:
        wait_until(lambda producer=producer: len(producer.acknowledged) > 20, what="that it is written")  # type: ignore[misc]
        producer.stop()
        assert producer.failed == {}
    assert len(read_in_time(agent.address, lightning, 110)) == 110


@pytest.mark.slow
def test_a_snapshot_that_is_damaged_or_missing_is_named(cluster: Cluster) -> None:
    control = cluster.control()
    agent = cluster.agent(control=control, ripcord="auto")
    topic = create_topic(agent.address)
    wait_snapshot(cluster, topic)
    control.kill()
    agent.kill()
    path = cluster.store_path / AGENT_SNAPSHOT_KEY
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for what in ("its checksum is wrong", "has no snapshot to start from"):
        agent.start(wait=False)
        assert agent.wait() != 0
        assert what in agent.log_tail()
        path.unlink(missing_ok=True)
