"""Drives one group of the consumer protocol by hand, and members of it that behave as real clients do."""

from dataclasses import dataclass, field
from itertools import count

from kio.schema.errors import ErrorCode

from braidlog.control.groups.consumer.member import SavedConsumerGroup, SavedConsumerMember, flat
from braidlog.control.groups.consumer.membership import ConsumerMembership
from braidlog.control.groups.effects import Effect, HeartbeatAnswered, JoinAnswered, SaveConsumerGroup, SyncAnswered
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import ConsumerHeartbeat, ConsumerHeartbeatAnswer, JoinAnswer, SyncAnswer

SETTINGS = GroupSettings(consumer_session_timeout_ms=10_000, consumer_heartbeat_interval_ms=1_000)
SESSION_S = 10.0

Partition = tuple[bytes, int]


class Topics:
    """Topics that a test adds, grows and removes."""

    def __init__(self, **counts: int) -> None:
        self.revision = 0
        self._topics: dict[str, tuple[bytes, int]] = {}
        for name, partition_count in counts.items():
            self.put(name, partition_count)

    def put(self, name: str, partition_count: int) -> None:
        self.revision += 1
        self._topics[name] = (self.id_of(name), partition_count)

    def remove(self, name: str) -> None:
        self.revision += 1
        del self._topics[name]

    @staticmethod
    def id_of(name: str) -> bytes:
        return name.encode().ljust(16, b".")

    def find(self, name: str) -> tuple[bytes, int] | None:
        return self._topics.get(name)

    def names(self) -> list[str]:
        return list(self._topics)

    def has_partition(self, topic_id: bytes, index: int) -> bool:
        return any(each == topic_id and 0 <= index < count for each, count in self._topics.values())

    def name_of(self, topic_id: bytes) -> str | None:
        return next((name for name, (each, _) in self._topics.items() if each == topic_id), None)

    def all_partitions(self, *names: str) -> set[Partition]:
        return {
            (topic_id, index)
            for name, (topic_id, partition_count) in self._topics.items()
            if name in names
            for index in range(partition_count)
        }


def heartbeat(
    member_id: str,
    epoch: int = 0,
    *,
    topics: list[str] | None = None,
    regex: str | None = None,
    owned: list[Partition] | None = None,
    instance: str | None = None,
    assignor: str | None = None,
    rebalance_ms: int = -1,
) -> ConsumerHeartbeat:
    """With epoch 0 a whole request, with topic `t` unless another is named."""
    if epoch == 0:
        topics = ["t"] if topics is None and regex is None else topics
        owned = [] if owned is None else owned
        rebalance_ms = 30_000 if rebalance_ms == -1 else rebalance_ms
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in owned or []:
        by_topic.setdefault(topic_id, []).append(index)
    return ConsumerHeartbeat(
        "g",
        member_id,
        epoch,
        instance,
        None,
        rebalance_ms,
        topics,
        regex,
        assignor,
        None if owned is None else list(by_topic.items()),
        "client",
        "/127.0.0.1",
    )


class ConsumerDriver:
    def __init__(self, topics: Topics, settings: GroupSettings = SETTINGS) -> None:
        self.topics = topics
        self.settings = settings
        self.now_s = 1000.0
        self.group = ConsumerMembership("g", settings, topics)
        self.heartbeats: dict[int, ConsumerHeartbeatAnswer] = {}
        self.joins: dict[int, JoinAnswer] = {}
        self.syncs: dict[int, SyncAnswer] = {}
        self.saves: list[SaveConsumerGroup] = []
        self.hold_saves = False
        self._durable: tuple[SavedConsumerGroup, dict[str, SavedConsumerMember]] | None = None
        self._tickets = count(1)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case HeartbeatAnswered(ticket, answer):
                    assert ticket not in self.heartbeats
                    self.heartbeats[ticket] = answer
                case JoinAnswered(ticket, joined):
                    self.joins[ticket] = joined
                case SyncAnswered(ticket, synced):
                    self.syncs[ticket] = synced
                case SaveConsumerGroup():
                    self.saves.append(effect)
        while self.saves and not self.hold_saves:
            self.finish_save()

    def finish_save(self, error: ErrorCode = ErrorCode.none) -> None:
        save = self.saves.pop(0)
        if error is ErrorCode.none:
            members = dict(self._durable[1]) if self._durable is not None else {}
            for member_id in save.changes.removed:
                members.pop(member_id, None)
            members.update({member.member_id: member for member in save.changes.members})
            self._durable = (save.changes.group, members)
        self.take(self.group.saved(save.number, error, self.now_s))

    def send(self, request: ConsumerHeartbeat) -> int:
        ticket = next(self._tickets)
        self.take(self.group.heartbeat_consumer(ticket, request, f"fresh-{ticket}", self.now_s))
        return ticket

    def beat(self, *arguments: object, **options: object) -> ConsumerHeartbeatAnswer:
        return self.heartbeats[self.send(heartbeat(*arguments, **options))]  # type: ignore[arg-type]

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        deadline_s = self.group.next_deadline_s()
        if deadline_s is not None and deadline_s <= self.now_s:
            self.take(self.group.advance(self.now_s))

    def crash(self) -> None:
        """Go on with what is durable. Whoever waits will never be answered."""
        self.saves.clear()
        self.group = ConsumerMembership("g", self.settings, self.topics)
        if self._durable is not None:
            group, members = self._durable
            self.group = ConsumerMembership.restore(
                "g", self.settings, self.topics, group, list(members.values()), self.now_s
            )


@dataclass
class Client:
    """A consumer as a well-behaved client is one: revokes before it says so, and reads only what it was told to."""

    driver: ConsumerDriver
    member_id: str
    topics: list[str]
    instance: str | None = None
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    """What it may be reading now."""
    wanted: set[Partition] | None = None
    """What it was told to read, until it does."""
    is_running: bool = True
    _in_doubt: bool = False
    """The last answer was lost: everything is told again."""

    def beat(self, *, lose_answer: bool = False) -> None:
        if not self.is_running:
            return
        is_full = self.epoch == 0 or self._in_doubt
        ticket = self.driver.send(
            heartbeat(
                self.member_id,
                self.epoch,
                topics=self.topics if is_full else None,
                rebalance_ms=30_000 if is_full else -1,
                owned=sorted(self.owned),
                instance=self.instance,
            )
        )
        answer = self.driver.heartbeats.get(ticket)
        if answer is None or lose_answer or answer.error_code == ErrorCode.coordinator_not_available:
            self._in_doubt = True
            return
        self._in_doubt = False
        if answer.error_code in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.epoch, self.owned, self.wanted = 0, set(), None
            return
        if answer.error_code == ErrorCode.unreleased_instance_id:
            return
        assert answer.error_code == ErrorCode.none, answer
        self.epoch = answer.member_epoch
        if answer.assigned is not None:
            self.wanted = set(flat(answer.assigned))

    def reconcile(self) -> None:
        """Let go of what is no longer wanted, and begin to read what is."""
        if self.wanted is not None and self.is_running:
            self.owned = set(self.wanted)
            self.wanted = None

    def leave(self, epoch: int = -1) -> None:
        self.driver.send(heartbeat(self.member_id, epoch, instance=self.instance))
        self.kill()

    def kill(self) -> None:
        self.is_running = False
        self.owned, self.wanted = set(), None
