"""Several agents on one log: what one acknowledged, every other one shows at once."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from tests.cluster import Cluster, Process, wait_until
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.conftest import QUICK_SETTINGS
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import admin_client, create_topic

LIST_OFFSETS, LATEST = 2, -1


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    with Cluster(tmp_path_factory.mktemp("agents"), settings=QUICK_SETTINGS) as cluster:
        control = cluster.control()
        yield [cluster.agent(f"agent-{zone}", control=control, zone=zone) for zone in ("a", "b")]


def wait_for_topic(agent: Process, topic: str) -> None:
    """An agent hears of what others were told a moment later."""
    admin = admin_client(agent.address)
    wait_until(lambda: topic in admin.list_topics(timeout=60).topics, what=f"{topic} at {agent.name}")


def latest_offset(peer: Peer, topic: str) -> int:
    """The end of partition 0, as the agent at the other end sees it, whether or not it leads."""
    name = topic.encode()
    body = struct.pack(">ib", -1, 0) + struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiq", 1, 0, LATEST)
    peer.send(frame(header(LIST_OFFSETS, 2) + body))
    answer = peer.read_frame()
    position = 4 + 4 + 4 + 2 + len(name) + 4
    partition, error_code, _, offset = struct.unpack_from(">ihqq", answer, position)
    assert (partition, error_code) == (0, 0)
    return int(offset)


def test_the_end_of_the_log_is_the_same_everywhere_at_once(agents: list[Process]) -> None:
    topic = create_topic(agents[0].address)
    for agent in agents:
        wait_for_topic(agent, topic)
    peers = [Peer(agent.address) for agent in agents]
    producer = confluent_kafka.Producer({"bootstrap.servers": agents[0].address, "linger.ms": 0})
    acknowledged: list[int] = []
    for number in range(50):
        acknowledged: list[int] = []
        producer.produce(
            topic, b"x", partition=0, on_delivery=lambda _, message, to=acknowledged: to.append(message.offset())
        )
        assert producer.flush(60) == 0
        assert acknowledged == [number]
        assert [latest_offset(peer, topic) for peer in peers] == [number + 1] * 2
    for peer in peers:
        peer.socket.close()


def test_clients_hear_of_all_agents_and_of_a_new_topic_from_any(agents: list[Process]) -> None:
    everyone = {("127.0.0.1", agent.port) for agent in agents}

    def brokers_known_to(agent: Process) -> set[tuple[str, int]]:
        known = admin_client(agent.address).list_topics(timeout=60)
        return {(broker.host, broker.port) for broker in known.brokers.values()}

    for agent in agents:
        wait_until(lambda agent=agent: brokers_known_to(agent) == everyone, what="all agents")  # type: ignore[misc]
    topic = create_topic(agents[0].address, 4)
    for agent in agents:
        wait_for_topic(agent, topic)
    records = [Record(b"%d" % i, partition=i % 4) for i in range(100)]
    CLIENTS["confluent"].produce(agents[1].address, topic, records)
    for agent in agents:
        found = CLIENTS["confluent"].consume(agent.address, topic, 100, partitions=range(4))
        assert sorted(int(record.value or b"") for record in found) == list(range(100))


@pytest.mark.parametrize("zone", ["a", "b"])
def test_a_consumer_reads_in_its_own_zone(zone: str, agents: list[Process]) -> None:
    """All of the records come from there, though agents of both zones lead partitions."""
    partitions, value_bytes = 16, 10_000
    topic = create_topic(agents[0].address, partitions)
    for agent in agents:
        wait_for_topic(agent, topic)
    records = [Record(b"%d" % i + b" " * value_bytes, partition=i % partitions) for i in range(128)]
    CLIENTS["confluent"].produce(agents[0].address, topic, records)
    statistics: list[dict[str, Any]] = []
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": agents[0].address,
            "group.id": f"zone-{zone}",
            "client.rack": zone,
            "statistics.interval.ms": 50,
            "stats_cb": lambda told: statistics.append(json.loads(told)),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[int] = []
    while len(found) < len(records):
        messages = consumer.consume(len(records) - len(found), 60)
        assert messages, f"only {len(found)} records came"
        found += [int(message.value()) for message in messages if message.error() is None]
    assert sorted(found) == list(range(len(records)))
    statistics.clear()
    wait_until(lambda: consumer.poll(0) is None and statistics, what="figures")
    consumer.close()
    leaders = {each["leader"] for each in statistics[-1]["topics"][topic]["partitions"].values()} - {-1}
    assert len(leaders) == 2
    received = dict.fromkeys("ab", 0)
    for broker in statistics[-1]["brokers"].values():
        for agent in agents:
            if broker["nodename"] == agent.address:
                received[agent.name.removeprefix("agent-")] += broker["rxbytes"]
    here = received.pop(zone)
    assert here >= len(records) * value_bytes > 10 * sum(received.values())
