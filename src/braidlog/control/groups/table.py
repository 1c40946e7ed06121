"""The groups of a coordinator: state machines, timers, requests and writes.

Each group is a pure state machine. The table gives it time, tickets for waiting requests, and durability. A restarted
coordinator continues with the generation that was saved last: members notice only a late heartbeat.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol, TypeVar

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.membership import GroupMembership
from braidlog.control.groups.config import with_configs
from braidlog.control.groups.consumer.group import TopicLookup
from braidlog.control.groups.consumer.member import SavedConsumerGroup
from braidlog.control.groups.consumer.membership import ConsumerMembership
from braidlog.control.groups.consumer.requests import Refused
from braidlog.control.groups.effects import (
    Effect,
    HeartbeatAnswered,
    JoinAnswered,
    SaveConsumerGroup,
    SaveGroup,
    SyncAnswered,
)
from braidlog.control.groups.offsets import GroupOffsets
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.store import GroupStore, GroupWrite
from braidlog.control.groups.tickets import Tickets
from braidlog.control.interface import (
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    JoinAnswer,
    SyncAnswer,
)
from braidlog.control.metadata.store import MetadataStore
from braidlog.runtime.alarms import Alarm
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import Fenced

MEMBER_NAME_CHARACTERS_MAX = 255
"""The most characters of the client's own name in a member id, which must fit into a Kafka string."""

_Answer = TypeVar("_Answer")


class GroupTopics(TopicLookup, Protocol):
    """The topics that exist now, for assignments and for committed offsets."""

    def has_partition(self, topic_id: bytes, index: int) -> bool: ...


@dataclass(slots=True, eq=False)
class GroupEntry:
    membership: GroupMembership | ConsumerMembership
    empty_since_ms: int | None = None
    timer: Alarm | None = None
    unwritten_count: int = 0
    """How many writes are in flight. The group must not be removed meanwhile."""

    @property
    def group_id(self) -> str:
        return self.membership.group_id


class GroupTable:
    def __init__(
        self, metadata: MetadataStore, clock: Clock, entropy: Entropy, settings: GroupSettings, topics: GroupTopics
    ) -> None:
        self.store = GroupStore(metadata, settings.unwritten_rows_max)
        self.clock = clock
        self.settings = settings
        self.topics = topics
        self.groups: dict[str, GroupEntry] = {}
        self.offsets = GroupOffsets()
        self.status = ErrorCode.coordinator_load_in_progress
        """The error that every request gets; `none` while the groups are loaded and served."""
        tickets = count(1)
        self.joins: Tickets[JoinAnswer] = Tickets(tickets)
        self.syncs: Tickets[SyncAnswer] = Tickets(tickets)
        self.heartbeats: Tickets[ConsumerHeartbeatAnswer] = Tickets(tickets)
        self._entropy = entropy
        self._own_settings: dict[str, GroupSettings] = {}
        """The settings of groups for which something was set."""

    async def load(self) -> None:
        """Load the durable groups and offsets. Until then, requests are told to retry."""
        groups, offsets = await self.store.load()
        now_s = self.clock.monotonic_s()
        for loaded in groups:
            membership: GroupMembership | ConsumerMembership
            if isinstance(loaded.group, SavedConsumerGroup):
                membership = ConsumerMembership.restore(
                    loaded.group_id,
                    self._settings_of(loaded.group_id),
                    self.topics,
                    loaded.group,
                    loaded.members,
                    now_s,
                )
            else:
                membership = GroupMembership.restore(loaded.group_id, self.settings, loaded.group, now_s)
            self.groups[loaded.group_id] = GroupEntry(membership, loaded.empty_since_ms)
        self.offsets.load(offsets)
        for group_id in self.offsets.group_ids():
            self.ensure_group(group_id)
        self.status = ErrorCode.none
        for group in self.groups.values():
            self._arm(group)

    async def close(self) -> None:
        """Answer the waiting requests, and finish the writes in flight.

        Another coordinator takes over the members.
        """
        self.status = ErrorCode.not_coordinator
        for group in self.groups.values():
            self.settle(group, group.membership.shut_down(ErrorCode.not_coordinator))
        self.groups.clear()
        await self.store.flush()

    # ── how requests run ──────────────────────────────────────────────────────────────────────────────────────────────

    def check_group_id(self, group_id: str) -> ErrorCode:
        if self.status is not ErrorCode.none:
            return self.status
        return ErrorCode.invalid_group_id if not group_id or "\0" in group_id else ErrorCode.none

    def ensure_group(self, group_id: str) -> GroupEntry:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = GroupEntry(GroupMembership(group_id, self.settings))
        return group

    def new_member_id(self, group: GroupEntry, name: str) -> str:
        while True:
            member_id = f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{self._entropy.uuid()}"
            # A seeded source restarts with the process, but members that it named before may still exist.
            if not group.membership.knows(member_id):
                return member_id

    async def wait(
        self, group: GroupEntry, tickets: Tickets[_Answer], ticket: int, future: asyncio.Future[_Answer]
    ) -> _Answer:
        """Wait for the answer to a ticket. A caller that is cancelled abandons it."""
        try:
            return await future
        finally:
            if tickets.abandon(ticket):
                # Cancelled: the connection that asked is gone.
                self.settle(group, group.membership.abandon(ticket, self.clock.monotonic_s()))

    def settle(self, group: GroupEntry, effects: list[Effect]) -> None:
        """Carry out the effects of a group, and set its timer."""
        for effect in effects:
            if isinstance(effect, JoinAnswered):
                self.joins.answer(effect.ticket, effect.answer)
            elif isinstance(effect, SyncAnswered):
                self.syncs.answer(effect.ticket, effect.answer)
            elif isinstance(effect, HeartbeatAnswered):
                self.heartbeats.answer(effect.ticket, effect.answer)
            else:
                self._save(group, effect)
        self._downgrade_if_due(group)
        is_unused = group.membership.is_vacant and not self.offsets.count(group.group_id)
        if is_unused and not group.unwritten_count and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
        self._arm(group)

    def _save(self, group: GroupEntry, effect: SaveGroup | SaveConsumerGroup) -> None:
        membership = group.membership
        write = GroupWrite(lambda: None)
        if isinstance(effect, SaveGroup):
            group.empty_since_ms = None if effect.group.members else self.clock.wall_ms()
            write.save_group(group.group_id, group.empty_since_ms, effect.group)
        else:
            group.empty_since_ms = self.clock.wall_ms() if effect.changes.is_empty else None
            write.save_consumer_group(group.group_id, group.empty_since_ms, effect.changes)

        def done(future: asyncio.Future[None]) -> None:
            failure = future.exception()
            if failure is None:
                error = ErrorCode.none
            elif isinstance(failure, Fenced):
                error = ErrorCode.not_coordinator
            else:
                error = ErrorCode.coordinator_not_available
            # The group may have changed its protocol meanwhile: requests from before still wait for an answer.
            self.settle(group, membership.saved(effect.number, error, self.clock.monotonic_s()))

        self.write(group, write).add_done_callback(done)

    def write(self, group: GroupEntry, write: GroupWrite) -> asyncio.Future[None]:
        group.unwritten_count += 1

        def done(_future: asyncio.Future[None]) -> None:
            group.unwritten_count -= 1

        future = self.store.write(write)
        future.add_done_callback(done)
        return future

    def delete_group(self, group: GroupEntry) -> asyncio.Future[None]:
        """Delete a group.

        It is gone at once, so that a join meanwhile starts a new one; it comes back if the write fails.
        """
        del self.groups[group.group_id]

        def done(future: asyncio.Future[None]) -> None:
            if future.exception() is None:
                self.settle(group, group.membership.shut_down(ErrorCode.coordinator_not_available))
            elif self.status is ErrorCode.none:
                self.groups.setdefault(group.group_id, group)

        write = GroupWrite(lambda: self.offsets.remove_group(group.group_id))
        write.delete_group(group.group_id)
        future = self.write(group, write)
        future.add_done_callback(done)
        return future

    def _arm(self, group: GroupEntry) -> None:
        """Set the timer of a group.

        One that fires early only checks again, so heartbeats need not touch it.
        """
        deadline_s = group.membership.next_deadline_s()
        if deadline_s is None:
            if group.timer is not None:
                group.timer.cancel()
            return
        if group.timer is None:
            group.timer = Alarm(partial(self._advance, group))
        group.timer.bring_forward(max(deadline_s - self.clock.monotonic_s(), 0.0))

    def arm_if_sooner(self, group: GroupEntry) -> None:
        if isinstance(group.membership, ConsumerMembership):  # its heartbeats may set a deadline
            self._arm(group)

    def _advance(self, group: GroupEntry) -> None:
        self.settle(group, group.membership.advance(self.clock.monotonic_s()))

    # ── from one protocol to the other ────────────────────────────────────────────────────────────────────────────────

    def consumer_group(self, request: ConsumerHeartbeat) -> GroupEntry:
        """Return the group of a heartbeat.

        A classic group is upgraded to the consumer protocol if it can be.
        """
        group_id = request.group_id
        group = self.groups.get(group_id)
        if request.member_epoch == 0 and "\0" not in group_id:
            if group is None:
                if len(self.groups) >= self.settings.groups_max:
                    raise Refused(ErrorCode.policy_violation, "There are too many groups.")
                group = self.groups[group_id] = GroupEntry(self._new_consumer_membership(group_id))
            elif isinstance(group.membership, GroupMembership):
                self._upgrade_if_allowed(group, group.membership)
        if group is None:
            raise Refused(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
        if not isinstance(group.membership, ConsumerMembership):
            raise Refused(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        return group

    def _new_consumer_membership(self, group_id: str) -> ConsumerMembership:
        return ConsumerMembership(group_id, self._settings_of(group_id), self.topics)

    def _settings_of(self, group_id: str) -> GroupSettings:
        return self._own_settings.get(group_id, self.settings)

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Apply the configs of a group from now on.

        Members hear of them with their next heartbeat.
        """
        self._own_settings.pop(group_id, None)
        if configs:
            self._own_settings[group_id] = with_configs(self.settings, configs)
        group = self.groups.get(group_id)
        if group is not None and isinstance(group.membership, ConsumerMembership):
            group.membership.settings = self._settings_of(group_id)

    def _upgrade_if_allowed(self, group: GroupEntry, classic: GroupMembership) -> None:
        if classic.is_deletable:
            group.membership = self._new_consumer_membership(group.group_id)
            return
        saved = classic.snapshot()
        if (
            not self.settings.consumer_migration_policy.allows_upgrade
            or not classic.uses_consumer_protocol
            or not classic.has_readable_subscriptions
            or len(saved.members) > self.settings.consumer_members_per_group_max
        ):
            return
        # Members that wait for the current rebalance rejoin, and meet the coordinator of the new protocol.
        self.settle(group, classic.shut_down(ErrorCode.rebalance_in_progress))
        self.groups[group.group_id] = group
        consumer = self._new_consumer_membership(group.group_id)
        consumer.adopt_classic(saved, self.clock.monotonic_s())
        group.membership = consumer

    def _downgrade_if_due(self, group: GroupEntry) -> None:
        consumer = group.membership
        if (
            not isinstance(consumer, ConsumerMembership)
            or not consumer.is_all_classic
            or not self.settings.consumer_migration_policy.allows_downgrade
        ):
            return
        now_s = self.clock.monotonic_s()
        classic = GroupMembership.restore(group.group_id, self.settings, consumer.as_classic(), now_s)
        group.membership = classic
        self._save(group, classic.begin_save())
        self.settle(group, classic.rebalance(now_s))


async def wait_all(writes: list[asyncio.Future[None]]) -> None:
    """Wait for all writes. A caller that is cancelled does not cancel them."""
    for write in writes:
        await asyncio.shield(write)
