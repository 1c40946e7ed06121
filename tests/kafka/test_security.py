"""What clients see of rights: real clients at one agent that authorizes by ACLs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cli.running import braid
from tests.kafka.in_process import InProcessBraidlog

from braidlog.clients.errors import CommandError, WrongUsage
from braidlog.control.interface import CreateAcls, CreateTopics, DeleteAcls
from braidlog.control.interface import NewTopic as NewTopicInfo
from braidlog.security.acls import (
    ALLOW,
    ALTER,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DESCRIBE,
    GROUP,
    LITERAL,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Acl,
    AclFilter,
)

WAIT_S = 60
ANONYMOUS = "User:ANONYMOUS"


class Guarded:
    """A log with ACLs, and the hand that changes them."""

    def __init__(self, braidlog: InProcessBraidlog) -> None:
        self.braidlog = braidlog
        self.bootstrap = braidlog.bootstrap

    def create_topic(self, name: str) -> None:
        self.braidlog.call(lambda control: control.create_topics(CreateTopics([NewTopicInfo(name, 1)])))
        self.braidlog.wait_until(lambda agent: name in agent.view.topics_by_name)

    def grant(self, operation: int, resource_type: int, name: str) -> Acl:
        acl = Acl(resource_type, name, LITERAL, ANONYMOUS, "*", operation, ALLOW)
        self.braidlog.call(lambda control: control.create_acls(CreateAcls([acl])))
        self.braidlog.wait_until(lambda agent: acl in agent.view.acls.acls)
        return acl

    def revoke(self, acl: Acl) -> None:
        self.braidlog.call(lambda control: control.delete_acls(DeleteAcls([AclFilter(*acl)])))
        self.braidlog.wait_until(lambda agent: acl not in agent.view.acls.acls)

    def produce(self, topic: str, value: bytes = b"v", **config: object) -> KafkaError | None:
        """The error that the producer was told, if any."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": False,
                "allow.auto.create.topics": True,
                "message.timeout.ms": WAIT_S * 1000,
                **config,
            }
        )
        told: list[KafkaError | None] = []
        producer.produce(topic, value, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(WAIT_S) == 0
        return told[0]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded")
    with InProcessBraidlog(folder, authorizer="acl") as braidlog:
        yield Guarded(braidlog)


def test_producers_need_the_right_to_write(guarded: Guarded) -> None:
    guarded.create_topic("written")
    error = guarded.produce("written")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    seen = guarded.grant(DESCRIBE, TOPIC, "written")
    error = guarded.produce("written")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.grant(WRITE, TOPIC, "written")
    assert guarded.produce("written") is None
    guarded.revoke(seen)
    assert guarded.produce("written") is None  # who may write may also see


def test_a_revoked_right_ends_a_producer_and_a_waiting_consumer(guarded: Guarded) -> None:
    """Both have connections, and the consumer's fetch waits, when the rights go."""
    guarded.create_topic("revoked")
    may_write, may_read = guarded.grant(WRITE, TOPIC, "revoked"), guarded.grant(READ, TOPIC, "revoked")
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "enable.idempotence": False, "linger.ms": 0})
    told: list[KafkaError | None] = []
    for _ in range(3):  # the third is recognised by its first bytes
        producer.produce("revoked", b"v", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(WAIT_S) == 0
    assert told == [None] * 3
    guarded.grant(READ, GROUP, "lone")  # librdkafka looks for a coordinator even where it needs none
    consumer = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": "lone", "fetch.wait.max.ms": 30_000})
    consumer.assign([TopicPartition("revoked", 0, 0)])
    try:
        assert len(consumer.consume(3, WAIT_S)) == 3
        guarded.revoke(may_read)
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is not None
        assert message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        guarded.revoke(may_write)
        producer.produce("revoked", b"v", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(WAIT_S) == 0
        assert told[3] is not None
        assert told[3].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    finally:
        consumer.close()


def test_topics_are_listed_only_to_those_who_may_see_them(guarded: Guarded) -> None:
    guarded.create_topic("secret")
    guarded.create_topic("open")
    guarded.grant(DESCRIBE, TOPIC, "open")
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    listed = admin.list_topics(timeout=WAIT_S).topics
    assert "open" in listed
    assert "secret" not in listed
    for name in ("secret", "nothing"):  # whether it exists is not told
        (found,) = admin.list_topics(name, timeout=WAIT_S).topics.values()
        assert found.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_topics_are_created_on_first_use_only_with_the_right_to(guarded: Guarded) -> None:
    guarded.grant(WRITE, TOPIC, "first-use")
    error = guarded.produce("first-use")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert "first-use" not in guarded.braidlog.agent.view.topics_by_name
    guarded.grant(CREATE, TOPIC, "first-use")
    assert guarded.produce("first-use") is None


def test_transactions_need_the_right_to_their_id(guarded: Guarded) -> None:
    guarded.create_topic("paid")
    guarded.grant(WRITE, TOPIC, "paid")
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "transactional.id": "payer"})
    with pytest.raises(KafkaException) as denied:
        producer.init_transactions(WAIT_S)
    assert denied.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    guarded.grant(WRITE, TRANSACTIONAL_ID, "payer")
    producer = Producer({"bootstrap.servers": guarded.bootstrap, "transactional.id": "payer"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("paid", b"1")
    producer.commit_transaction(WAIT_S)


def test_groups_need_the_right_to_read_the_group_and_the_topic(guarded: Guarded) -> None:
    guarded.create_topic("grouped")
    for resource_type, name in ((TOPIC, "grouped"), (GROUP, "members")):
        guarded.grant(READ, resource_type, name)
    guarded.grant(WRITE, TOPIC, "grouped")
    assert guarded.produce("grouped", b"one") is None
    settings = {"bootstrap.servers": guarded.bootstrap, "auto.offset.reset": "earliest"}
    stranger = Consumer({**settings, "group.id": "strangers"})
    stranger.subscribe(["grouped"])
    try:
        message = stranger.poll(WAIT_S)
        assert message is not None
        assert message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    finally:
        stranger.close()
    member = Consumer({**settings, "group.id": "members"})
    member.subscribe(["grouped"])
    try:
        assert [message.value() for message in member.consume(1, WAIT_S)] == [b"one"]
        member.commit(asynchronous=False)
    finally:
        member.close()
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    assert [group.group_id for group in admin.list_consumer_groups().result(WAIT_S).valid] == ["members"]
    with pytest.raises(KafkaException) as denied:
        admin.create_topics([NewTopic("more", 1)])["more"].result(WAIT_S)
    assert denied.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_idempotent_producers_need_a_topic_that_they_may_write(guarded: Guarded) -> None:
    guarded.create_topic("idempotent")
    guarded.grant(WRITE, TOPIC, "idempotent")
    assert guarded.produce("idempotent", **{"enable.idempotence": True}) is None


def test_the_acl_command_creates_lists_and_deletes_rules(guarded: Guarded) -> None:
    rights = [guarded.grant(operation, CLUSTER, CLUSTER_NAME) for operation in (ALTER, DESCRIBE)]

    def acls(*arguments: str) -> list[tuple[str, ...]]:
        rows = braid(guarded.bootstrap, "acl", "list", *arguments)
        return [(row["permission"], row["operation"], row["name"], row["pattern"]) for row in rows]

    command = ["acl", "create", "User:carol", "-o", "read", "-o", "write", "--topic", "pay", "--prefixed"]
    assert len(braid(guarded.bootstrap, *command)["created"]) == 2
    braid(guarded.bootstrap, "acl", "create", "User:carol", "-o", "all", "--topic", "payroll", "--deny")
    prefixed = [("allow", "read", "pay", "prefixed"), ("allow", "write", "pay", "prefixed")]
    denied = ("deny", "all", "payroll", "literal")
    assert acls("--principal", "User:carol") == [*prefixed, denied]
    assert acls("--principal", "User:carol", "--topic", "payments") == prefixed
    braid(guarded.bootstrap, "acl", "delete", "User:carol", "--topic", "pay", "--prefixed", "-o", "read")
    assert acls("--principal", "User:carol") == [prefixed[1], denied]
    braid(guarded.bootstrap, "acl", "delete", "User:carol")
    with pytest.raises(CommandError, match="no such rule"):
        braid(guarded.bootstrap, "acl", "delete", "User:carol")
    with pytest.raises(WrongUsage, match="what may be done"):
        braid(guarded.bootstrap, "acl", "create", "User:carol", "--topic", "t")
    for right in rights:
        guarded.revoke(right)
    with pytest.raises(CommandError, match="authorization failed"):
        braid(guarded.bootstrap, "acl", "list")
