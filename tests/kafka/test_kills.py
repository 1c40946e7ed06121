"""kill -9, again and again: nothing acknowledged is lost, nothing comes twice, nothing is sequenced twice."""

import random
import time

import pytest
from tests.cluster import Cluster, Process, wait_until
from tests.kafka.clients import SteadyProducer
from tests.kafka.consistency import Findings, check_consistency
from tests.kafka.reading import Tail, check_acknowledged, check_idempotent, read_all
from tests.kafka.topics import create_topic

PARTITIONS = 3
KILLER_SETTINGS = {"request_timeout_ms": 5_000, "commit_timeout_ms": 2_000}


def kill_at_random(victims: list[Process], count: int, seed: int, pause_s_max: float) -> None:
    entropy = random.Random(seed)
    for _ in range(count):
        time.sleep(entropy.uniform(0.0, pause_s_max))  # the moment of the kill is what varies
        entropy.choice(victims).restart()


def run_kills(cluster: Cluster, agent: Process, victims: list[Process], count: int, pause_s_max: float) -> Findings:
    idempotent_topic = create_topic(agent.address, PARTITIONS)
    plain_topic = create_topic(agent.address, PARTITIONS)
    idempotent = SteadyProducer(
        agent.address, idempotent_topic, partition_count=PARTITIONS, **{"enable.idempotence": True}
    )
    plain = SteadyProducer(agent.address, plain_topic, partition_count=PARTITIONS, **{"enable.idempotence": False})
    tail = Tail(agent.address, idempotent_topic, PARTITIONS)
    kill_at_random(victims, count, seed=count, pause_s_max=pause_s_max)
    time.sleep(0.5)  # some records after the last kill
    idempotent.stop()
    plain.stop()
    tail.stop()
    found = read_all(agent.address, idempotent_topic, PARTITIONS)
    found_plain = read_all(agent.address, plain_topic, PARTITIONS)
    for name in ("agent", "control", "up"):
        if name in cluster.processes:
            assert cluster.processes[name].stop() == 0
    findings = check_consistency(cluster.metadata_path, cluster.store_url)
    check_idempotent(idempotent, found, PARTITIONS)
    check_acknowledged(plain, found_plain)
    assert tail.values
    tail.check(found)
    assert findings.record_count == len(found) + len(found_plain)
    return findings


def start_apart(cluster: Cluster) -> tuple[Process, Process]:
    cluster.settings.update(KILLER_SETTINGS)
    control = cluster.control()
    return control, cluster.agent(control=control)


def test_four_kills(cluster: Cluster) -> None:
    control, agent = start_apart(cluster)
    run_kills(cluster, agent, [control, agent], 4, pause_s_max=0.4)


@pytest.mark.slow
def test_three_kills_of_braid_up(cluster: Cluster) -> None:
    cluster.settings.update(KILLER_SETTINGS)
    up = cluster.up()
    run_kills(cluster, up, [up], 3, pause_s_max=0.4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills(cluster: Cluster) -> None:
    control, agent = start_apart(cluster)
    run_kills(cluster, agent, [control, agent], 50, pause_s_max=1.0)


def test_two_agents_and_one_is_killed(cluster: Cluster) -> None:
    """Clients go on with the other one, and nothing acknowledged is lost."""
    cluster.settings.update(KILLER_SETTINGS)
    control = cluster.control()
    agents = [cluster.agent(f"agent-{number}", control=control) for number in range(2)]
    bootstrap = cluster.bootstrap()
    topic = create_topic(bootstrap, 4)
    producers = [
        SteadyProducer(
            bootstrap,
            topic,
            partition_count=4,
            **{"enable.idempotence": True, "topic.metadata.refresh.interval.ms": 500},
        )
        for _ in range(2)
    ]
    wait_until(lambda: all(len(producer.acknowledged) > 100 for producer in producers), what="the load")
    agents[0].kill()
    time.sleep(0.5)
    for producer in producers:
        producer.stop()
        assert not producer.failed
        assert len(producer.acknowledged) == producer.sent_count
    found = read_all(agents[1].address, topic, 4)
    assert len(found) == sum(producer.sent_count for producer in producers)
    for producer in producers:
        check_acknowledged(producer, found)
    agents[1].stop()
    control.stop()
    check_consistency(cluster.metadata_path, cluster.store_url)
