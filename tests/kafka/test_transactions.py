"""Transactions with real clients: commits, aborts, fencing, timeouts, and whoever may be killed at any step."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.cluster import Cluster, Process, wait_until
from tests.kafka.clients import kafka
from tests.kafka.consistency import check_consistency
from tests.kafka.topics import create_topic, unique_name
from tests.kafka.transactional import TIMEOUT_S, read_topic, transactional_producer, values, write

PARTITIONS = 3


def group_offset(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        return consumer.committed([TopicPartition(topic, partition)], timeout=TIMEOUT_S)[0].offset
    finally:
        consumer.close()


# ── one producer after the other ──────────────────────────────────────────────────────────────────────────────────────


def test_commit_and_abort(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(PARTITIONS)
    producer = transactional_producer(bootstrap, unique_name("tx"))
    producer.init_transactions(TIMEOUT_S)
    for number, commit in enumerate((True, False, True, False, False, True)):
        producer.begin_transaction()
        write(producer, topic, [f"{number}-{at}" for at in range(7)], partitions=PARTITIONS)
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    expected = sorted(f"{number}-{at}" for number in (0, 2, 5) for at in range(7))
    assert sorted(values(read_topic(bootstrap, topic, PARTITIONS))) == expected
    everything = sorted(f"{number}-{at}" for number in range(6) for at in range(7))
    assert sorted(values(read_topic(bootstrap, topic, PARTITIONS, committed=False))) == everything


def test_nothing_open_is_seen_and_the_rest_waits_behind_it(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    first, second = (transactional_producer(bootstrap, unique_name("tx")) for _ in range(2))
    for producer in (first, second):
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    write(first, topic, ["a"])
    write(second, topic, ["b"])
    second.commit_transaction(TIMEOUT_S)
    assert values(read_topic(bootstrap, topic)) == []
    assert values(read_topic(bootstrap, topic, committed=False)) == ["a", "b"]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, 0)
    consumer.close()
    first.abort_transaction(TIMEOUT_S)
    assert values(read_topic(bootstrap, topic)) == ["b"]


def test_offsets_go_with_the_transaction(bootstrap: str, new_topic: Callable[..., str]) -> None:
    source, group = new_topic(), unique_name("group")
    producer = transactional_producer(bootstrap, unique_name("tx"))
    producer.init_transactions(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    for offset, commit in ((5, True), (9, False), (7, True)):
        producer.begin_transaction()
        before = group_offset(bootstrap, group, source)
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, offset)], consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if commit:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
        assert group_offset(bootstrap, group, source) == (offset if commit else before)
    consumer.close()


def test_who_waits_for_stable_offsets_waits_for_the_transaction(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """librdkafka asks for stable offsets only: while a transaction is open it asks again and again."""
    source, group = new_topic(), unique_name("group")
    producer = transactional_producer(bootstrap, unique_name("tx"))
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    metadata = consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(source, 0, 3)], metadata, TIMEOUT_S)
    with pytest.raises(KafkaException):
        consumer.committed([TopicPartition(source, 0)], timeout=0.5)
    producer.commit_transaction(TIMEOUT_S)
    assert consumer.committed([TopicPartition(source, 0)], timeout=TIMEOUT_S)[0].offset == 3
    consumer.close()


def test_a_second_producer_fences_the_first(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic(), unique_name("tx")
    first = transactional_producer(bootstrap, name)
    first.init_transactions(TIMEOUT_S)
    first.begin_transaction()
    write(first, topic, ["lost"])
    second = transactional_producer(bootstrap, name)
    second.init_transactions(TIMEOUT_S)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()
    second.begin_transaction()
    write(second, topic, ["kept"])
    second.commit_transaction(TIMEOUT_S)
    assert values(read_topic(bootstrap, topic)) == ["kept"]


def test_a_transaction_that_takes_too_long_is_aborted(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    producer = transactional_producer(bootstrap, unique_name("tx"), **{"transaction.timeout.ms": 1_000})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"too slow")
    producer.flush(TIMEOUT_S)  # where the machine is so slow that it is too late already, all the rest holds too
    plain = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"behind it")
    assert plain.flush(TIMEOUT_S) == 0
    wait_until(lambda: values(read_topic(bootstrap, topic)) == ["behind it"], what="the abort", interval_s=0.2)
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT_S)
    assert values(read_topic(bootstrap, topic)) == ["behind it"]


def test_a_timeout_beyond_the_limit_is_refused(bootstrap: str) -> None:
    producer = transactional_producer(bootstrap, unique_name("tx"), **{"transaction.timeout.ms": 900_001})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(TIMEOUT_S)
    assert refused.value.args[0].name() == "INVALID_TRANSACTION_TIMEOUT"


def test_a_compacted_topic_wants_keys_in_transactions_too(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(1, cleanup_policy="compact")
    producer = transactional_producer(bootstrap, unique_name("tx"))
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    errors: list[Any] = []
    producer.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    assert [error.name() for error in errors] == ["INVALID_RECORD"]
    producer.abort_transaction(TIMEOUT_S)
    producer = transactional_producer(bootstrap, unique_name("tx"))
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"value", key=b"key")
    producer.commit_transaction(TIMEOUT_S)
    assert values(read_topic(bootstrap, topic)) == ["value"]


# ── other clients ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_aiokafka(bootstrap: str, new_topic: Callable[..., str]) -> None:
    source, sink, group = new_topic(), new_topic(2), unique_name("group")
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique_name("tx"))
    await producer.start()
    try:
        async with producer.transaction():
            for number in range(4):
                await producer.send_and_wait(sink, f"kept-{number}".encode(), partition=number % 2)
            await producer.send_offsets_to_transaction({aiokafka.TopicPartition(source, 0): 11}, group)
        await producer.begin_transaction()
        await producer.send_and_wait(sink, b"lost", partition=0)
        await producer.abort_transaction()
    finally:
        await producer.stop()

    async def read(level: str, count: int) -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition(sink, number) for number in range(2)])
            found: list[bytes] = []
            async with asyncio.timeout(TIMEOUT_S):
                while len(found) < count:
                    for records in (await consumer.getmany(timeout_ms=200)).values():
                        found += [record.value for record in records]
            for records in (await consumer.getmany(timeout_ms=300)).values():
                found += [record.value for record in records]
            return sorted(found)
        finally:
            await consumer.stop()

    kept = [f"kept-{number}".encode() for number in range(4)]
    assert await read("read_committed", 4) == kept
    assert await read("read_uncommitted", 5) == [*kept, b"lost"]
    assert group_offset(bootstrap, group, source) == 11


def test_kafka_python(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, source, group = new_topic(), new_topic(), unique_name("group")
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique_name("tx"))
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"kept").get(TIMEOUT_S)
        offsets = {kafka.TopicPartition(source, 0): kafka.structs.OffsetAndMetadata(13, "", -1)}
        producer.send_offsets_to_transaction(offsets, group)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"lost").get(TIMEOUT_S)
        producer.abort_transaction()
    finally:
        producer.close(timeout=5)

    def read(level: str, count: int) -> list[bytes]:
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=level, auto_offset_reset="earliest")
        try:
            consumer.assign([kafka.TopicPartition(topic, 0)])
            found: list[bytes] = []

            def poll(timeout_ms: int) -> None:
                for records in consumer.poll(timeout_ms=timeout_ms).values():
                    found.extend(record.value for record in records)

            deadline_s = time.monotonic() + TIMEOUT_S
            while len(found) < count and time.monotonic() < deadline_s:
                poll(200)
            poll(300)  # and nothing more
            return found
        finally:
            consumer.close()

    assert read("read_committed", 1) == [b"kept"]
    assert read("read_uncommitted", 2) == [b"kept", b"lost"]
    assert group_offset(bootstrap, group, source) == 13


# ── somebody is killed ────────────────────────────────────────────────────────────────────────────────────────────────

CLIENT_STEPS = ("init", "begin", "write", "offsets", "commit", "abort")

CLIENT_SCRIPT = """
import os, sys
from confluent_kafka import Consumer, TopicPartition
from tests.kafka.transactional import TIMEOUT_S, transactional_producer, write
bootstrap, name, topic, source, group, last_step = sys.argv[1:]
def step(done):
    if done == last_step:
        os._exit(9)
producer = transactional_producer(bootstrap, name)
producer.init_transactions(TIMEOUT_S)
step("init")
producer.begin_transaction()
step("begin")
write(producer, topic, ["0", "1", "2"], partitions=3)
step("write")
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
producer.send_offsets_to_transaction([TopicPartition(source, 0, 5)], consumer.consumer_group_metadata(), TIMEOUT_S)
step("offsets")
if last_step == "abort":
    producer.abort_transaction(TIMEOUT_S)
    step("abort")
producer.commit_transaction(TIMEOUT_S)
step("commit")
"""


@pytest.mark.parametrize("last_step", CLIENT_STEPS)
def test_a_client_is_killed_after_a_step(last_step: str, bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Whatever it left, the next producer with its id begins with a clean slate."""
    topic, source, name, group = new_topic(PARTITIONS), new_topic(), unique_name("tx"), unique_name("group")
    arguments = [bootstrap, name, topic, source, group, last_step]
    ended = subprocess.run([sys.executable, "-c", CLIENT_SCRIPT, *arguments], timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 9
    successor = transactional_producer(bootstrap, name)
    successor.init_transactions(TIMEOUT_S)
    is_committed = last_step == "commit"
    assert sorted(values(read_topic(bootstrap, topic, PARTITIONS))) == (["0", "1", "2"] if is_committed else [])
    assert group_offset(bootstrap, group, source) == (5 if is_committed else -1001)
    successor.begin_transaction()
    write(successor, topic, ["next"])
    successor.commit_transaction(TIMEOUT_S)
    assert "next" in values(read_topic(bootstrap, topic, PARTITIONS))


@contextmanager
def running_apart(cluster: Cluster) -> Iterator[tuple[Process, Process]]:
    cluster.settings.update({"request_timeout_ms": 5_000, "commit_timeout_ms": 2_000})
    control = cluster.control()
    yield control, cluster.agent(control=control)
    for name in ("agent", "control"):
        assert cluster.processes[name].stop() == 0
    check_consistency(cluster.metadata_path, cluster.store_url)


KILL_STEPS = ("init", "begin", "write", "offsets", "during the end", "end")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["agent", "control"])
def test_a_process_is_killed_after_every_step(victim: str, cluster: Cluster) -> None:
    """Two transactions for each step, one to be committed and one to be aborted."""
    with running_apart(cluster) as (_, agent):
        killed = cluster.processes[victim]
        topic, source, group = (
            create_topic(agent.address, PARTITIONS),
            create_topic(agent.address),
            unique_name("group"),
        )
        consumer = Consumer({"bootstrap.servers": agent.address, "group.id": group, "log_level": 0})
        metadata = consumer.consumer_group_metadata()
        expected: list[str] = []
        offset = -1001
        for number, last_step in enumerate(KILL_STEPS * 2):
            is_commit = number < len(KILL_STEPS)
            producer = transactional_producer(agent.address, "tx")

            def step(done: str, last: str = last_step) -> None:
                if done == last:
                    killed.restart()

            producer.init_transactions(TIMEOUT_S)
            step("init")
            producer.begin_transaction()
            step("begin")
            written = [f"{number}-{at}" for at in range(PARTITIONS)]
            write(producer, topic, written, partitions=PARTITIONS)
            step("write")
            producer.send_offsets_to_transaction([TopicPartition(source, 0, number + 1)], metadata, TIMEOUT_S)
            step("offsets")
            if last_step == "during the end":
                killed.kill()
                killed.start(wait=False)
            if is_commit:
                producer.commit_transaction(TIMEOUT_S)
            else:
                producer.abort_transaction(TIMEOUT_S)
            if last_step == "during the end":
                killed.wait_ready()
            step("end")
            if is_commit:
                expected += written
                offset = number + 1
        consumer.close()
        assert sorted(values(read_topic(agent.address, topic, PARTITIONS))) == sorted(expected)
        assert group_offset(agent.address, group, source) == offset


# ── exactly once ──────────────────────────────────────────────────────────────────────────────────────────────────────


def start_worker(bootstrap: str, source: str, sink: str, group: str, name: str) -> "subprocess.Popen[bytes]":
    arguments = [bootstrap, source, sink, group, name]
    return subprocess.Popen([sys.executable, "-m", "tests.kafka.transactional", *arguments], env=dict(os.environ))


def run_exactly_once(
    cluster: Cluster, record_count: int, kill_count: int, pause_s_max: float, timeout_s: float
) -> None:
    entropy = random.Random(record_count)
    with running_apart(cluster) as (control, agent):
        bootstrap, group = agent.address, "workers"
        source, sink = create_topic(bootstrap, PARTITIONS), create_topic(bootstrap, PARTITIONS)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True}
        )
        for number in range(record_count):
            producer.produce(source, str(number).encode(), partition=number % PARTITIONS)
            if number % 10_000 == 0:
                producer.flush(TIMEOUT_S)
        assert producer.flush(TIMEOUT_S) == 0
        workers = {name: start_worker(bootstrap, source, sink, group, name) for name in ("one", "two")}
        try:
            for _ in range(kill_count):
                time.sleep(entropy.uniform(0.0, pause_s_max))  # the moment of the kill is what varies
                victim = entropy.choice(("one", "two", "agent", "control"))
                if victim in workers:
                    workers[victim].kill()
                    workers[victim].wait()
                    workers[victim] = start_worker(bootstrap, source, sink, group, victim)
                else:
                    (control if victim == "control" else agent).restart()

            def is_done() -> bool:
                done = sum(max(group_offset(bootstrap, group, source, number), 0) for number in range(PARTITIONS))
                return done == record_count

            wait_until(is_done, timeout_s=timeout_s, what="the end of the source", interval_s=0.5)
        finally:
            for worker in workers.values():
                worker.kill()
                worker.wait()
        sources = read_topic(bootstrap, source, PARTITIONS)
        assert len(sources) == record_count
        expected = {f"{each.partition()}:{each.offset()}:{each.value().decode()}" for each in sources}
        committed = read_topic(bootstrap, sink, PARTITIONS)
        found = values(committed)
        assert len(found) == len(set(found)), "a record was transformed twice"
        assert set(found) == expected
        for partition in range(PARTITIONS):
            offsets = [int(each.value().split(b":")[1]) for each in committed if each.partition() == partition]
            assert offsets == sorted(offsets), "records of one partition changed their order"
        everything = {
            (each.partition(), each.offset()): each.value()
            for each in read_topic(bootstrap, sink, PARTITIONS, committed=False)
        }
        assert all(everything[each.partition(), each.offset()] == each.value() for each in committed)
        assert {value.decode() for value in everything.values()} == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_exactly_once_over_100_000_records_with_random_kills(cluster: Cluster) -> None:
    run_exactly_once(cluster, 100_000, 40, pause_s_max=1.0, timeout_s=600.0)


# ── what an administrator sees ────────────────────────────────────────────────────────────────────────────────────────


def test_transactions_are_listed_and_described(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, name = new_topic(2), unique_name("tx")
    producer = transactional_producer(bootstrap, name)
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    write(producer, topic, ["a", "b"], partitions=2)
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        ((listed,),) = ([each for each in found if each.transactional_id == name] for found in _all(admin))
        assert listed.state.value == "Ongoing"
        described = admin.describe_transactions([name])[name]
        assert (described.state.value, described.producer_id) == ("Ongoing", listed.producer_id)
        assert described.topic_partitions == {kafka.TopicPartition(topic, number) for number in range(2)}
        place = kafka.TopicPartition(topic, 0)
        (writer,) = admin.describe_producers([place])[place].active_producers
        assert (writer.producer_id, writer.current_transaction_start_offset) == (listed.producer_id, 0)
        producer.abort_transaction(TIMEOUT_S)
        assert admin.describe_transactions([name])[name].state.value == "CompleteAbort"
    finally:
        admin.close()


def _all(admin: Any) -> list[Any]:
    return list(admin.list_transactions().values())
