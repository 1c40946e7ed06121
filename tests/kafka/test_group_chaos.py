"""Ten members over sixty partitions, both protocols, while members join, leave, are killed and restart."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from tests.cluster import Cluster, wait_until
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.conftest import QUICK_SETTINGS
from tests.kafka.topics import admin_client, create_topic, unique_name

PARTITIONS = 60
MEMBERS = 10
ROUNDS = 12
SESSION_MS = 10_000
"""Who does not run for so long loses its partitions before it can hear of it, and that would look like two owners."""
BALANCE_S_MAX = 120.0

SCRIPT = Path(__file__).parent / "member_process.py"


class Watch:
    """Who has which partition, and what was read, by all members."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        """As far as was heard."""
        self.read: set[int] = set()
        self._events: list[tuple[float, str, str, list[int]]] = []
        self._lock = threading.Lock()

    def event(self, at_s: float, name: str, what: str, values: list[int]) -> None:
        with self._lock:
            if what == "read":
                self.read.update(values)
            else:
                self._events.append((at_s, name, what, values))
                self._apply(self.owners, name, what, values)

    @staticmethod
    def _apply(owners: dict[int, str], name: str, what: str, values: list[int]) -> list[str]:
        conflicts = []
        if what == "take":
            for partition in values:
                owner = owners.get(partition, name)
                if owner != name:
                    conflicts.append(f"{name} got {partition}, which {owner} has")
                owners[partition] = name
        elif what == "give":
            for partition in values:
                if owners.get(partition) == name:
                    del owners[partition]
        elif what == "gone":
            for partition in [partition for partition, owner in owners.items() if owner == name]:
                del owners[partition]
        return conflicts

    def conflicts(self) -> list[str]:
        """Find the conflicts in everything that happened, in the order of time.

        Each comes with what its members were told before.
        """
        owners: dict[int, str] = {}
        found: list[str] = []
        events = sorted(self._events)
        for place, (at_s, name, what, values) in enumerate(events):
            for conflict in self._apply(owners, name, what, values):
                involved = conflict.split()[0], conflict.split()[-2]
                before = [event for event in events[: place + 1] if event[1] in involved][-8:]
                found.append(f"{at_s:.3f} {conflict}, after {before}")
        return found

    def is_balanced(self, names: set[str]) -> bool:
        with self._lock:
            shares = dict.fromkeys(names, 0)
            for owner in self.owners.values():
                if owner not in shares:
                    return False
                shares[owner] += 1
            return len(self.owners) == PARTITIONS and max(shares.values()) - min(shares.values()) <= 1


class ProcessMember:
    def __init__(self, name: str, settings: dict[str, object], topic: str, watch: Watch) -> None:
        self.name = name
        self._watch = watch
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(settings), topic], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                at_s, what, values = json.loads(line)
            except ValueError:
                continue  # cut off in the middle by a kill
            self._watch.event(at_s, self.name, what, values)

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def leave(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._end()

    def _end(self) -> None:
        self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._watch.event(time.monotonic(), self.name, "gone", [])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        **QUICK_SETTINGS,
        "group_consumer_heartbeat_interval_ms": 200,
        "group_consumer_session_timeout_ms": SESSION_MS,
    }
    with Cluster(tmp_path_factory.mktemp("chaos"), settings=settings) as cluster:
        yield cluster.up().address


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_no_partition_is_owned_twice_and_none_is_orphaned(address: str, protocol: str) -> None:
    random_source = random.Random(protocol)
    topic, group = create_topic(address, PARTITIONS), unique_name("chaos")
    admin = admin_client(address)
    watch = Watch()
    everyone: dict[str, ProcessMember] = {}
    started = 0

    def start(instance: str | None = None) -> None:
        nonlocal started
        started += 1
        name = f"m{started}"
        settings: dict[str, object] = {
            "bootstrap.servers": address,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
        if protocol == "consumer":
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        if instance is not None:
            settings["group.instance.id"] = instance
        everyone[instance or name] = ProcessMember(name, settings, topic, watch)

    def names() -> set[str]:
        return {member.name for member in everyone.values()}

    written = 0

    def write_some() -> None:
        nonlocal written
        records = [Record(b"%d" % number, partition=number % PARTITIONS) for number in range(written, written + 600)]
        CLIENTS["confluent"].produce(address, topic, records, codec="none")
        written += 600

    def committed() -> int:
        wanted = confluent_kafka.ConsumerGroupTopicPartitions(group)
        answer = admin.list_consumer_group_offsets([wanted])[group].result(60)
        return sum(max(each.offset, 0) for each in answer.topic_partitions)

    try:
        for place in range(MEMBERS):
            start(f"static-{place}" if place < 4 else None)
        wait_until(lambda: watch.is_balanced(names()), what="the first balance", timeout_s=BALANCE_S_MAX)
        for _ in range(ROUNDS):
            action = random_source.choice(["join", "leave", "kill", "static restart", "static kill"])
            statics = sorted(key for key in everyone if key.startswith("static"))
            others = sorted(key for key in everyone if not key.startswith("static"))
            if action == "join" or not others:
                start()
            elif action == "leave":
                everyone.pop(random_source.choice(others)).leave()
            elif action == "kill":
                everyone.pop(random_source.choice(others)).kill()
            elif action == "static restart":  # within its session: its partitions wait for it
                instance = random_source.choice(statics)
                everyone[instance].leave()
                start(instance)
            else:  # beyond its session: they go to others, and some come back
                instance = random_source.choice(statics)
                everyone.pop(instance).kill()
                write_some()
                wait_until(lambda: watch.is_balanced(names()), what="a balance without it", timeout_s=BALANCE_S_MAX)
                start(instance)
            write_some()
            wait_until(lambda: watch.is_balanced(names()), what=f"a balance after {action}", timeout_s=BALANCE_S_MAX)
        wait_until(lambda: watch.read >= set(range(written)), what="every record")
        # Read is not committed yet, and may have to be read again by whoever has the partition now.
        wait_until(lambda: committed() == written, what="all commits", interval_s=0.2)
        assert watch.conflicts() == []
        # Commits survived: a new group of one with the same name reads nothing again.
        for member in everyone.values():
            member.leave()
        everyone.clear()
        watch.read.clear()
        start()
        wait_until(lambda: watch.is_balanced(names()), what="the last balance", timeout_s=BALANCE_S_MAX)
        write_some()
        wait_until(lambda: watch.read >= set(range(written - 600, written)), what="the last records")
        assert min(watch.read) >= written - 600
    finally:
        for member in everyone.values():
            member.kill()
