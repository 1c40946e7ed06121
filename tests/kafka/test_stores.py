"""The same behaviour whatever the store: a file system, memory, and a real S3 server."""

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from tests.cluster import Cluster, Process
from tests.kafka.clients import CLIENTS, CODECS, PYTHON_CLIENTS, Record, SteadyProducer, without_place
from tests.kafka.conftest import QUICK_SETTINGS
from tests.kafka.consistency import check_consistency
from tests.kafka.reading import check_idempotent, read_all
from tests.kafka.topics import admin_client, create_topic, unique_name


@pytest.fixture(scope="module", params=["file", "memory", "s3"])
def store_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    store_url = None
    if request.param == "memory":
        store_url = "memory://"
    elif request.param == "s3":
        bucket, query = request.getfixturevalue("seaweed_url").split("?")
        store_url = f"{bucket}/{unique_name('kafka')}?{query}"
    with Cluster(tmp_path_factory.mktemp(request.param), store_url=store_url, settings=QUICK_SETTINGS) as cluster:
        cluster.up()
        yield cluster


@pytest.fixture
def up(store_cluster: Cluster) -> Process:
    return store_cluster.processes["up"]


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_every_codec(name: str, up: Process) -> None:
    topic = create_topic(up.address)
    written: list[Record] = []
    for codec in CODECS:
        records = [Record(f"{codec} {i}".encode(), b"key %d" % i) for i in range(50)]
        CLIENTS[name].produce(up.address, topic, records, codec=codec)
        written += records
    assert without_place(CLIENTS[name].consume(up.address, topic, len(written))) == written


def test_large_records(up: Process) -> None:
    topic = create_topic(up.address, max_message_bytes=6_000_000)
    values = [bytes([number]) * 5_000_000 for number in range(3)]
    CLIENTS["confluent"].produce(up.address, topic, [Record(value) for value in values])
    found = CLIENTS["confluent"].consume(up.address, topic, 3)
    assert [record.value == value for record, value in zip(found, values, strict=True)] == [True] * 3


def test_many_partitions_groups_and_deleted_records(up: Process) -> None:
    topic = create_topic(up.address, 20)
    CLIENTS["confluent"].produce(up.address, topic, [Record(b"%d" % i, partition=i % 20) for i in range(400)])
    admin = admin_client(up.address)
    partition = TopicPartition(topic, 0, 15)
    assert admin.delete_records([partition])[partition].result(60).low_watermark == 15
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": up.address, "group.id": unique_name("group"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = consumer.consume(385, 60)
    assert sorted(int(message.value()) for message in found) == sorted(set(range(400)) - set(range(0, 300, 20)))
    consumer.close()
    admin.delete_topics([topic])[topic].result(60)


def test_a_kill_loses_nothing(store_cluster: Cluster, up: Process) -> None:
    if store_cluster.store_url == "memory://":
        pytest.skip("what is in memory is gone with its process")
    topic = create_topic(up.address, 2)
    producer = SteadyProducer(up.address, topic, partition_count=2, count_max=400, **{"enable.idempotence": True})
    up.restart()
    producer.wait_sent()
    producer.stop()
    check_idempotent(producer, read_all(up.address, topic, 2), 2)
    assert up.stop() == 0
    try:
        check_consistency(store_cluster.metadata_path, store_cluster.store_url)
    finally:
        up.start()
