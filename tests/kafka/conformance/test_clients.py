"""What clients' own administration makes of a broker: the table's answers as their exceptions and objects."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import ElectionType, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from tests.cluster import wait_until

from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition

Make = Callable[..., str]
Unique = Callable[[str], str]

SECONDS = 60


@pytest.fixture
def confluent(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


@pytest.fixture
def python(address: str) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=address)
    yield admin
    admin.close()


def only(futures: dict[Any, Any]) -> Any:
    [future] = futures.values()
    return future.result(SECONDS)


CONFLUENT_REFUSALS: dict[str, tuple[Callable[[AdminClient, str, str], Any], str]] = {
    "a topic that exists": (lambda a, t, n: only(a.create_topics([NewTopic(t, 1)])), "TOPIC_ALREADY_EXISTS"),
    "no partitions": (lambda a, t, n: only(a.create_topics([NewTopic(n, 0)])), "INVALID_PARTITIONS"),
    "a bad config": (
        lambda a, t, n: only(a.create_topics([NewTopic(n, 1, config={"retention.ms": "x"})])),
        "INVALID_CONFIG",
    ),
    "deleting nothing": (lambda a, t, n: only(a.delete_topics([n])), "UNKNOWN_TOPIC_OR_PART"),
    "shrinking": (lambda a, t, n: only(a.create_partitions([NewPartitions(t, 1)])), "INVALID_PARTITIONS"),
    "a config that is not known": (
        lambda a, t, n: only(
            a.incremental_alter_configs(
                [
                    ConfigResource(
                        ResourceType.TOPIC,
                        t,
                        incremental_configs=[ConfigEntry("no.such", "1", incremental_operation=AlterConfigOpType.SET)],
                    )
                ]
            )
        ),
        "INVALID_CONFIG",
    ),
    "a group that never was": (lambda a, t, n: only(a.delete_consumer_groups([n])), "GROUP_ID_NOT_FOUND"),
    "records past the end": (
        lambda a, t, n: only(a.delete_records([TopicPartition(t, 0, 99)])),
        "OFFSET_OUT_OF_RANGE",
    ),
}


@pytest.mark.parametrize("what", sorted(CONFLUENT_REFUSALS))
def test_confluent_is_refused_in_kafkas_words(
    confluent: AdminClient, new_topic: Make, unique: Unique, what: str
) -> None:
    ask, code = CONFLUENT_REFUSALS[what]
    with pytest.raises(KafkaException) as refused:
        ask(confluent, new_topic(2), unique("nobody"))
    assert refused.value.args[0].name() == code


def test_confluent_describes(confluent: AdminClient, new_topic: Make) -> None:
    topic = new_topic(2)
    described = only(confluent.describe_topics(TopicCollection([topic]), include_authorized_operations=True))
    assert (described.name, len(described.partitions)) == (topic, 2)
    assert str(described.topic_id) not in ("", "AAAAAAAAAAAAAAAAAAAAAA")
    cluster = confluent.describe_cluster(request_timeout=SECONDS).result()
    assert cluster.cluster_id
    assert cluster.controller.id in {node.id for node in cluster.nodes}


def test_confluent_has_nothing_to_elect(confluent: AdminClient, new_topic: Make) -> None:
    partition = TopicPartition(new_topic(), 0)
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [partition]).result(SECONDS)
    assert [error.name() for error in elected.values() if error is not None] == ["ELECTION_NOT_NEEDED"]


PYTHON_REFUSALS: dict[str, tuple[Callable[[KafkaAdminClient, str, str], Any], type[Exception]]] = {
    "a topic that exists": (
        lambda a, t, n: a.create_topics({t: {"num_partitions": 1, "replication_factor": 1}}),
        kafka.errors.TopicAlreadyExistsError,
    ),
    "deleting nothing": (lambda a, t, n: a.delete_topics([n]), kafka.errors.UnknownTopicOrPartitionError),
    "shrinking": (lambda a, t, n: a.create_partitions({t: 1}), kafka.errors.InvalidPartitionsError),
}


@pytest.mark.parametrize("what", sorted(PYTHON_REFUSALS))
def test_kafka_python_is_refused_in_kafkas_words(
    python: KafkaAdminClient, new_topic: Make, unique: Unique, what: str
) -> None:
    ask, error = PYTHON_REFUSALS[what]
    with pytest.raises(error):
        ask(python, new_topic(2), unique("nobody"))


def test_kafka_python_asks_for_everything_else(python: KafkaAdminClient, new_topic: Make, unique: Unique) -> None:
    topic, group = new_topic(2), unique("group")
    assert python.list_partition_reassignments() == {}
    directories = python.describe_log_dirs()
    assert directories
    assert [each["name"] for each in python.describe_topic_partitions([topic])["topics"]] == [topic]
    assert python.list_transactions() is not None
    assert python.describe_features()
    assert topic in str(python.list_config_resources())
    python.elect_leaders(0, {topic: [0]})  # takes "not needed" for an answer
    key = PythonTopicPartition(topic, 0)
    python.alter_group_offsets(group, {key: kafka.OffsetAndMetadata(5, "note", -1)})
    found = python.list_group_offsets({group: [key]})[group]
    assert found[key].offset == 5
    assert group in {each["group_id"] for each in python.list_groups()}
    python.delete_group_offsets(group, [key])
    python.delete_groups([group])


def test_aiokafka_administers(address: str, new_topic: Make, unique: Unique) -> None:
    topic, name = new_topic(1), unique("aio")

    async def administer() -> list[int]:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            made = await admin.create_topics([AioNewTopic(name, 1, 1), AioNewTopic(topic, 1, 1)])
            codes = {each[0]: each[1] for each in made.topic_errors}
            grown = await admin.create_partitions({topic: AioNewPartitions(3)})
            gone = await admin.delete_topics([name])
            return [codes[name], codes[topic], grown.topic_errors[0][1], gone.topic_error_codes[0][1]]
        finally:
            await admin.close()

    exists = kafka.errors.TopicAlreadyExistsError.errno
    assert asyncio.run(administer()) == [0, exists, 0, 0]


def test_all_see_a_group_of_each_kind(
    address: str, confluent: AdminClient, python: KafkaAdminClient, new_topic: Make, unique: Unique
) -> None:
    topic = new_topic(2)
    groups = {"classic": unique("group"), "consumer": unique("group")}
    members = []
    for protocol, group in groups.items():
        settings = {"bootstrap.servers": address, "group.id": group, "group.protocol": protocol}
        members.append(confluent_kafka.Consumer(settings))
        members[-1].subscribe([topic])
    try:

        def are_assigned() -> bool:
            for member in members:
                member.poll(0.1)
            return all(len(member.assignment()) == 2 for member in members)

        wait_until(are_assigned, what="assignments")
        listed = {each["group_id"]: each["group_type"] for each in python.list_groups()}
        assert {listed[group].lower(): group for group in groups.values()} == groups
        classic = only(confluent.describe_consumer_groups([groups["classic"]]))
        assert [len(each.assignment.topic_partitions) for each in classic.members] == [2]
    finally:
        for member in members:
            member.close()
