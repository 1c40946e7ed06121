"""The groups that a coordinator has: their state machines, timers, waiting requests, and writes.

Each group is a pure state machine; this gives it time, tickets for requests that wait, and a place to be saved.
A restarted coordinator goes on with the generation that was saved last: members notice nothing but a late heartbeat.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from braidlog.control.consumer_group import TopicLookup
from braidlog.control.consumer_member import SavedConsumerGroup
from braidlog.control.consumer_membership import ConsumerMembership
from braidlog.control.consumer_requests import Refused
from braidlog.control.group_effects import (
    Effect,
    HeartbeatAnswered,
    JoinAnswered,
    SaveConsumerGroup,
    SaveGroup,
    SyncAnswered,
)
from braidlog.control.group_errors import GroupError
from braidlog.control.group_membership import GroupMembership
from braidlog.control.group_offsets import GroupOffsets
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_store import GroupStore, GroupWrite
from braidlog.control.interface import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    JoinAnswer,
    SyncAnswer,
)
from braidlog.control.metadata import MetadataStore
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Fenced

MEMBER_NAME_CHARACTERS_MAX = 255
"""Of the client's own name in a member id: with the random part it must fit into a Kafka string."""

_Answer = TypeVar("_Answer", JoinAnswer, SyncAnswer, ConsumerHeartbeatAnswer)


class _NoTopics:
    """For a coordinator that is never asked to assign partitions itself."""

    revision = 0

    def find(self, name: str) -> tuple[bytes, int] | None:
        return None

    def names(self) -> list[str]:
        return []

    def name_of(self, topic_id: bytes) -> str | None:
        return None


@dataclass(slots=True, eq=False)
class GroupEntry:
    membership: GroupMembership | ConsumerMembership
    empty_since_ms: int | None = None
    timer: asyncio.TimerHandle | None = None
    unwritten_count: int = 0
    """Writes on their way. The group must not be tidied away under them."""

    @property
    def group_id(self) -> str:
        return self.membership.group_id


class GroupTable:
    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        entropy: Entropy,
        settings: GroupSettings,
        topic_exists: Callable[[bytes, int], bool],
        topic_name: Callable[[bytes], str | None] = lambda _topic_id: None,
        topics: TopicLookup | None = None,
    ) -> None:
        """`topic_exists` tells whether a partition exists now, `topic_name` what members call a topic that they read,
        and `topics` which there are to assign. Without names every topic counts as read by an active consumer group,
        so none of its offsets is deleted."""
        self._store = GroupStore(metadata, settings.unwritten_rows_max)
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._topic_exists = topic_exists
        self._topic_name = topic_name
        self._topics = topics or _NoTopics()
        self._groups: dict[str, GroupEntry] = {}
        self._offsets = GroupOffsets()
        self._tickets = count(1)
        self._joins: dict[int, asyncio.Future[JoinAnswer]] = {}
        self._syncs: dict[int, asyncio.Future[SyncAnswer]] = {}
        self._heartbeats: dict[int, asyncio.Future[ConsumerHeartbeatAnswer]] = {}
        self._status = GroupError.COORDINATOR_LOAD_IN_PROGRESS

    async def start(self) -> None:
        """Load what is durable. Until then requests are told to come again."""
        groups, offsets = await self._store.load()
        now_s = self._clock.monotonic_s()
        for loaded in groups:
            membership: GroupMembership | ConsumerMembership
            if isinstance(loaded.group, SavedConsumerGroup):
                membership = ConsumerMembership.restore(
                    loaded.group_id, self._settings, self._topics, loaded.group, loaded.members, now_s
                )
            else:
                membership = GroupMembership.restore(loaded.group_id, self._settings, loaded.group, now_s)
            self._groups[loaded.group_id] = GroupEntry(membership, loaded.empty_since_ms)
        self._offsets.load(offsets)
        for group_id in self._offsets.group_ids():
            self._ensure_group(group_id)
        self._status = GroupError.NONE
        for group in self._groups.values():
            self._arm(group)

    async def close(self) -> None:
        """Answer those who wait, and finish what is being written. The members stay: another coordinator has them."""
        self._status = GroupError.NOT_COORDINATOR
        for group in self._groups.values():
            self._settle(group, group.membership.shut_down(GroupError.NOT_COORDINATOR))
        self._groups.clear()
        await self._store.flush()

    # ── how requests run ──────────────────────────────────────────────────────────────────────────────────────────────

    def _check_group_id(self, group_id: str) -> GroupError:
        if self._status is not GroupError.NONE:
            return self._status
        return GroupError.INVALID_GROUP_ID if not group_id or "\0" in group_id else GroupError.NONE

    def _ensure_group(self, group_id: str) -> GroupEntry:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = GroupEntry(GroupMembership(group_id, self._settings))
        return group

    def _new_member_id(self, group: GroupEntry, name: str) -> str:
        while True:
            member_id = f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{self._entropy.uuid()}"
            # A seeded source starts over with the process, but the members that it named before may still be there.
            if not group.membership.knows(member_id):
                return member_id

    async def _wait(
        self,
        group: GroupEntry,
        ticket: int,
        future: asyncio.Future[_Answer],
        waiting: dict[int, asyncio.Future[_Answer]],
    ) -> _Answer:
        try:
            return await future
        finally:
            if waiting.pop(ticket, None) is not None:
                # Cancelled: the connection that asked is gone.
                self._settle(group, group.membership.abandon(ticket, self._clock.monotonic_s()))

    def _settle(self, group: GroupEntry, effects: list[Effect]) -> None:
        """Do what the group wants done, and see to its next deadline."""
        for effect in effects:
            if isinstance(effect, JoinAnswered):
                _resolve(self._joins, effect.ticket, effect.answer)
            elif isinstance(effect, SyncAnswered):
                _resolve(self._syncs, effect.ticket, effect.answer)
            elif isinstance(effect, HeartbeatAnswered):
                _resolve(self._heartbeats, effect.ticket, effect.answer)
            else:
                self._save(group, effect)
        self._downgrade_if_due(group)
        is_unused = group.membership.is_vacant and not self._offsets.count(group.group_id)
        if is_unused and not group.unwritten_count and self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        self._arm(group)

    def _save(self, group: GroupEntry, effect: SaveGroup | SaveConsumerGroup) -> None:
        membership = group.membership
        write = GroupWrite(lambda: None)
        if isinstance(effect, SaveGroup):
            group.empty_since_ms = None if effect.group.members else self._clock.wall_ms()
            write.save_group(group.group_id, group.empty_since_ms, effect.group)
        else:
            group.empty_since_ms = self._clock.wall_ms() if effect.changes.is_empty else None
            write.save_consumer_group(group.group_id, group.empty_since_ms, effect.changes)

        def done(future: asyncio.Future[None]) -> None:
            failure = future.exception()
            if failure is None:
                error = GroupError.NONE
            elif isinstance(failure, Fenced):
                error = GroupError.NOT_COORDINATOR
            else:
                error = GroupError.COORDINATOR_NOT_AVAILABLE
            # The group may have gone over to the other protocol meanwhile: who asked then still waits for an answer.
            self._settle(group, membership.saved(effect.number, error, self._clock.monotonic_s()))

        self._write(group, write).add_done_callback(done)

    def _write(self, group: GroupEntry, write: GroupWrite) -> asyncio.Future[None]:
        group.unwritten_count += 1

        def done(_future: asyncio.Future[None]) -> None:
            group.unwritten_count -= 1

        future = self._store.write(write)
        future.add_done_callback(done)
        return future

    def _delete_group(self, group: GroupEntry) -> asyncio.Future[None]:
        """The group is gone at once, so that whoever joins meanwhile starts a new one; it comes back on failure."""
        del self._groups[group.group_id]

        def done(future: asyncio.Future[None]) -> None:
            if future.exception() is None:
                self._settle(group, group.membership.shut_down(GroupError.COORDINATOR_NOT_AVAILABLE))
            elif self._status is GroupError.NONE:
                self._groups.setdefault(group.group_id, group)

        write = GroupWrite(lambda: self._offsets.remove_group(group.group_id))
        write.delete_group(group.group_id)
        future = self._write(group, write)
        future.add_done_callback(done)
        return future

    def _arm(self, group: GroupEntry) -> None:
        """One timer per group. One that is early only looks again, so heartbeats need not touch it."""
        deadline_s = group.membership.next_deadline_s()
        loop = asyncio.get_running_loop()
        if deadline_s is None:
            if group.timer is not None:
                group.timer.cancel()
                group.timer = None
            return
        delay_s = max(deadline_s - self._clock.monotonic_s(), 0.0)
        if group.timer is not None:
            if group.timer.when() <= loop.time() + delay_s:
                return
            group.timer.cancel()
        group.timer = loop.call_later(delay_s, self._advance, group)

    def _arm_if_sooner(self, group: GroupEntry) -> None:
        if isinstance(group.membership, ConsumerMembership):  # its heartbeats may set a deadline
            self._arm(group)

    def _advance(self, group: GroupEntry) -> None:
        group.timer = None
        self._settle(group, group.membership.advance(self._clock.monotonic_s()))

    # ── from one protocol to the other ────────────────────────────────────────────────────────────────────────────────

    def _consumer_group(self, request: ConsumerHeartbeat) -> GroupEntry:
        """The group that the heartbeat is for; a classic one goes over to the newer protocol where it can."""
        group_id = request.group_id
        group = self._groups.get(group_id)
        if request.member_epoch == 0 and "\0" not in group_id:
            if group is None:
                if len(self._groups) >= self._settings.groups_max:
                    raise Refused(GroupError.POLICY_VIOLATION, "There are too many groups.")
                group = self._groups[group_id] = GroupEntry(self._new_consumer_membership(group_id))
            elif isinstance(group.membership, GroupMembership):
                self._upgrade_if_allowed(group, group.membership)
        if group is None:
            raise Refused(GroupError.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if not isinstance(group.membership, ConsumerMembership):
            raise Refused(GroupError.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def _new_consumer_membership(self, group_id: str) -> ConsumerMembership:
        return ConsumerMembership(group_id, self._settings, self._topics)

    def _upgrade_if_allowed(self, group: GroupEntry, classic: GroupMembership) -> None:
        if classic.is_deletable:
            group.membership = self._new_consumer_membership(group.group_id)
            return
        saved = classic.snapshot()
        if (
            not self._settings.consumer_migration_policy.allows_upgrade
            or not classic.uses_consumer_protocol
            or not classic.has_readable_subscriptions
            or len(saved.members) > self._settings.consumer_members_per_group_max
        ):
            return
        # Those who wait for the rebalance that was under way join again, and meet the new protocol's coordinator.
        self._settle(group, classic.shut_down(GroupError.REBALANCE_IN_PROGRESS))
        self._groups[group.group_id] = group
        consumer = self._new_consumer_membership(group.group_id)
        consumer.adopt_classic(saved, self._clock.monotonic_s())
        group.membership = consumer

    def _downgrade_if_due(self, group: GroupEntry) -> None:
        consumer = group.membership
        if (
            not isinstance(consumer, ConsumerMembership)
            or not consumer.is_all_classic
            or not self._settings.consumer_migration_policy.allows_downgrade
        ):
            return
        now_s = self._clock.monotonic_s()
        classic = GroupMembership.restore(group.group_id, self._settings, consumer.as_classic(), now_s)
        group.membership = classic
        self._save(group, classic.begin_save())
        self._settle(group, classic.rebalance(now_s))


def _resolve(waiting: dict[int, asyncio.Future[_Answer]], ticket: int, answer: _Answer) -> None:
    future = waiting.pop(ticket, None)
    if future is not None and not future.done():
        future.set_result(answer)


async def wait_all(writes: list[asyncio.Future[None]]) -> None:
    """A caller that goes away does not take the writes with it."""
    for write in writes:
        await asyncio.shield(write)
