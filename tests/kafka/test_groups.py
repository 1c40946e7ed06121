"""Consumer groups of real clients, while members join, leave and are killed: every record is delivered."""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import TopicPartition
from tests.cluster import Cluster, wait_until
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.topics import admin_client, create_topic, unique_name

import kafka

NewTopic = Callable[..., str]
PARTITIONS = 6


class Member:
    """A confluent consumer in a thread of its own, which keeps what it got and what it was assigned."""

    def __init__(self, bootstrap: str, group: str, topic: str, **settings: object) -> None:
        self.values: list[bytes] = []
        self.assigned: set[int] = set()
        self.revocations = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 30_000,  # so that none of them is taken for dead where the machine is busy
                "heartbeat.interval.ms": 200,
                "fetch.wait.max.ms": 50,
                "enable.auto.commit": False,
                **settings,
            }
        )
        self._is_cooperative = settings.get("partition.assignment.strategy") == "cooperative-sticky"
        self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        self._thread = threading.Thread(target=self._run, name=f"member of {group}", daemon=True)
        self._thread.start()

    def _on_assign(self, consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        found = {partition.partition for partition in partitions}
        self.assigned = self.assigned | found if self._is_cooperative else found

    def _on_revoke(self, consumer: confluent_kafka.Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned = self.assigned - {partition.partition for partition in partitions}
        self.revocations += 1

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.05)
            if message is None:
                continue
            if message.error() is not None:
                self.errors.append(str(message.error()))
                continue
            self.values.append(message.value())
            self._consumer.commit(message, asynchronous=True)

    def leave(self) -> None:
        """Cleanly: the group hears of it."""
        self._stop.set()
        self._thread.join(60)
        self._consumer.close()


@contextmanager
def members(*names: Member) -> Iterator[list[Member]]:
    everyone = list(names)
    try:
        yield everyone
    finally:
        for member in everyone:
            if not member._stop.is_set():
                member.leave()


def write(bootstrap: str, topic: str, numbers: range) -> None:
    CLIENTS["confluent"].produce(
        bootstrap, topic, [Record(b"%d" % i, partition=i % PARTITIONS) for i in numbers], codec="lz4"
    )


def all_of(everyone: list[Member]) -> set[bytes]:
    return {value for member in everyone for value in member.values}


def expect(everyone: list[Member], numbers: range) -> None:
    """Every record, from whichever member; more than once is allowed, what was never written is not."""
    wanted = {b"%d" % i for i in numbers}
    wait_until(lambda: all_of(everyone) >= wanted, what=f"records {numbers}")
    assert all_of(everyone) == wanted


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """Return the committed offsets of a group, by partition."""
    admin = admin_client(bootstrap)  # its answers come only while it is held
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group)
    answer = admin.list_consumer_group_offsets([wanted])[group].result(60)
    return {each.partition: each.offset for each in answer.topic_partitions}


def balanced(everyone: list[Member]) -> bool:
    assigned = [member.assigned for member in everyone]
    return all(assigned) and sum(map(len, assigned)) == PARTITIONS and set().union(*assigned) == set(range(PARTITIONS))


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_join_and_leave(strategy: str, bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")
    settings = {"partition.assignment.strategy": strategy}
    write(bootstrap, topic, range(60))
    with members(Member(bootstrap, group, topic, **settings)) as everyone:
        expect(everyone, range(60))
        everyone.append(Member(bootstrap, group, topic, **settings))
        everyone.append(Member(bootstrap, group, topic, **settings))
        wait_until(lambda: balanced(everyone), what="a balance of three")
        write(bootstrap, topic, range(60, 120))
        expect(everyone, range(120))
        everyone[1].leave()
        wait_until(lambda: balanced([everyone[0], everyone[2]]), what="a balance of two")
        write(bootstrap, topic, range(120, 180))
        expect(everyone, range(180))
        assert not [error for member in everyone for error in member.errors]
    # Commits survive the whole group: whoever comes next starts where it ended.
    with members(Member(bootstrap, group, topic, **settings)) as later:
        wait_until(lambda: balanced(later), what="the later member's partitions")
        write(bootstrap, topic, range(180, 186))
        wait_until(lambda: {b"%d" % i for i in range(180, 186)} <= all_of(later), what="the later records")
        # A commit that meets a rebalance is lost, but not all of them.
        assert all_of(later) < {b"%d" % i for i in range(186)}


def test_cooperative_members_keep_what_they_need_not_give_away(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")
    settings = {"partition.assignment.strategy": "cooperative-sticky"}
    with members(Member(bootstrap, group, topic, **settings)) as everyone:
        wait_until(lambda: balanced(everyone), what="the first assignment")
        everyone.append(Member(bootstrap, group, topic, **settings))
        wait_until(lambda: balanced(everyone), what="a balance of two")
        assert len(everyone[0].assigned) == PARTITIONS // 2
        assert everyone[0].revocations == 1  # of half of them, once


def test_static_members_come_back_without_a_rebalance(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")

    def member(number: int) -> Member:
        return Member(bootstrap, group, topic, **{"group.instance.id": f"static-{number}"})

    with members(member(0), member(1)) as everyone:
        wait_until(lambda: balanced(everyone), what="a balance of two")
        had = everyone[1].assigned
        revocations = everyone[0].revocations
        everyone[1].leave()  # a static member says nothing when it goes
        everyone[1] = member(1)
        wait_until(lambda: everyone[1].assigned == had, what="the same partitions as before")
        assert everyone[0].revocations == revocations
        write(bootstrap, topic, range(30))
        expect(everyone, range(30))


def consume_until_killed(bootstrap: str, group: str, topic: str, started: "multiprocessing.synchronize.Event") -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "session.timeout.ms": 1_500,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.05)
        if consumer.assignment():
            started.set()


def test_the_partitions_of_a_killed_member_go_to_the_others(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")
    context = multiprocessing.get_context("spawn")  # librdkafka's threads do not survive a fork
    started = context.Event()
    victim = context.Process(target=consume_until_killed, args=(bootstrap, group, topic, started), daemon=True)
    victim.start()
    try:
        assert started.wait(60)
        with members(Member(bootstrap, group, topic)) as everyone:
            wait_until(lambda: 0 < len(everyone[0].assigned) < PARTITIONS, what="a balance with the victim")
            write(bootstrap, topic, range(60))
            victim.kill()
            expect(everyone, range(60))
    finally:
        victim.kill()
        victim.join()


def test_a_group_of_kafka_python(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")
    write(bootstrap, topic, range(60))
    consumers = [
        kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=300,
            fetch_max_wait_ms=50,
            auto_commit_interval_ms=100,
        )
        for _ in range(2)
    ]
    got: list[list[bytes]] = [[], []]
    stop = threading.Event()

    def run(number: int) -> None:
        while not stop.is_set():
            for messages in consumers[number].poll(timeout_ms=50).values():
                got[number].extend(message.value for message in messages)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: {*got[0], *got[1]} == {b"%d" % i for i in range(60)}, what="the first records")
        wait_until(lambda: all(len(c.assignment()) == PARTITIONS // 2 for c in consumers), what="a balance")
        write(bootstrap, topic, range(60, 120))
        wait_until(lambda: {*got[0], *got[1]} == {b"%d" % i for i in range(120)}, what="the later records")
        # Read once is not committed yet: who takes a partition over may have to read it again.
        at_end = dict.fromkeys(range(PARTITIONS), 20)
        wait_until(lambda: committed(bootstrap, group) == at_end, what="the commits", interval_s=0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for consumer in consumers:
            consumer.close()
    assert committed(bootstrap, group) == at_end


async def test_a_group_of_aiokafka(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")
    await asyncio.to_thread(write, bootstrap, topic, range(60))

    def member() -> aiokafka.AIOKafkaConsumer:
        return aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=300,
            fetch_max_wait_ms=50,
        )

    consumers = [member(), member()]
    got: list[bytes] = []

    async def run(consumer: aiokafka.AIOKafkaConsumer) -> None:
        async for message in consumer:
            got.append(message.value)  # noqa: PERF401 - the loop ends only when it is cancelled

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.02)

    await asyncio.gather(*(consumer.start() for consumer in consumers))
    tasks = [asyncio.create_task(run(consumer)) for consumer in consumers]
    try:
        await until(lambda: set(got) == {b"%d" % i for i in range(60)})
        await until(lambda: all(len(consumer.assignment()) == PARTITIONS // 2 for consumer in consumers))
        await consumers[0].stop()
        await asyncio.to_thread(write, bootstrap, topic, range(60, 120))
        await until(lambda: set(got) == {b"%d" % i for i in range(120)})
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in consumers:
            await consumer.stop()


def test_a_group_of_three_kinds_of_clients(bootstrap: str, new_topic: NewTopic) -> None:
    """The range assignor is one that all of them speak, and the leader may be any of them."""
    topic, group = new_topic(partitions=PARTITIONS), unique_name("group")
    got: set[bytes] = set()
    other = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=30_000,
        heartbeat_interval_ms=300,
    )
    stop = threading.Event()

    def run_kafka_python() -> None:
        while not stop.is_set():
            for messages in other.poll(timeout_ms=50).values():
                got.update(message.value for message in messages)

    async def aiokafka_member() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        await consumer.start()
        try:
            while not stop.is_set():
                for messages in (await consumer.getmany(timeout_ms=50)).values():
                    got.update(message.value for message in messages)
        finally:
            await consumer.stop()

    threads = [
        threading.Thread(target=run_kafka_python, daemon=True),
        threading.Thread(target=lambda: asyncio.run(aiokafka_member()), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        with members(Member(bootstrap, group, topic, **{"partition.assignment.strategy": "range"})) as everyone:
            wait_until(
                lambda: len(everyone[0].assigned) == PARTITIONS // 3 and len(other.assignment()) == PARTITIONS // 3,
                what="a balance of three",
            )
            write(bootstrap, topic, range(60))
            wait_until(lambda: got | all_of(everyone) == {b"%d" % i for i in range(60)}, what="all records")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        other.close()


def test_a_group_outlives_the_process_that_serves_it(cluster: Cluster) -> None:
    """After kill -9 of everything the commits are there, and the members find their way back."""
    up = cluster.up()
    topic, group = create_topic(up.address, PARTITIONS), unique_name("group")
    write(up.address, topic, range(60))
    with members(Member(up.address, group, topic), Member(up.address, group, topic)) as everyone:
        expect(everyone, range(60))
        at_end = dict.fromkeys(range(PARTITIONS), 10)
        wait_until(lambda: committed(up.address, group) == at_end, what="the commits", interval_s=0.1)
        up.restart()
        write(up.address, topic, range(60, 120))
        expect(everyone, range(120))
        wait_until(lambda: balanced(everyone), what="a balance after the restart")
        counted = sum(len(member.values) for member in everyone)
    assert counted <= 120 + 2 * PARTITIONS  # only what was delivered and not yet committed comes twice


def test_who_asks_for_committed_offsets_while_nobody_can_tell_reads_on_afterwards(cluster: Cluster) -> None:
    """A consumer may ask just when the control plane is started again."""
    control = cluster.control()
    agent = cluster.agent(control=control)
    topic, group = create_topic(agent.address), unique_name("group")
    CLIENTS["confluent"].produce(agent.address, topic, [Record(b"%d" % i) for i in range(10)])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": agent.address, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    control.pause()
    consumer.assign([TopicPartition(topic, 0)])
    assert consumer.poll(1.5) is None  # until it waits for an answer
    control.kill()
    control.start()
    messages = consumer.consume(3, 60)
    assert [(each.error(), each.value()) for each in messages] == [(None, b"%d" % i) for i in (7, 8, 9)]
    consumer.close()
