"""Processes that stop: cleanly under load, and for so long that the world has moved on."""

import sqlite3
import time
from pathlib import Path

import confluent_kafka
from tests.cluster import Cluster, wait_until
from tests.kafka.clients import CLIENTS, Record, SteadyProducer
from tests.kafka.consistency import check_consistency
from tests.kafka.reading import check_acknowledged, read_all
from tests.kafka.topics import create_topic

from braidlog.objects.keys import parse_data_key

GIVEN_UP = "stopped before all requests were answered"


def data_keys(store: Path) -> set[str]:
    return {str(path.relative_to(store)) for path in store.glob("data/*/*/*") if path.is_file()}


def write_epoch_floor(metadata: Path) -> int:
    connection = sqlite3.connect(f"file:{metadata}?mode=ro", uri=True)
    try:
        row = connection.execute("SELECT value FROM counters WHERE name = 'write_epoch_floor'").fetchone()
        return int(row[0]) if row is not None else 0
    finally:
        connection.close()


def produce_once(bootstrap: str, topic: str, value: bytes) -> None:
    """However often the client has to send it until somebody takes it."""
    outcomes: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 60_000}
    )
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
    assert producer.flush(90) == 0
    assert outcomes == [None]


def test_an_agent_that_slept_past_the_grace_can_only_fail(cluster: Cluster) -> None:
    """It had uploaded an object and not committed it. Meanwhile the floor has risen and the object was swept: the
    commit is refused, the producer hears of it, and what is written later is well."""
    cluster.settings.update({"write_epoch_interval_s": 1, "sweep_grace_s": 5})
    # However long the machine takes, the commit is tried again: neither its time is over, nor is it given up because
    # the control plane was not heard of for so long.
    cluster.settings.update({"request_timeout_ms": 300_000, "ripcord_after_ms": 300_000})
    control = cluster.control()
    agent = cluster.agent(control=control)
    topic = create_topic(agent.address)
    CLIENTS["confluent"].produce(agent.address, topic, [Record(b"before %d" % i) for i in range(10)])
    known = data_keys(cluster.store_path)

    outcomes: list[confluent_kafka.KafkaError | None] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": agent.address,
            "enable.idempotence": False,
            "retries": 0,
            "socket.timeout.ms": 200_000,
            "request.timeout.ms": 200_000,
            "message.timeout.ms": 200_000,
        }
    )
    producer.list_topics(topic, timeout=60)
    control.kill()
    producer.produce(topic, b"too late", partition=0, on_delivery=lambda error, message: outcomes.append(error))
    (orphan,) = wait_until(lambda: data_keys(cluster.store_path) - known, what="the upload")
    agent.pause()
    control.start()
    epoch = parse_data_key(orphan).write_epoch
    wait_until(lambda: write_epoch_floor(cluster.metadata_path) > epoch, what="a higher floor")
    wait_until(lambda: orphan not in data_keys(cluster.store_path), what="the sweep")
    assert data_keys(cluster.store_path) == known  # what is referred to stays, however old its epoch
    agent.resume()
    assert producer.flush(90) == 0
    assert "below the floor" in agent.log_path.read_text()
    # The client may well send it again by itself, and then it is another object.
    survivor = [] if outcomes[0] is not None else [b"too late"]
    produce_once(agent.address, topic, b"after")
    found = read_all(agent.address, topic, 1)
    assert [record.value for record in found] == [*(b"before %d" % i for i in range(10)), *survivor, b"after"]
    assert agent.stop() == 0
    assert control.stop() == 0
    check_consistency(cluster.metadata_path, cluster.store_url)
    assert orphan not in data_keys(cluster.store_path)


def test_a_clean_stop_under_load(cluster: Cluster) -> None:
    """Everything that was accepted is answered, and what was not accepted is not there."""
    up = cluster.up()
    topic = create_topic(up.address, 3)
    producer = SteadyProducer(
        up.address,
        topic,
        partition_count=3,
        per_s=3_000,
        padding=b"x" * 500,
        **{"enable.idempotence": False, "retries": 0},
    )
    wait_until(lambda: len(producer.acknowledged) > 500, what="the load")
    assert up.stop() == 0
    assert GIVEN_UP not in up.log_path.read_text()
    producer.stop(drop_unsent=True)
    assert len(producer.acknowledged) + len(producer.failed) == producer.sent_count
    up.start()
    found = read_all(up.address, topic, 3)
    check_acknowledged(producer, found)
    assert len(found) == len(producer.acknowledged), "records are there whose producer heard that they are not"
    assert up.stop() == 0
    assert not check_consistency(cluster.metadata_path, cluster.store_url).orphans


def test_idempotent_producers_do_not_notice_a_rolling_restart(cluster: Cluster) -> None:
    control = cluster.control()
    agents = [cluster.agent(f"agent-{number}", control=control) for number in range(2)]
    topic = create_topic(cluster.bootstrap(), 3)
    producer = SteadyProducer(cluster.bootstrap(), topic, partition_count=3, **{"enable.idempotence": True})
    wait_until(lambda: len(producer.acknowledged) > 100, what="the load")
    for process in (*agents, control):
        assert process.stop() == 0
        process.start()
    before = len(producer.acknowledged)
    wait_until(lambda: len(producer.acknowledged) > before + 100, what="the load after the restarts")
    producer.stop()
    assert not producer.failed
    found = read_all(cluster.bootstrap(), topic, 3)
    assert len(found) == producer.sent_count
    check_acknowledged(producer, found)


def test_a_waiting_consumer_does_not_hold_up_the_stop(cluster: Cluster) -> None:
    up = cluster.up()
    topic = create_topic(up.address)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": up.address,
            "group.id": "waiting",
            "fetch.wait.max.ms": 60_000,
            "socket.timeout.ms": 90_000,
        }
    )
    consumer.subscribe([topic])
    assert consumer.poll(1.5) is None  # until it waits
    assert up.stop() == 0
    assert GIVEN_UP not in up.log_path.read_text()
    consumer.close()


def test_requests_are_answered_in_time_while_the_control_plane_is_away(cluster: Cluster) -> None:
    """Each within its own time, however many stand in line; and all is well when it is back."""
    timeout_s = 3.0
    cluster.settings.update({"request_timeout_ms": int(timeout_s * 1000)})
    control = cluster.control()
    agent = cluster.agent(control=control)
    topic = create_topic(agent.address)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": agent.address, "enable.idempotence": False, "retries": 0, "linger.ms": 0}
    )
    waits_s: list[float] = []
    errors: list[confluent_kafka.KafkaError | None] = []

    def send(value: bytes) -> None:
        start_s = time.monotonic()

        def report(error: confluent_kafka.KafkaError | None, _message: confluent_kafka.Message) -> None:
            waits_s.append(time.monotonic() - start_s)
            errors.append(error)

        producer.produce(topic, value, partition=0, on_delivery=report)

    send(b"before")
    assert producer.flush(60) == 0
    assert errors[0] is None
    control.kill()
    for _ in range(40):
        send(b"during")
        producer.poll(0.05)  # one object for each
    assert producer.flush(60) == 0
    assert max(waits_s[1:]) < timeout_s + 60  # one behind the other, they would take two minutes
    assert all(error is not None for error in errors[1:])
    control.start()
    produce_once(agent.address, topic, b"after")
    found = [record.value for record in read_all(agent.address, topic, 1)]
    assert found == [b"before", b"after"]
