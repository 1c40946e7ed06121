"""Real workers, killed and paused past their lease in the middle of jobs: nothing is lost, and nothing is left over."""

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster import Cluster, Process, wait_until
from tests.kafka.clients import SteadyProducer

from braidlog.control.interface import RUNNING, WAITING, JobListing, ListJobs
from braidlog.control.remote import connect_control
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

PARTITIONS = 3
LEASE_S = 1.0
SETTINGS: dict[str, object] = {
    "upload_interval_ms": 5,
    "merge_age_s": 0,
    "merge_size_bytes": 65_536,
    "job_check_interval_s": 0.2,
    "job_lease_s": LEASE_S,
    "compaction_size_bytes": 0,
    "compaction_interval_s": 0,
    "write_epoch_interval_s": 1,
    "sweep_grace_s": 5,
    "sweep_interval_s": 0.5,
    "full_sweep_interval_s": 5,
    "retention_check_interval_s": 1,
}


class KeyedProducer:
    """Writes few keys over and over, deletes some, and knows what must be left of each in the end."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 2, "enable.idempotence": True}
        )
        self._topic = topic
        self._chance = random.Random(5)
        self._stopping = threading.Event()
        self.newest: dict[tuple[int, bytes], tuple[int | None, bytes | None]] = {}
        """Offset and value by partition and key. The offset is not always told."""
        self.failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.005):
            key = b"k%d" % self._chance.randrange(20)
            value = None if self._chance.random() < 0.1 else b"%d" % number
            self._producer.produce(self._topic, value, key=key, on_delivery=self._report)
            self._producer.poll(0)
            number += 1
        self._producer.flush(120)

    def _report(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        # An idempotent producer hears of a partition's records in the order in which it wrote them.
        self.newest[message.partition(), message.key()] = (message.offset(), message.value())

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


class Bench:
    """A cluster with a worker that is struck at will."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.control = cluster.control()
        self.agent = cluster.agent(control=self.control)
        self.worker = self._start_worker("worker")
        self._other: Process | None = None

    def _start_worker(self, name: str) -> Process:
        arguments = ["pipeline", "--control", self.control.address, "--store", self.cluster.store_url]
        arguments += ["--engine", "local"]
        worker = Process(name, arguments, 0, self.cluster.folder)
        self.cluster.processes[name] = worker
        return worker.start()

    def jobs(self) -> list[JobListing]:
        async def ask() -> list[JobListing]:
            plane = connect_control(self.control.address, clock=SystemClock(), entropy=SystemEntropy())
            try:
                return (await plane.list_jobs(ListJobs(), timeout_s=60.0)).jobs
            finally:
                await plane.close()

        return asyncio.run(ask())

    def uploads(self) -> int:
        return sum("/job-" in key for key in stored_keys(self.cluster))

    def wait_job_runs(self) -> None:
        wait_until(
            lambda: any(job.state == RUNNING for job in self.jobs()), timeout_s=60, what="a job", interval_s=0.002
        )

    def wait_upload(self) -> None:
        """The moment between a job's upload and its swap, or just behind it."""
        known = self.uploads()
        wait_until(lambda: self.uploads() > known, timeout_s=60, what="an upload", interval_s=0.001)

    # ── strikes ──

    def kill_worker(self) -> None:
        self.worker.restart()

    def pause_worker(self) -> None:
        """Past its lease, so that another worker takes its jobs over and finishes them first."""
        self.worker.pause()
        if self._other is None:
            self._other = self._start_worker("other")
        held = {job.job_id: job.attempts for job in self.jobs() if job.state == RUNNING}

        def is_taken_over() -> bool:
            return not any(
                job.state in (RUNNING, WAITING) and job.attempts == held.get(job.job_id) for job in self.jobs()
            )

        wait_until(is_taken_over, timeout_s=60, what="another worker's turn", interval_s=0.05)
        self.worker.resume()

    def kill_control(self) -> None:
        self.control.restart()


def stored_keys(cluster: Cluster) -> set[str]:
    """What lies in the store. Folders may vanish while they are looked through."""
    data = cluster.store_path / "data"
    return {
        str((Path(folder) / name).relative_to(cluster.store_path))
        for folder, _, names in os.walk(data)
        for name in names
    }


def stored_and_used(cluster: Cluster) -> tuple[set[str], set[str]]:
    stored = stored_keys(cluster)
    with sqlite3.connect(f"file:{cluster.metadata_path}?mode=ro", uri=True) as connection:
        used = {key for (key,) in connection.execute("SELECT object_key FROM objects WHERE live_count > 0")}
    return stored, used


def wait_tidy(cluster: Cluster) -> None:
    """Until the sweeper has left what is in use and nothing else."""

    def is_tidy() -> bool:
        stored, used = stored_and_used(cluster)
        return stored == used

    try:
        wait_until(is_tidy, timeout_s=120, what="a store without orphans", interval_s=0.5)
    except TimeoutError as error:
        stored, used = stored_and_used(cluster)
        with sqlite3.connect(f"file:{cluster.metadata_path}?mode=ro", uri=True) as connection:
            counters = dict(connection.execute("SELECT name, value FROM counters"))
            known = {
                row[0]: row for row in connection.execute("SELECT object_key, live_count, unreferenced_ms FROM objects")
            }
        left = [known.get(key, key) for key in sorted(stored - used)]
        raise AssertionError(f"left over: {left}, missing: {sorted(used - stored)}, {counters}") from error


def read_topic(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes | None, bytes | None]]]:
    """Everything, up to the end as it is now: (offset, key, value) by partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    places = [confluent_kafka.TopicPartition(topic, at, confluent_kafka.OFFSET_BEGINNING) for at in range(partitions)]
    # An agent may hear of the newest records a moment later: what it calls the end before that is none.
    ends = [consumer.get_watermark_offsets(place, timeout=60)[1] for place in places]
    consumer.assign(places)
    found: dict[int, list[tuple[int, bytes | None, bytes | None]]] = {at: [] for at in range(partitions)}
    ended: set[int] = set()
    deadline_s = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline_s, f"{topic} could not be read to its end"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            if message.offset() >= ends[message.partition()]:
                ended.add(message.partition())
        else:
            found[message.partition()].append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def run(folder: Path, strikes: int, seed: int) -> None:
    chance = random.Random(seed)
    with Cluster(folder, settings=SETTINGS) as cluster:
        bench = Bench(cluster)
        bootstrap = bench.agent.address
        admin = AdminClient({"bootstrap.servers": bootstrap})
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
        topics = [NewTopic("events", PARTITIONS), NewTopic("state", PARTITIONS, config=compacted)]
        for future in admin.create_topics(topics).values():
            future.result(60)
        exactly_once: dict[str, object] = {"enable.idempotence": True}
        events = SteadyProducer(bootstrap, "events", partition_count=PARTITIONS, per_s=150, **exactly_once)
        state = KeyedProducer(bootstrap, "state")
        moments: list[Callable[[], None]] = [bench.wait_job_runs, bench.wait_upload]
        blows: list[Callable[[], None]] = [bench.kill_worker, bench.pause_worker, bench.kill_worker, bench.kill_control]
        for number in range(strikes):
            moments[chance.randrange(2)]()
            blows[number % len(blows)]()
        events.stop()
        state.stop()
        assert not events.failed
        assert not state.failed
        wait_until(
            lambda: not any(job.state in (RUNNING, WAITING) for job in bench.jobs()), timeout_s=120, what="the last job"
        )
        check_events(read_topic(bootstrap, "events", PARTITIONS), events)
        check_state(read_topic(bootstrap, "state", PARTITIONS), state)

        wait_tidy(cluster)
        # And after all that was swept, everything is still there.
        check_events(read_topic(bootstrap, "events", PARTITIONS), events)
        check_state(read_topic(bootstrap, "state", PARTITIONS), state)
        assert {job.kind for job in bench.jobs() if job.state == "done"} >= {"merge", "compact", "expire"}


def check_events(found: dict[int, list[tuple[int, bytes | None, bytes | None]]], events: SteadyProducer) -> None:
    seen: dict[int, tuple[int, int]] = {}
    for partition, records in found.items():
        assert [offset for offset, _, _ in records] == list(range(len(records)))
        for offset, _, value in records:
            assert value is not None
            number = int(value.split()[0])
            assert number not in seen, f"{number} is there twice"
            seen[number] = (partition, offset)
    for number, (partition, offset) in events.acknowledged.items():
        assert seen[number][0] == partition
        assert offset is None or offset < 0 or seen[number][1] == offset


def check_state(found: dict[int, list[tuple[int, bytes | None, bytes | None]]], state: KeyedProducer) -> None:
    left: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    for partition, records in found.items():
        offsets = [offset for offset, _, _ in records]
        assert offsets == sorted(set(offsets))
        for offset, key, value in records:
            assert key is not None
            left[partition, key] = (offset, value)
    assert {place: value for place, (_, value) in left.items()} == {
        place: value for place, (_, value) in state.newest.items()
    }
    for place, (told, _) in state.newest.items():
        assert told is None or told < 0 or left[place][0] == told


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_many_strikes(tmp_path: Path, seed: int) -> None:
    run(tmp_path, strikes=24, seed=seed)
