"""A storm of classic producers that try again and again while the control plane is away, and a Lightning producer.

All processes and clients are real.
"""

import os
import signal
import time
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from _cluster import Process

PARTITIONS = 16
ANSWER_S_MAX = 60.0
AWAY_S_MAX = 60.0
STORM_S = 3.0
"""How long the storm blows before anything is measured."""


@dataclass(frozen=True, slots=True)
class Storm:
    records: int
    """How many records the Lightning producer writes, one after the other, without and with the storm."""
    producers: int = 12


def measure(plan: Storm) -> tuple[list[float], list[float], float, float]:
    """Return the Lightning producer's latencies without and with the storm, and the refusals, and answers that wait."""
    with Process("control", store="file") as control, Process("agent", store="file", control=control) as agent:
        bootstrap = agent.endpoints["kafka"]
        _create_topics(bootstrap)
        lightning = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        _write(lightning, 20)
        os.kill(control.pid, signal.SIGKILL)
        classic = [_retrying(bootstrap) for _ in range(plan.producers)]
        _wait_away(agent, classic[0])
        for producer in classic:
            producer.purge()
        calm_s = _write(lightning, plan.records)
        for number, producer in enumerate(classic):
            for record in range(500):
                producer.produce("classic", b"x" * 1000, partition=(number + record) % PARTITIONS)
        started_s = time.monotonic()
        while time.monotonic() < started_s + STORM_S:
            _write(lightning, 1)
        stormy_s = _write(lightning, plan.records)
        refused = agent.metric("braidlog_ripcord_refused_writes_total")
        throttled = agent.metric("braidlog_ripcord_throttled_answers_total")
        for producer in classic:
            producer.purge()
        return calm_s, stormy_s, refused, throttled


def _create_topics(bootstrap: str) -> None:
    topics = [NewTopic(kind, PARTITIONS, 1, config={"braidlog.topic.type": kind}) for kind in ("classic", "lightning")]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics(topics).values():
        created.result(ANSWER_S_MAX)


def _retrying(bootstrap: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "batch.num.messages": 1,
            "retry.backoff.ms": 1,
            "retry.backoff.max.ms": 1,
            "message.timeout.ms": 600_000,
        }
    )


def _wait_away(agent: Process, producer: Producer) -> None:
    """Write until the agent knows that the control plane is away, and refuses at once."""
    deadline_s = time.monotonic() + AWAY_S_MAX
    producer.produce("classic", b"x", partition=0)
    while not agent.metric("braidlog_ripcord_refused_writes_total"):
        if time.monotonic() > deadline_s:
            raise RuntimeError("the agent does not notice that the control plane is away")
        time.sleep(0.2)


def _write(producer: Producer, count: int) -> list[float]:
    """Write records one after the other, and return how long each took."""
    latencies_s = []
    for number in range(count):
        errors: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, _: Message, errors: list[KafkaError | None] = errors) -> None:
            errors.append(error)

        sent_s = time.perf_counter()
        producer.produce("lightning", b"x" * 100, partition=number % PARTITIONS, on_delivery=delivered)
        while not errors and time.perf_counter() < sent_s + ANSWER_S_MAX:
            producer.poll(0.1)
        if errors != [None]:
            raise RuntimeError(f"a Lightning write failed: {errors}")
        latencies_s.append(time.perf_counter() - sent_s)
    return latencies_s
