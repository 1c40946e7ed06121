"""An agent of several shards, as real processes: they share uploads, split and merge, and die one at a time."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.cluster import Cluster, Process, free_port, wait_until
from tests.kafka.clients import SteadyProducer
from tests.kafka.consistency import check_consistency
from tests.kafka.reading import Tail, check_acknowledged, check_idempotent, read_all
from tests.kafka.topics import create_topic

from braidlog.node.children import read_figures

PARTITIONS = 6
SETTINGS = {"request_timeout_ms": 5_000, "commit_timeout_ms": 2_000}


def start_shards(cluster: Cluster, count: int, **settings: object) -> tuple[Process, str]:
    """An agent and where its figures are."""
    metrics = f"127.0.0.1:{free_port()}"
    control = cluster.control()
    agent = cluster.agent(control=control, shards=count, metrics=metrics, **{**SETTINGS, **settings})
    return agent, metrics


def shard_pids(agent: Process) -> list[int]:
    """The supervisor's children: it starts nothing but shards."""
    return [int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "braidlog" in name and "sim" not in name}


def test_two_shards_are_two_nodes_of_one_agent_and_stop_cleanly(cluster: Cluster) -> None:
    agent, metrics = start_shards(cluster, 2)
    admin = AdminClient({"bootstrap.servers": agent.address})
    # Each hears of the other a moment after both are there.
    wait_until(
        lambda: len({node.port for node in admin.list_topics(timeout=60).brokers.values()}) == 2, what="two nodes"
    )
    topic = create_topic(agent.address, PARTITIONS)
    producer = SteadyProducer(agent.address, topic, partition_count=PARTITIONS, **{"enable.idempotence": True})
    wait_until(lambda: len(producer.acknowledged) > 500, what="the load")
    producer.stop()
    check_idempotent(producer, read_all(agent.address, topic, PARTITIONS), PARTITIONS)
    # Where the machine was so busy that they went apart for a while, they are together again.
    wait_until(lambda: read_figures(metrics)['braidlog_upload_groups{shard="0"}'] == 1, what="one group")
    figures = read_figures(metrics)
    # They took turns: both have made objects of what both held.
    assert figures['braidlog_upload_pulls_total{shard="0"}'] > 0
    assert figures['braidlog_upload_pulls_total{shard="1"}'] > 0
    children = shard_pids(agent)
    assert len(children) == 2
    assert agent.stop() == 0
    assert not any(map(is_alive, children))


def test_groups_split_under_load_and_merge_after_it(cluster: Cluster) -> None:
    # As slow a store as the cloud's, and little room in one stream, so that a test can fill it.
    agent, metrics = start_shards(
        cluster, 2, store_latency="s3", upload_size_bytes="64KiB", uploads_in_flight_max=2, upload_interval_ms=100
    )
    topics = [create_topic(agent.address, PARTITIONS) for _ in range(2)]

    def groups() -> float:
        return read_figures(metrics)['braidlog_upload_groups{shard="0"}']

    assert groups() == 1
    producers = [
        SteadyProducer(agent.address, topic, partition_count=PARTITIONS, padding=b"x" * 2_000, per_s=2_000.0)
        for topic in topics
    ]
    wait_until(lambda: groups() == 2, what="a split")
    for producer in producers:
        producer.stop()
    wait_until(lambda: groups() == 1, what="a merge")
    for topic, producer in zip(topics, producers, strict=True):
        check_acknowledged(producer, read_all(agent.address, topic, PARTITIONS))


def run_shard_kills(cluster: Cluster, shards: int, kills: int, pause_s_max: float) -> None:
    before = shared_memory()
    agent, _ = start_shards(cluster, shards)
    topics = [create_topic(agent.address, PARTITIONS) for _ in range(2)]
    producers = [
        SteadyProducer(agent.address, topic, partition_count=PARTITIONS, **{"enable.idempotence": True})
        for topic in topics
    ]
    tail = Tail(agent.address, topics[0], PARTITIONS)
    entropy = random.Random(kills)
    for _ in range(kills):
        time.sleep(entropy.uniform(0.0, pause_s_max))  # the moment of the kill is what varies
        wait_until(lambda: len(shard_pids(agent)) == shards, what="all shards")
        os.kill(entropy.choice(shard_pids(agent)), signal.SIGKILL)
    wait_until(lambda: len(shard_pids(agent)) == shards, what="all shards")
    counts = [len(producer.acknowledged) for producer in producers]
    wait_until(
        lambda: all(len(p.acknowledged) > count + 100 for p, count in zip(producers, counts, strict=True)),
        what="records after the last kill",
    )
    for producer in producers:
        producer.stop()
    tail.stop()
    for topic, producer in zip(topics, producers, strict=True):
        found = read_all(agent.address, topic, PARTITIONS)
        check_idempotent(producer, found, PARTITIONS)
        if topic == topics[0]:
            tail.check(found)
    children = shard_pids(agent)
    agent.kill()
    wait_until(lambda: not any(map(is_alive, children)), what="the end of orphaned shards")
    assert shared_memory() == before
    cluster.processes["control"].stop()
    check_consistency(cluster.metadata_path, cluster.store_url)


def test_three_kills_of_a_random_shard(cluster: Cluster) -> None:
    run_shard_kills(cluster, 2, 3, pause_s_max=0.8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills_of_a_random_shard(cluster: Cluster) -> None:
    run_shard_kills(cluster, 3, 50, pause_s_max=1.5)


@pytest.mark.slow
def test_a_shard_that_hangs_is_replaced(cluster: Cluster) -> None:
    agent, _ = start_shards(cluster, 2)
    topic = create_topic(agent.address, PARTITIONS)
    producer = SteadyProducer(agent.address, topic, partition_count=PARTITIONS, **{"enable.idempotence": True})
    wait_until(lambda: len(producer.acknowledged) > 100, what="the load")
    victim = shard_pids(agent)[0]
    os.kill(victim, signal.SIGSTOP)
    wait_until(lambda: victim not in shard_pids(agent), what="the end of the one that hangs")
    wait_until(lambda: len(shard_pids(agent)) == 2, what="its replacement")
    count = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) > count + 100, what="records afterwards")
    producer.stop()
    check_idempotent(producer, read_all(agent.address, topic, PARTITIONS), PARTITIONS)
