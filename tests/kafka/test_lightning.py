"""Lightning topics with real clients and processes: acknowledged before they are sequenced, sequenced in the end."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaProducer
from tests.cluster import Cluster, Process, wait_until
from tests.kafka.clients import CLIENTS, SteadyProducer, numbers_by_partition
from tests.kafka.reading import read_all
from tests.kafka.topics import create_topic, error_name

from braidlog.objects.format import decode_object_tail

PARTITIONS = 2
LIGHTNING_SETTINGS = {
    "scan_interval_ms": 500,
    "agent_session_timeout_s": 2,
    "sequence_age_ms": 20_000,
    "request_timeout_ms": 2_000,
    "commit_timeout_ms": 1_000,
}
"""A short time for the fast path, so that an agent leaves files to others soon."""


def lightning_topic(bootstrap: str, partitions: int = 1) -> str:
    return create_topic(bootstrap, partitions, braidlog_topic_type="lightning")


def journal_files(cluster: Cluster) -> list[Path]:
    return sorted(cluster.store_path.glob("journal/*/*/*"))


def produce_confluent(bootstrap: str, topic: str, *, idempotent: bool) -> list[int | None]:
    offsets: list[int | None] = []

    def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "linger.ms": 2, "batch.num.messages": 7}
    )
    for number in range(200):
        producer.produce(topic, b"%d " % number, partition=0, on_delivery=report)
    assert producer.flush(90) == 0
    return offsets


def produce_aiokafka(bootstrap: str, topic: str, *, idempotent: bool) -> list[int | None]:
    async def run() -> list[int | None]:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=idempotent, acks="all", max_batch_size=200
        )
        await producer.start()
        try:
            answers = [await producer.send(topic, b"%d " % number, partition=0) for number in range(200)]
            return [(await answer).offset for answer in answers]
        finally:
            await producer.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("produce", [produce_confluent, produce_aiokafka], ids=["confluent", "aiokafka"])
def test_clients_produce_and_consume(
    produce: Callable[..., list[int | None]], idempotent: bool, bootstrap: str, shared_cluster: Cluster
) -> None:
    topic = lightning_topic(bootstrap)
    known = set(journal_files(shared_cluster))
    offsets = produce(bootstrap, topic, idempotent=idempotent)
    assert len(offsets) == 200
    # Counted within a batch from the 0 that it was told: nobody knows better yet.
    assert max(offset or 0 for offset in offsets) < 20
    assert set(journal_files(shared_cluster)) - known
    for name in ("confluent", "aiokafka"):
        found = CLIENTS[name].consume(bootstrap, topic, 200)
        assert numbers_by_partition(found) == {0: list(range(200))}


def test_transactions_are_refused_and_the_producer_goes_on_elsewhere(bootstrap: str) -> None:
    lightning, classic = lightning_topic(bootstrap), create_topic(bootstrap)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "refused-by-lightning"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(lightning, b"1 ", partition=0)
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        producer.commit_transaction(60)
    assert error_name(refused.value) == "POLICY_VIOLATION"
    assert refused.value.args[0].txn_requires_abort()
    producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(classic, b"2 ", partition=0)
    producer.commit_transaction(60)
    assert [record.value for record in CLIENTS["confluent"].consume(bootstrap, classic, 1)] == [b"2 "]
    # What follows in the refused topic is the first that it holds, but for the mark of the transaction's end.
    produce_confluent(bootstrap, lightning, idempotent=True)
    assert numbers_by_partition(CLIENTS["confluent"].consume(bootstrap, lightning, 200)) == {0: list(range(200))}


def status(control: Process) -> dict[str, Any]:
    command = ["lightning", "status", "--control", control.address, "--format", "json"]
    asked = subprocess.run(
        [sys.executable, "-m", "braidlog", *command],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    found = json.loads(asked.stdout)
    assert isinstance(found, dict)
    return found


def all_there(bootstrap: str, topic: str, count: int, partition_count: int = PARTITIONS) -> bool:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        ends = [
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=60)[1]
            for number in range(partition_count)
        ]
    except confluent_kafka.KafkaException:
        return False
    finally:
        consumer.close()
    return sum(ends) >= count


def check(
    bootstrap: str, topic: str, producer: SteadyProducer, *, in_order: bool, partition_count: int = PARTITIONS
) -> None:
    """Everything that was sent is there exactly once; of an idempotent producer in its order."""
    assert not producer.failed, dict(list(producer.failed.items())[:5])
    wait_until(
        lambda: all_there(bootstrap, topic, producer.sent_count, partition_count),
        timeout_s=120,
        what=f"the whole of {topic}",
    )
    numbers = numbers_by_partition(read_all(bootstrap, topic, partition_count))
    for partition in range(partition_count):
        sent = list(range(partition, producer.sent_count, partition_count))
        there = numbers[partition]
        twice = [number for number, count in Counter(there).items() if count > 1]
        assert sorted(there) == sent, f"missing {sorted(set(sent) - set(there))[:5]}, twice {twice[:5]}"
        assert not in_order or there == sent


def start_apart(cluster: Cluster, agents: int = 1, **settings: object) -> tuple[Process, list[Process]]:
    cluster.settings.update({**LIGHTNING_SETTINGS, **settings})
    control = cluster.control()
    return control, [cluster.agent(f"agent-{number}", control=control) for number in range(agents)]


def acknowledged_behind(producer: SteadyProducer, count: int) -> None:
    wait_until(lambda: len(producer.acknowledged) >= count, what=f"{count} acknowledgements")


def test_killed_right_after_acknowledging_with_the_control_plane_stopped(cluster: Cluster) -> None:
    """Nothing of it was sequenced when everything died. It is there in the end, once, in each producer's order."""
    # Time enough for every write: what a producer without idempotence is not answered it sends again, and doubles.
    control, (agent,) = start_apart(cluster, request_timeout_ms=60_000)
    topics = {is_idempotent: lightning_topic(agent.address, PARTITIONS) for is_idempotent in (True, False)}
    producers = {
        is_idempotent: SteadyProducer(
            agent.address,
            topic,
            partition_count=PARTITIONS,
            per_s=200,
            **{"enable.idempotence": is_idempotent, "socket.timeout.ms": 60_000},
        )
        for is_idempotent, topic in topics.items()
    }
    for producer in producers.values():
        acknowledged_behind(producer, 50)
    control.pause()
    before = {key: len(producer.acknowledged) for key, producer in producers.items()}
    for key, producer in producers.items():
        acknowledged_behind(producer, before[key] + 100)
    for producer in producers.values():
        producer.stop()  # all is acknowledged
    control.kill()
    agent.kill()
    control.start()
    agent.start()
    for is_idempotent, topic in topics.items():
        check(agent.address, topic, producers[is_idempotent], in_order=is_idempotent)
    found = status(control)
    assert found["slow_files"] > 0
    assert found["held_batches"] == found["gaps_given_up"] == found["late_batches"] == 0
    assert {"incarnation", "sequence", "state"} <= set(found["sequences"][0])


@pytest.mark.slow
def test_an_agent_sleeps_while_its_sequence_is_sealed(cluster: Cluster) -> None:
    """It wakes up, finds that its slots are fenced, and goes on in another sequence. Nothing is lost or doubled."""
    _, (first, second) = start_apart(cluster, agents=2)
    topic = lightning_topic(first.address, PARTITIONS)
    producer = SteadyProducer(
        f"{first.address},{second.address}",
        topic,
        partition_count=PARTITIONS,
        per_s=200,
        **{"enable.idempotence": True},
    )
    acknowledged_behind(producer, 100)
    sleeper = max((first, second), key=lambda agent: written_by(cluster, agent))
    sleeper.pause()
    wait_until(lambda: fences_of(cluster, sleeper), what="the seal", timeout_s=120)
    sleeper.resume()
    acknowledged_behind(producer, len(producer.acknowledged) + 200)
    producer.stop()
    check(second.address, topic, producer, in_order=True)


def incarnation_of(agent: Process) -> str:
    """As its log says."""
    for line in agent.log_path.read_text().splitlines():
        if "agent started" in line and "incarnation" in line:
            return str(json.loads(line)["incarnation"])
    raise AssertionError("its log does not say")


def written_by(cluster: Cluster, agent: Process) -> int:
    return len(list(cluster.store_path.glob(f"journal/{incarnation_of(agent)}/*/*")))


def fences_of(cluster: Cluster, agent: Process) -> list[Path]:
    """A fence has no records: it is shorter than any file with some."""
    files = cluster.store_path.glob(f"journal/{incarnation_of(agent)}/*/*")
    return [path for path in files if path.stat().st_size < 120]


def partitions_in(path: Path) -> set[int]:
    data = path.read_bytes()
    return {extent.partition for extent in decode_object_tail(data, len(data)).extents}


@pytest.mark.slow
def test_shards_share_their_journal_files(cluster: Cluster) -> None:
    # Requests wait out the interval, so that those of both shards meet in one file.
    cluster.settings.update(LIGHTNING_SETTINGS, upload_budget_usd_month=0, store_price="s3-standard")
    agent = cluster.agent(control=cluster.control(), shards=2)
    # So many that both shards lead some: which one leads a partition is as good as chance.
    topic = lightning_topic(agent.address, 32)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": agent.address})
    leaders = {
        number: partition.leader for number, partition in admin.list_topics(topic).topics[topic].partitions.items()
    }
    assert len(set(leaders.values())) == 2
    producer = SteadyProducer(agent.address, topic, partition_count=32, **{"enable.idempotence": True})
    looked_at: set[Path] = set()

    def found_shared() -> bool:
        new = set(journal_files(cluster)) - looked_at
        looked_at.update(new)
        return any(len({leaders[number] for number in partitions_in(path)}) == 2 for path in new)

    wait_until(found_shared, what="a journal file with records of both shards")
    producer.stop()
    check(agent.address, topic, producer, in_order=True, partition_count=32)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shards", [1, 2])
def test_kills_again_and_again(cluster: Cluster, shards: int) -> None:
    cluster.settings.update(LIGHTNING_SETTINGS)
    control = cluster.control()
    agent = cluster.agent(control=control, shards=shards)
    topic = lightning_topic(agent.address, PARTITIONS)
    producer = SteadyProducer(
        agent.address,
        topic,
        partition_count=PARTITIONS,
        per_s=200,
        **{"enable.idempotence": True, "message.timeout.ms": 120_000},
    )
    for turn in range(12):
        acknowledged_behind(producer, len(producer.acknowledged) + 50)
        (agent if turn % 3 else control).restart()
    acknowledged_behind(producer, len(producer.acknowledged) + 100)
    producer.stop()
    check(agent.address, topic, producer, in_order=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_of_braid_up(cluster: Cluster) -> None:
    """All that was acknowledged can be read while the last one runs: nothing waits for another restart."""
    cluster.settings.update(LIGHTNING_SETTINGS)
    up = cluster.up()
    topic = lightning_topic(up.address, PARTITIONS)
    producer = SteadyProducer(
        up.address,
        topic,
        partition_count=PARTITIONS,
        per_s=400,
        **{"enable.idempotence": True, "message.timeout.ms": 300_000},
    )
    for _ in range(6):
        acknowledged_behind(producer, len(producer.acknowledged) + 100)
        up.restart()
    acknowledged_behind(producer, len(producer.acknowledged) + 100)
    producer.stop()
    check(up.address, topic, producer, in_order=True)
