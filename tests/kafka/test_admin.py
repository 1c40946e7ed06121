"""Administration through each client's own API, with Kafka's error codes for wrong input."""

from collections.abc import AsyncIterator, Callable, Iterator

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewTopic as AiokafkaTopic
from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka.admin import NewTopic as KafkaPythonTopic
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.topics import admin_client, error_name, unique_name

import kafka

MakeTopic = Callable[..., str]
WAIT_S = 60


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return admin_client(bootstrap)


@pytest.fixture
def kafka_python_admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield admin
    admin.close()


@pytest.fixture
async def aiokafka_admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    yield admin
    await admin.close()


def refusal(future: "confluent_kafka.Future") -> str:  # type: ignore[name-defined]
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        future.result(WAIT_S)
    return error_name(caught.value)


# ── topics ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_create_describe_and_delete_a_topic(admin: AdminClient) -> None:
    name = unique_name("admin")
    admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "60000"})])[name].result(WAIT_S)
    described = admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert all(partition.leader is not None and partition.isr for partition in described.partitions)
    assert name in admin.list_topics(timeout=WAIT_S).topics
    admin.delete_topics([name])[name].result(WAIT_S)
    assert name not in admin.list_topics(timeout=WAIT_S).topics
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.describe_topics(TopicCollection([name]))[name].result(WAIT_S)
    assert error_name(caught.value) == "UNKNOWN_TOPIC_OR_PART"


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("spaces are wrong", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("..", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("x" * 250, 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("no-partitions", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("no-replicas", 1, 0), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("unknown-config", 1, 1, config={"no.such.config": "1"}), "INVALID_CONFIG"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.topic[:20],
)
def test_wrong_topics_are_refused(topic: NewTopic, error: str, admin: AdminClient) -> None:
    assert refusal(admin.create_topics([topic])[topic.topic]) == error
    assert topic.topic not in admin.list_topics(timeout=WAIT_S).topics


def test_a_topic_that_exists_and_one_that_does_not(admin: AdminClient, new_topic: MakeTopic) -> None:
    name = new_topic()
    assert refusal(admin.create_topics([NewTopic(name, 1, 1)])[name]) == "TOPIC_ALREADY_EXISTS"
    assert refusal(admin.delete_topics(["never-was"])["never-was"]) == "UNKNOWN_TOPIC_OR_PART"


def test_one_wrong_topic_does_not_spoil_the_others(admin: AdminClient) -> None:
    good = unique_name("good")
    outcomes = admin.create_topics([NewTopic("not good", 1, 1), NewTopic(good, 1, 3)])  # suites hard-code 3 replicas
    assert refusal(outcomes["not good"]) == "TOPIC_EXCEPTION"
    outcomes[good].result(WAIT_S)
    assert good in admin.list_topics(timeout=WAIT_S).topics


def test_validate_only_creates_nothing(admin: AdminClient) -> None:
    name = unique_name("maybe")
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(WAIT_S)
    assert name not in admin.list_topics(timeout=WAIT_S).topics


def test_a_recreated_topic_is_empty(admin: AdminClient, bootstrap: str) -> None:
    name = unique_name("again")
    for value in (b"first life", b"second life"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
        assert CLIENTS["confluent"].produce(bootstrap, name, [Record(value)]) == [0]
        assert [record.value for record in CLIENTS["confluent"].consume(bootstrap, name, 1)] == [value]
        admin.delete_topics([name])[name].result(WAIT_S)


def test_partitions_are_added(admin: AdminClient, bootstrap: str, new_topic: MakeTopic) -> None:
    name = new_topic(partitions=2)
    CLIENTS["confluent"].produce(bootstrap, name, [Record(b"before", partition=1)])
    admin.create_partitions([NewPartitions(name, 5)])[name].result(WAIT_S)
    assert len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 5
    CLIENTS["confluent"].produce(bootstrap, name, [Record(b"after", partition=4)])
    found = CLIENTS["confluent"].consume(bootstrap, name, 2, partitions=range(5))
    assert {(record.partition, record.value) for record in found} == {(1, b"before"), (4, b"after")}
    assert refusal(admin.create_partitions([NewPartitions(name, 3)])[name]) == "INVALID_PARTITIONS"
    assert refusal(admin.create_partitions([NewPartitions("never-was", 3)])["never-was"]) == "UNKNOWN_TOPIC_OR_PART"


def test_producing_to_a_partition_that_is_not_there(bootstrap: str, new_topic: MakeTopic) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        CLIENTS["confluent"].produce(bootstrap, new_topic(partitions=2), [Record(b"x", partition=7)])
    assert error_name(caught.value) in ("_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_OR_PART")


# ── configs ───────────────────────────────────────────────────────────────────────────────────────────────────────


def config_of(admin: AdminClient, topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return dict(admin.describe_configs([resource])[resource].result(WAIT_S))


def test_configs_are_described_changed_and_reset(admin: AdminClient, new_topic: MakeTopic) -> None:
    name = new_topic(retention_ms=60_000)
    entries = config_of(admin, name)
    assert entries["retention.ms"].value == "60000"
    assert not entries["retention.ms"].is_default
    assert entries["max.message.bytes"].value == "1048588"
    assert entries["max.message.bytes"].is_default

    def alter(setting: str, operation: AlterConfigOpType, value: str | None = None) -> ConfigResource:
        entry = ConfigEntry(setting, value, incremental_operation=operation)
        return ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])

    for resource in (
        alter("max.message.bytes", AlterConfigOpType.SET, "2000000"),
        alter("retention.ms", AlterConfigOpType.DELETE),
    ):
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    entries = config_of(admin, name)
    assert entries["max.message.bytes"].value == "2000000"
    assert entries["retention.ms"].value == "604800000"
    wrong = alter("max.message.bytes", AlterConfigOpType.SET, "many")
    assert refusal(admin.incremental_alter_configs([wrong])[wrong]) == "INVALID_CONFIG"
    unknown = ConfigResource(ResourceType.TOPIC, "never-was")
    assert refusal(admin.describe_configs([unknown])[unknown]) == "UNKNOWN_TOPIC_OR_PART"


def test_alter_configs_replaces_everything(admin: AdminClient, new_topic: MakeTopic) -> None:
    name = new_topic(retention_ms=60_000)
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"segment.bytes": "2000000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):  # by the client; brokers still have it
        outcome = admin.alter_configs([resource])[resource]
    outcome.result(WAIT_S)
    entries = config_of(admin, name)
    assert entries["segment.bytes"].value == "2000000"
    assert entries["retention.ms"].is_default


def test_a_raised_limit_is_in_force_at_once(admin: AdminClient, bootstrap: str, new_topic: MakeTopic) -> None:
    name = new_topic(max_message_bytes=1_000)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        CLIENTS["confluent"].produce(bootstrap, name, [Record(b"x" * 5_000)])
    assert error_name(caught.value) == "MSG_SIZE_TOO_LARGE"
    entry = ConfigEntry("max.message.bytes", "10000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    CLIENTS["confluent"].produce(bootstrap, name, [Record(b"x" * 5_000)])


def test_broker_configs_are_described(admin: AdminClient) -> None:
    broker = str(next(iter(admin.list_topics(timeout=WAIT_S).brokers)))
    resource = ConfigResource(ResourceType.BROKER, broker)
    assert admin.describe_configs([resource])[resource].result(WAIT_S)


# ── records and offsets ───────────────────────────────────────────────────────────────────────────────────────────


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, bootstrap: str, new_topic: MakeTopic) -> None:
    name = new_topic()
    CLIENTS["confluent"].produce(bootstrap, name, [Record(b"%d" % i) for i in range(100)])
    partition = TopicPartition(name, 0, 40)
    assert admin.delete_records([partition])[partition].result(WAIT_S).low_watermark == 40
    found = CLIENTS["confluent"].consume(bootstrap, name, 60)
    assert [record.offset for record in found] == list(range(40, 100))
    beyond = TopicPartition(name, 0, 1_000)
    assert refusal(admin.delete_records([beyond])[beyond]) == "OFFSET_OUT_OF_RANGE"
    everything = TopicPartition(name, 0, confluent_kafka.OFFSET_END)
    assert admin.delete_records([everything])[everything].result(WAIT_S).low_watermark == 100


def test_list_offsets(admin: AdminClient, bootstrap: str, new_topic: MakeTopic) -> None:
    name = new_topic(retention_ms=-1)
    times_ms = [1_700_000_000_000, 1_700_000_000_500, 1_700_000_000_200]
    CLIENTS["confluent"].produce(bootstrap, name, [Record(b"x", timestamp_ms=ms) for ms in times_ms])

    def offset(spec: OffsetSpec) -> int:
        partition = TopicPartition(name, 0)
        return int(admin.list_offsets({partition: spec})[partition].result(WAIT_S).offset)

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(1_700_000_000_100)) == 1


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────


def commit_some(bootstrap: str, topic: str, group: str, offset: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_groups_are_listed_described_and_deleted(admin: AdminClient, bootstrap: str, new_topic: MakeTopic) -> None:
    topic, group = new_topic(), unique_name("group")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "client.id": "somebody"}
    )
    consumer.subscribe([topic])
    CLIENTS["confluent"].produce(bootstrap, topic, [Record(b"%d" % i) for i in range(10)])
    assert len(consumer.consume(4, WAIT_S)) == 4
    consumer.commit(asynchronous=False)

    listed = {found.group_id for found in admin.list_consumer_groups().result(WAIT_S).valid}
    assert group in listed
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.state.name == "STABLE"
    assert [member.client_id for member in described.members] == ["somebody"]
    assigned = described.members[0].assignment.topic_partitions
    assert [(partition.topic, partition.partition) for partition in assigned] == [(topic, 0)]
    assert refusal(admin.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"

    wanted = ConsumerGroupTopicPartitions(group)
    committed = admin.list_consumer_group_offsets([wanted])[group].result(WAIT_S).topic_partitions[0].offset
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)[1]
    assert end - committed == 6  # the lag
    consumer.close()

    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    assert group not in {found.group_id for found in admin.list_consumer_groups().result(WAIT_S).valid}
    assert refusal(admin.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"


def test_committed_offsets_are_changed_from_outside(admin: AdminClient, bootstrap: str, new_topic: MakeTopic) -> None:
    topic, group = new_topic(), unique_name("group")
    CLIENTS["confluent"].produce(bootstrap, topic, [Record(b"%d" % i) for i in range(10)])
    commit_some(bootstrap, topic, group, 9)
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([change])[group].result(WAIT_S)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.subscribe([topic])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.offset() == 3
    consumer.close()


# ── kafka-python ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_kafka_python_administers(
    kafka_python_admin: kafka.KafkaAdminClient, bootstrap: str, unused_group: str
) -> None:
    admin, name = kafka_python_admin, unique_name("admin")
    admin.create_topics([KafkaPythonTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
    assert name in [str(found["name"]) if isinstance(found, dict) else found for found in admin.list_topics()]
    described = admin.describe_topics([name])[0]
    assert len(described["partitions"]) == 2
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        admin.create_topics([KafkaPythonTopic(name, 2, 1)])
    admin.create_partitions({name: 4})
    assert len(admin.describe_topics([name])[0]["partitions"]) == 4
    CLIENTS["kafka-python"].produce(bootstrap, name, [Record(b"%d" % i) for i in range(10)])
    partition = kafka.TopicPartition(name, 0)
    admin.delete_records({partition: 4})
    commit_some(bootstrap, name, unused_group, 7)
    assert admin.list_group_offsets(unused_group)[unused_group][partition].offset == 7
    assert unused_group in [group["group_id"] for group in admin.list_groups()]
    admin.delete_groups([unused_group])
    admin.delete_topics([name])
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name])


@pytest.fixture
def unused_group() -> str:
    return unique_name("group")


# ── aiokafka ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_aiokafka_administers(aiokafka_admin: AIOKafkaAdminClient, bootstrap: str, unused_group: str) -> None:
    admin, name = aiokafka_admin, unique_name("admin")
    created = await admin.create_topics([AiokafkaTopic(name, 2, 1)])
    assert [error for _, error, *_ in created.topic_errors] == [0]
    again = await admin.create_topics([AiokafkaTopic(name, 2, 1)])
    assert [error for _, error, *_ in again.topic_errors] == [aiokafka.errors.TopicAlreadyExistsError.errno]
    assert name in await admin.list_topics()
    described = await admin.describe_topics([name])
    assert len(described[0]["partitions"]) == 2
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for i in range(10):
        await producer.send_and_wait(name, b"%d" % i, partition=0)
    await producer.stop()
    partition = aiokafka.TopicPartition(name, 0)
    assert await admin.delete_records({partition: RecordsToDelete(4)}) == {partition: 4}
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=unused_group, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([partition])
    await consumer.commit({partition: 6})
    await consumer.stop()
    offsets = await admin.list_consumer_group_offsets(unused_group)
    assert offsets[partition].offset == 6
    assert unused_group in [group[0] for group in await admin.list_consumer_groups()]
    deleted = await admin.delete_topics([name])
    assert [error for _, error in deleted.topic_error_codes] == [0]
