"""A consumer group whose partitions the coordinator assigns.

It has members, epochs, the assignment, and current owners.

Three numbers only ever grow. The *group epoch* grows when members or topics change. The *assignment epoch* follows it
when the assignor has run. Each *member epoch* follows that when the member has given up what it no longer owns.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from braidlog.control.groups.consumer.assignors import ASSIGNORS, Partition, Subscriber
from braidlog.control.groups.consumer.member import (
    ConsumerMember,
    MemberState,
    Partitions,
    SavedConsumerGroup,
    SavedConsumerMember,
    member_from_saved,
)
from braidlog.control.groups.consumer.reconciliation import next_step
from braidlog.control.groups.state import GroupState
from braidlog.control.groups.topic_pattern import TopicPattern


class TopicLookup(Protocol):
    """The topics that exist now."""

    @property
    def revision(self) -> int:
        """Changes whenever a topic comes, goes or grows."""
        ...

    def find(self, name: str) -> tuple[bytes, int] | None:
        """Return the topic's id and partition count."""
        ...

    def names(self) -> Iterable[str]: ...

    def name_of(self, topic_id: bytes) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ConsumerChanges:
    """The rows of a group to write, and the ids of removed members.

    The rows are the group's own and those of changed members.
    """

    group: SavedConsumerGroup
    members: list[SavedConsumerMember]
    removed: list[str]
    is_empty: bool


class ConsumerGroup:
    def __init__(self, topics: TopicLookup, default_assignor: str) -> None:
        self.group_epoch = 0
        self.assignment_epoch = 0
        self._topics = topics
        self._default_assignor = default_assignor
        self._members: dict[str, ConsumerMember] = {}
        self._static_ids: dict[str, str] = {}
        self._owners: dict[Partition, str] = {}
        """The members that may be reading each partition: it was assigned to them and not given back yet."""
        self._joined_count = 0
        self._topics_digest = b""
        self._looked_revision: int | None = None
        """The revision of the topics at the last check."""
        self._matches: dict[str, frozenset[str]] = {}
        """The topic names that match each pattern, as of that revision."""
        self._put_off: set[str] = set()
        """Patterns that are not matched before the next heartbeat."""
        self._dirty: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._group_dirty = False

    @classmethod
    def restore(
        cls,
        topics: TopicLookup,
        default_assignor: str,
        saved: SavedConsumerGroup,
        members: Iterable[SavedConsumerMember],
    ) -> "ConsumerGroup":
        group = cls(topics, default_assignor)
        group.group_epoch = saved.group_epoch
        group.assignment_epoch = saved.assignment_epoch
        group._joined_count = saved.joined_count
        group._topics_digest = saved.topics_digest
        for member in sorted((member_from_saved(each) for each in members), key=lambda each: each.joined_number):
            group._put(member)
            group._own(member)
        return group

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def get(self, member_id: str) -> ConsumerMember | None:
        return self._members.get(member_id)

    def get_static(self, instance_id: str | None) -> ConsumerMember | None:
        member_id = None if instance_id is None else self._static_ids.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def add(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Add a member without a subscription. Once it has one, call `look_at_topics`."""
        self._joined_count += 1
        member = ConsumerMember(member_id, self._joined_count, instance_id)
        self._put(member)
        self.touch(member)
        return member

    def adopt(self, member: ConsumerMember) -> None:
        """Take over a member of a classic group, with its partitions."""
        self._joined_count += 1
        member.joined_number = self._joined_count
        self._put(member)
        self._own(member)
        self.touch(member)

    def remove(self, member: ConsumerMember) -> None:
        self._drop(member)
        self.raise_epoch()

    def replace_static(self, old: ConsumerMember, member_id: str) -> ConsumerMember:
        """Replace a static member that came back under a new id.

        It continues where the old one was.
        """
        member = replace(
            old,
            member_id=member_id,
            member_epoch=0,
            previous_epoch=0,
            state=MemberState.STABLE,
            revoking=frozenset(),
            progress_deadline_s=None,
        )
        self._drop(old)
        self._put(member)
        self._own(member)
        self.touch(member)
        return member

    def touch(self, member: ConsumerMember) -> None:
        """Mark a member as changed, so that it is written."""
        self._dirty[member.member_id] = None
        self._removed.pop(member.member_id, None)

    def raise_epoch(self) -> None:
        self.group_epoch += 1
        self._group_dirty = True

    def _put(self, member: ConsumerMember) -> None:
        self._members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id

    def _drop(self, member: ConsumerMember) -> None:
        self._release(member)
        del self._members[member.member_id]
        if member.instance_id is not None:
            self._static_ids.pop(member.instance_id, None)
        self._dirty.pop(member.member_id, None)
        self._removed[member.member_id] = None

    def _own(self, member: ConsumerMember) -> None:
        for partition in member.assigned | member.revoking:
            self._owners[partition] = member.member_id

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.assigned | member.revoking:
            if self._owners.get(partition) == member.member_id:
                del self._owners[partition]

    # ── subscriptions ─────────────────────────────────────────────────────────────────────────────────────────────

    def put_off_pattern(self, member: ConsumerMember) -> None:
        """Match a new pattern at any member's next heartbeat, if it also named topics.

        Kafka matches patterns apart from heartbeats, and clients rely on being assigned the named topics first. A
        member with only a pattern does not wait.
        """
        is_shared = any(other.topic_regex == member.topic_regex for other in self if other is not member)
        if member.topic_names and member.topic_regex and not is_shared:
            self._put_off.add(member.topic_regex)

    def take_up_patterns(self) -> bool:
        """Match the patterns that were put off from now on.

        Returns whether there were any.
        """
        had_some = bool(self._put_off)
        self._put_off.clear()
        return had_some

    def topic_names(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name and by pattern."""
        if not member.topic_regex or member.topic_regex in self._put_off:
            return member.topic_names
        if member.topic_regex not in self._matches:
            pattern = TopicPattern(member.topic_regex)
            self._matches[member.topic_regex] = frozenset(
                name for name in self._topics.names() if pattern.matches(name)
            )
        return member.topic_names | self._matches[member.topic_regex]

    def look_at_topics(self, *, subscriptions_changed: bool) -> None:
        """Raise the group epoch if subscriptions changed, or the topics that they match."""
        revision = self._topics.revision
        if revision == self._looked_revision and not subscriptions_changed:
            return
        if revision != self._looked_revision:
            self._matches.clear()
            self._looked_revision = revision
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(set().union(*(self.topic_names(member) for member in self))):
            found = self._topics.find(name)
            if found is not None:
                topic_id, count = found
                digest.update(topic_id + count.to_bytes(4, "big"))
        if subscriptions_changed or digest.digest() != self._topics_digest:
            self._topics_digest = digest.digest()
            self.raise_epoch()
        # Forget patterns that nobody uses any more.
        used = {member.topic_regex for member in self}
        self._matches = {regex: names for regex, names in self._matches.items() if regex in used}

    def is_subscribed(self, topic_name: str) -> bool:
        return any(topic_name in self.topic_names(member) for member in self)

    # ── assigning ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer; the first to reach it on a tie."""
        votes = Counter(member.server_assignor for member in self if member.server_assignor is not None)
        return max(votes, key=lambda name: votes[name], default=self._default_assignor)

    def assign_if_needed(self) -> None:
        if self.assignment_epoch == self.group_epoch:
            return
        found: dict[str, tuple[bytes, int]] = {}
        for name in sorted(set().union(*(self.topic_names(member) for member in self))):
            topic = self._topics.find(name)
            if topic is not None:
                found[name] = topic
        subscribers = [
            Subscriber(
                member.member_id,
                frozenset(found[name][0] for name in self.topic_names(member) if name in found),
                member.target,
            )
            for member in sorted(self, key=lambda each: each.joined_number)
        ]
        assignment = ASSIGNORS[self.assignor](subscribers, dict(found.values()))
        for member in self:
            target = assignment[member.member_id]
            if target != member.target:
                member.target = target
                self.touch(member)
        self.assignment_epoch = self.group_epoch
        self._group_dirty = True

    def reconcile(self, member: ConsumerMember, owned: Partitions | None, *, is_joining: bool) -> bool:
        """Move the member one step towards its target.

        Returns whether its assigned partitions have changed.
        """
        if member.is_away:
            return False
        step = next_step(
            member,
            self.assignment_epoch,
            owned,
            lambda partition: self.is_free(partition, member),
            is_joining=is_joining,
        )
        before = member.assigned
        if (member.member_epoch, member.state, member.assigned, member.revoking) == (
            step.member_epoch,
            step.state,
            step.assigned,
            step.revoking,
        ):
            return False
        self._release(member)
        if step.member_epoch != member.member_epoch:
            member.previous_epoch = member.member_epoch
        member.member_epoch, member.state = step.member_epoch, step.state
        member.assigned, member.revoking = step.assigned, step.revoking
        self._own(member)
        self.touch(member)
        return step.assigned != before

    def leave_for_a_moment(self, member: ConsumerMember) -> None:
        """Note that a static member will be back.

        Its partitions wait for it, except those that it was giving up.
        """
        self._release(member)
        member.member_epoch, member.state, member.revoking = -2, MemberState.STABLE, frozenset()
        member.progress_deadline_s = None
        self._own(member)
        self.touch(member)

    def is_free(self, partition: Partition, member: ConsumerMember) -> bool:
        return self._owners.get(partition, member.member_id) == member.member_id

    def is_unowned(self, partition: Partition) -> bool:
        return partition not in self._owners

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Whether all partitions that the member still lacks are with others."""
        return not any(self.is_free(partition, member) for partition in member.target - member.assigned)

    # ── what others ask ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> GroupState:
        if not self._members:
            return GroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if any(
            member.state is not MemberState.STABLE or member.member_epoch != self.assignment_epoch
            for member in self
            if not member.is_away
        ):
            return GroupState.RECONCILING
        return GroupState.STABLE

    def name_of(self, topic_id: bytes) -> str | None:
        return self._topics.name_of(topic_id)

    def id_of(self, topic_name: str) -> bytes | None:
        found = self._topics.find(topic_name)
        return None if found is None else found[0]

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def take_changes(self) -> ConsumerChanges | None:
        """Return the changes since the last call; None: there are none."""
        if not (self._group_dirty or self._dirty or self._removed):
            return None
        changes = ConsumerChanges(
            SavedConsumerGroup(self.group_epoch, self.assignment_epoch, self._joined_count, self._topics_digest),
            [self._members[member_id].saved() for member_id in self._dirty],
            list(self._removed),
            not self._members,
        )
        self._dirty, self._removed, self._group_dirty = {}, {}, False
        return changes

    def give_back(self, changes: ConsumerChanges) -> None:
        """Take back changes that could not be written.

        The next write has these rows again, in their state at that time.
        """
        self._group_dirty = True
        for saved in changes.members:
            if saved.member_id in self._members:
                self._dirty[saved.member_id] = None
            else:
                self._removed[saved.member_id] = None
        for member_id in changes.removed:
            if member_id not in self._members:
                self._removed[member_id] = None
