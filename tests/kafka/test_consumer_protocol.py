"""Groups whose partitions the coordinator assigns, with real clients, alone and beside members of the classic protocol.

Ownership is watched from outside: every assignment and revocation that a member's own callbacks report goes into one
record, and at no moment do two members have a partition.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from tests.cluster import Cluster, wait_until
from tests.kafka.clients import CLIENTS, Record
from tests.kafka.topics import admin_client, create_topic, unique_name

QUICK_GROUPS = {
    "group_consumer_heartbeat_interval_ms": 200,
    "group_consumer_session_timeout_ms": 30_000,
}
"""Sessions so long that none of the members is taken for dead where the machine is busy: its partitions would be given
to another one, rightly, before it hears of that."""


@pytest.fixture(scope="module")
def protocol_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.kafka.conftest import QUICK_SETTINGS

    settings = {**QUICK_SETTINGS, **QUICK_GROUPS}
    with Cluster(tmp_path_factory.mktemp("protocols"), settings=settings) as cluster:
        cluster.up()
        yield cluster


@pytest.fixture
def address(protocol_cluster: Cluster) -> str:
    return protocol_cluster.processes["up"].address


@dataclass
class Ownership:
    """Who has which partition, as told by the members' own callbacks."""

    owners: dict[int, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, name: str, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for partition in (each.partition for each in partitions):
                owner = self.owners.get(partition, name)
                if owner != name:
                    self.conflicts.append(f"{name} got {partition}, which {owner} has")
                self.owners[partition] = name

    def give_up(self, name: str, partitions: list[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                if self.owners.get(partition.partition) == name:
                    del self.owners[partition.partition]

    def forget(self, name: str) -> None:
        with self._lock:
            self.owners = {partition: owner for partition, owner in self.owners.items() if owner != name}

    def shares(self) -> dict[str, int]:
        with self._lock:
            found: dict[str, int] = {}
            for owner in self.owners.values():
                found[owner] = found.get(owner, 0) + 1
            return found


class Member:
    """A consumer in a thread of its own."""

    def __init__(
        self, address: str, group: str, topic: str, name: str, ownership: Ownership, **settings: object
    ) -> None:
        self.name = name
        self.values: list[bytes] = []
        self.errors: list[str] = []
        self._ownership = ownership
        self._stop = threading.Event()
        self._abandoned = False
        common: dict[str, object] = {
            "bootstrap.servers": address,
            "group.id": group,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
        classic: dict[str, object] = {
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            "partition.assignment.strategy": "cooperative-sticky",
        }
        is_consumer = settings.get("group.protocol") == "consumer"
        self._consumer = confluent_kafka.Consumer({**common, **({} if is_consumer else classic), **settings})
        self._consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: ownership.take(name, partitions),
            on_revoke=lambda _, partitions: ownership.give_up(name, partitions),
            on_lost=lambda _, partitions: ownership.give_up(name, partitions),
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

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
        """A static member that closes comes back; others say goodbye."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join(60)
            self._consumer.close()
            self._ownership.forget(self.name)


@contextmanager
def leaving(everyone: list[Member]) -> Iterator[None]:
    try:
        yield
    finally:
        for member in everyone:
            member.leave()


def write(address: str, topic: str, numbers: range, partitions: int) -> None:
    records = [Record(b"%d" % i, partition=i % partitions) for i in numbers]
    CLIENTS["confluent"].produce(address, topic, records, codec="none")


def read_by(everyone: list[Member]) -> set[bytes]:
    return {value for member in everyone for value in member.values}


def expect_read(everyone: list[Member], numbers: range, timeout_s: float = 60) -> None:
    wanted = {b"%d" % i for i in numbers}
    wait_until(lambda: read_by(everyone) >= wanted, what=f"records {numbers}", timeout_s=timeout_s)


def expect_balance(ownership: Ownership, members: int, partitions: int, timeout_s: float = 60) -> None:
    def balanced() -> bool:
        shares = ownership.shares().values()
        return sum(shares) == partitions and len(shares) == members and max(shares) - min(shares) <= 1

    try:
        wait_until(balanced, what="an even spread over all members", timeout_s=timeout_s)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {ownership.shares()}") from None


PROTOCOLS: dict[str, dict[str, object]] = {
    "consumer": {"group.protocol": "consumer"},
    "consumer-range": {"group.protocol": "consumer", "group.remote.assignor": "range"},
    "classic": {},
}


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS))
def test_members_join_leave_and_die(address: str, protocol: str) -> None:
    topic, group = create_topic(address, 6), unique_name("group")
    ownership = Ownership()
    everyone: list[Member] = []

    def join(name: str, **settings: object) -> Member:
        member = Member(address, group, topic, name, ownership, **PROTOCOLS[protocol], **settings)
        everyone.append(member)
        return member

    with leaving(everyone):
        join("a")
        write(address, topic, range(30), 6)
        expect_read(everyone, range(30))
        second = join("b")
        join("c")
        expect_balance(ownership, 3, 6)
        write(address, topic, range(30, 60), 6)
        expect_read(everyone, range(60))
        second.leave()
        expect_balance(ownership, 2, 6)
        write(address, topic, range(60, 90), 6)
        expect_read(everyone, range(90))
    assert ownership.conflicts == []
    # What was committed is known to whoever comes next.
    late = Member(address, group, topic, "late", ownership, **PROTOCOLS[protocol])
    everyone.append(late)
    with leaving(everyone):
        write(address, topic, range(90, 96), 6)
        expect_read([late], range(90, 96))
        assert len(late.values) < 90


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_that_restarts_gets_its_partitions_back(address: str, protocol: str) -> None:
    topic, group = create_topic(address, 6), unique_name("group")
    ownership = Ownership()
    everyone: list[Member] = []

    def join(name: str, instance: str) -> Member:
        settings = {**PROTOCOLS[protocol], "group.instance.id": instance}
        everyone.append(Member(address, group, topic, name, ownership, **settings))
        return everyone[-1]

    def partitions_of(name: str) -> set[int]:
        return {partition for partition, owner in ownership.owners.items() if owner == name}

    with leaving(everyone):
        first = join("a", "one")
        join("b", "two")
        expect_balance(ownership, 2, 6)
        had, others = partitions_of("a"), partitions_of("b")
        first.leave()
        join("a-again", "one")
        wait_until(lambda: partitions_of("a-again") == had, what="its partitions")
        assert partitions_of("b") == others
    assert ownership.conflicts == []


def group_types(address: str) -> dict[str, str]:
    admin = admin_client(address)
    listed = admin.list_consumer_groups(request_timeout=60).result()
    return {group.group_id: group.type.name for group in listed.valid}


def test_a_group_goes_over_to_the_newer_protocol_and_back(address: str) -> None:
    topic, group = create_topic(address, 6), unique_name("group")
    ownership = Ownership()
    everyone: list[Member] = []

    def join(name: str, protocol: str) -> Member:
        everyone.append(Member(address, group, topic, name, ownership, **PROTOCOLS[protocol]))
        return everyone[-1]

    numbers = iter(range(0, 10_000, 30))

    def still_reads_everything() -> None:
        start = next(numbers)
        write(address, topic, range(start, start + 30), 6)
        expect_read(everyone, range(start, start + 30))

    with leaving(everyone):
        old = [join("old-1", "classic"), join("old-2", "classic")]
        expect_balance(ownership, 2, 6)
        still_reads_everything()
        new = [join("new-1", "consumer")]
        expect_balance(ownership, 3, 6)
        assert group_types(address)[group] == "CONSUMER"
        still_reads_everything()
        old[0].leave()
        new.append(join("new-2", "consumer"))
        expect_balance(ownership, 3, 6)
        old[1].leave()
        expect_balance(ownership, 2, 6)
        still_reads_everything()
        # And back.
        older = [join("older-1", "classic"), join("older-2", "classic")]
        expect_balance(ownership, 4, 6)
        for member in new:
            member.leave()
        expect_balance(ownership, 2, 6)
        assert group_types(address)[group] == "CLASSIC"
        still_reads_everything()
        assert [member.errors for member in older] == [[], []]
    assert ownership.conflicts == []


def test_a_control_plane_that_comes_back_goes_on_with_the_same_epochs(cluster: Cluster) -> None:
    cluster.settings.update(QUICK_GROUPS)
    control = cluster.control()
    agent = cluster.agent(control=control)
    topic, group = create_topic(agent.address, 6), unique_name("group")
    ownership = Ownership()
    everyone = [Member(agent.address, group, topic, name, ownership, **PROTOCOLS["consumer"]) for name in "abc"]
    with leaving(everyone):
        expect_balance(ownership, 3, 6)
        before = dict(ownership.owners)
        control.restart()
        write(agent.address, topic, range(60), 6)
        expect_read(everyone, range(60))
        assert ownership.owners == before
    assert ownership.conflicts == []
