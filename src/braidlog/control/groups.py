"""The group coordinator: consumer groups of both of Kafka's protocols over the metadata store.

Each group is a pure state machine; this module gives it time, tickets for requests that wait, and a place to be saved.
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
from braidlog.control.consumer_requests import Refused, check_heartbeat
from braidlog.control.group_effects import (
    Effect,
    HeartbeatAnswered,
    JoinAnswered,
    SaveConsumerGroup,
    SaveGroup,
    SyncAnswered,
    join_error,
    sync_error,
)
from braidlog.control.group_errors import GroupError
from braidlog.control.group_membership import GroupMembership
from braidlog.control.group_offsets import GroupOffsets
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_state import GroupState
from braidlog.control.group_store import GroupStore, GroupWrite, OffsetKey, StoredOffset
from braidlog.control.interface import (
    CommitOffsets,
    CommitOffsetsAnswer,
    ConsumerGroupDescription,
    ConsumerGroupDescriptions,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    DeleteGroups,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    DescribeConsumerGroups,
    DescribeGroups,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupDescription,
    GroupDescriptions,
    GroupHeartbeat,
    GroupListings,
    GroupOutcomes,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListGroups,
    OffsetToCommit,
    Outcome,
    SyncAnswer,
    SyncGroup,
)
from braidlog.control.metadata import MetadataStore
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, Fenced

MEMBER_NAME_CHARACTERS_MAX = 255
"""Of the client's own name in a member id: with the random part it must fit into a Kafka string."""
GROUPS_PER_EXPIRY_TURN = 500
"""Expiry looks at so many groups before it lets others have the event loop."""

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
class _Group:
    membership: GroupMembership | ConsumerMembership
    empty_since_ms: int | None = None
    timer: asyncio.TimerHandle | None = None
    unwritten_count: int = 0
    """Writes on their way. The group must not be tidied away under them."""

    @property
    def group_id(self) -> str:
        return self.membership.group_id


class GroupCoordinator:
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
        self._groups: dict[str, _Group] = {}
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
            self._groups[loaded.group_id] = _Group(membership, loaded.empty_since_ms)
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

    # ── membership ────────────────────────────────────────────────────────────────────────────────────────────────

    async def join_group(self, request: JoinGroup) -> JoinAnswer:
        error = self._check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if error is GroupError.NONE and group is None:
            if request.member_id:
                error = GroupError.UNKNOWN_MEMBER_ID
            elif len(self._groups) >= self._settings.groups_max:
                error = GroupError.POLICY_VIOLATION
            else:
                group = self._ensure_group(request.group_id)
        if error is not GroupError.NONE or group is None:
            return join_error(request.member_id, error)
        if isinstance(group.membership, ConsumerMembership) and group.membership.is_deletable:
            group.membership = GroupMembership(group.group_id, self._settings)
        ticket = next(self._tickets)
        future = self._joins[ticket] = asyncio.get_running_loop().create_future()
        name = request.client_id if request.group_instance_id is None else request.group_instance_id
        fresh_member_id = self._new_member_id(group, name)
        effects = group.membership.join(ticket, request, fresh_member_id, self._clock.monotonic_s())
        self._settle(group, effects)
        return await self._wait(group, ticket, future, self._joins)

    async def sync_group(self, request: SyncGroup) -> SyncAnswer:
        error = self._check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if error is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            error = GroupError.REBALANCE_IN_PROGRESS  # the rebalance is lost: the member joins again, and that waits
        elif error is GroupError.NONE and group is None:
            error = GroupError.UNKNOWN_MEMBER_ID
        if error is not GroupError.NONE or group is None:
            return sync_error(error)
        ticket = next(self._tickets)
        future = self._syncs[ticket] = asyncio.get_running_loop().create_future()
        self._settle(group, group.membership.sync(ticket, request, self._clock.monotonic_s()))
        return await self._wait(group, ticket, future, self._syncs)

    async def heartbeat_group(self, request: GroupHeartbeat) -> Outcome:
        error = self._check_group_id(request.group_id)
        if error is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            return Outcome(GroupError.NONE)  # sessions start anew after loading
        if error is GroupError.NONE:
            group = self._groups.get(request.group_id)
            if group is None:
                error = GroupError.UNKNOWN_MEMBER_ID
            else:
                error = group.membership.heartbeat(request, self._clock.monotonic_s())
                self._arm_if_sooner(group)
        return Outcome(error)

    async def heartbeat_consumer(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        if self._status is not GroupError.NONE:
            return ConsumerHeartbeatAnswer(self._status)
        try:
            check_heartbeat(request)
            group = self._consumer_group(request)
        except Refused as refused:
            return ConsumerHeartbeatAnswer(refused.error, str(refused))
        membership = group.membership
        assert isinstance(membership, ConsumerMembership)
        ticket = next(self._tickets)
        future = self._heartbeats[ticket] = asyncio.get_running_loop().create_future()
        fresh_member_id = request.member_id or self._new_member_id(group, request.client_id)
        effects = membership.heartbeat_consumer(ticket, request, fresh_member_id, self._clock.monotonic_s())
        self._settle(group, effects)
        return await self._wait(group, ticket, future, self._heartbeats)

    async def leave_group(self, request: LeaveGroup) -> LeaveAnswer:
        error = self._check_group_id(request.group_id)
        if error is not GroupError.NONE:
            return LeaveAnswer(error, [])
        group = self._groups.get(request.group_id)
        if group is None:
            return LeaveAnswer(GroupError.NONE, [GroupError.UNKNOWN_MEMBER_ID] * len(request.members))
        answer, effects = group.membership.leave(request, self._clock.monotonic_s())
        self._settle(group, effects)
        return answer

    # ── offsets ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit_offsets(self, request: CommitOffsets) -> CommitOffsetsAnswer:
        """Raises what the metadata store raises where the commit could not be made durable."""
        error = self._check_commit(request)
        if error is not GroupError.NONE:
            return CommitOffsetsAnswer([error] * len(request.offsets))
        committed_ms = self._clock.wall_ms()
        error_codes: list[int] = [self._check_offset(each) for each in request.offsets]
        accepted = {
            (each.topic_id, each.partition): StoredOffset(each.offset, each.leader_epoch, each.metadata, committed_ms)
            for each, code in zip(request.offsets, error_codes, strict=True)
            if code == GroupError.NONE
        }
        if accepted:
            group = self._ensure_group(request.group_id)

            def apply() -> None:
                self._ensure_group(request.group_id)
                self._offsets.put(request.group_id, accepted)

            write = GroupWrite(apply)
            write.save_offsets(request.group_id, accepted)
            await asyncio.shield(self._write(group, write))
        return CommitOffsetsAnswer(error_codes)

    def check_offsets(self, request: CommitOffsets) -> list[int]:
        """One code per offset: whether a transaction may commit it for its group. Who does not say that it is a member
        may: producers of earlier releases do not tell."""
        is_anonymous = request.generation_id < 0 and not request.member_id and request.group_instance_id is None
        error = self._status if is_anonymous else self._check_commit(request)
        if error is not GroupError.NONE:
            return [error] * len(request.offsets)
        return [self._check_offset(each) for each in request.offsets]

    def transaction_offsets(self, offsets: dict[str, dict[OffsetKey, StoredOffset]]) -> GroupWrite:
        """What a transaction commits, by group, as rows that are written with its decision."""

        def apply() -> None:
            for group_id, committed in offsets.items():
                self._ensure_group(group_id)
                self._offsets.put(group_id, committed)

        write = GroupWrite(apply)
        for group_id, committed in offsets.items():
            write.save_offsets(group_id, committed)
        return write

    async def fetch_offsets(self, request: FetchOffsets) -> FetchOffsetsAnswer:
        if self._status is not GroupError.NONE:
            return FetchOffsetsAnswer(self._status, [])
        group = self._groups.get(request.group_id)
        if group is not None:
            error = group.membership.check_fetch(request.member_id, request.member_epoch)
            if error is not GroupError.NONE:
                return FetchOffsetsAnswer(error, [])
        return FetchOffsetsAnswer(GroupError.NONE, self._offsets.fetch(request.group_id, request.partitions))

    async def delete_offsets(self, request: DeleteOffsets) -> DeleteOffsetsAnswer:
        error = self._check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if error is GroupError.NONE and group is None:
            error = GroupError.GROUP_ID_NOT_FOUND
        elif error is GroupError.NONE and group is not None:
            membership = group.membership
            if membership.state is not GroupState.EMPTY and not membership.uses_consumer_protocol:
                error = GroupError.NON_EMPTY_GROUP
        if error is not GroupError.NONE or group is None:
            return DeleteOffsetsAnswer(error, [])
        error_codes: list[int] = []
        keys: list[OffsetKey] = []
        for topic_id, partition in request.partitions:
            if not self._topic_exists(topic_id, partition):
                error_codes.append(GroupError.UNKNOWN_TOPIC_OR_PARTITION)
            elif group.membership.is_subscribed(self._topic_name(topic_id)):
                error_codes.append(GroupError.GROUP_SUBSCRIBED_TO_TOPIC)
            else:
                error_codes.append(GroupError.NONE)
                keys.append((topic_id, partition))
        if keys:
            write = GroupWrite(lambda: self._offsets.remove(request.group_id, keys))
            write.delete_offsets(request.group_id, keys)
            await asyncio.shield(self._write(group, write))
        return DeleteOffsetsAnswer(GroupError.NONE, error_codes)

    def topic_removed(self, topic_id: bytes) -> None:
        """Forget what was committed for the topic. Should the write fail, `expire_once` makes up for it."""
        self._offsets.remove_topic(topic_id)
        write = GroupWrite(lambda: self._offsets.remove_topic(topic_id))
        write.delete_topic(topic_id)
        self._store.write(write)

    async def expire_once(self) -> int:
        """Remove offsets that nobody used for the retention time, or whose topic is gone, and groups that are left
        with neither members nor offsets. Returns how many offsets went."""
        if self._status is not GroupError.NONE:
            return 0
        expired_count = 0
        group_ids = list(self._groups)
        for start in range(0, len(group_ids), GROUPS_PER_EXPIRY_TURN):
            writes = []
            for group_id in group_ids[start : start + GROUPS_PER_EXPIRY_TURN]:
                group = self._groups.get(group_id)
                if group is None:
                    continue
                expired = self._find_expired(group)
                expired_count += len(expired)
                if (
                    len(expired) == self._offsets.count(group_id)
                    and group.membership.is_deletable
                    and not group.unwritten_count
                ):
                    writes.append(self._delete_group(group))
                elif expired:
                    writes.append(self._expire_offsets(group, expired))
            await _wait_all(writes)
            await asyncio.sleep(0)
        return expired_count

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_groups(self, request: ListGroups) -> GroupListings:
        if self._status is not GroupError.NONE:
            raise ControlUnavailable("the consumer groups are not loaded", help="Retry in a moment.")
        states = {state.lower() for state in request.states}
        types = {group_type.lower() for group_type in request.types}
        listings = (group.membership.listing() for group in self._groups.values())
        return GroupListings(
            [
                listing
                for listing in listings
                if (not states or listing.state.lower() in states) and (not types or listing.group_type in types)
            ]
        )

    async def describe_groups(self, request: DescribeGroups) -> GroupDescriptions:
        """A group that is not there is Dead, with GROUP_ID_NOT_FOUND (which DescribeGroups before 6 does not tell).
        So is one of the newer protocol, which has a description of its own."""
        descriptions = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                descriptions.append(GroupDescription(self._status, group_id, "", "", "", []))
            elif group is None or isinstance(group.membership, ConsumerMembership):
                code = GroupError.GROUP_ID_NOT_FOUND
                descriptions.append(GroupDescription(code, group_id, GroupState.DEAD.value, "", "", []))
            else:
                descriptions.append(group.membership.describe())
        return GroupDescriptions(descriptions)

    async def describe_consumer_groups(self, request: DescribeConsumerGroups) -> ConsumerGroupDescriptions:
        descriptions = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                descriptions.append(ConsumerGroupDescription(self._status, group_id))
            elif group is None or not isinstance(group.membership, ConsumerMembership):
                message = (
                    f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
                )
                descriptions.append(ConsumerGroupDescription(GroupError.GROUP_ID_NOT_FOUND, group_id, message))
            else:
                descriptions.append(group.membership.describe_consumer())
        return ConsumerGroupDescriptions(descriptions)

    async def delete_groups(self, request: DeleteGroups) -> GroupOutcomes:
        error_codes: list[int] = []
        writes = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                error_codes.append(self._status)
            elif group is None:
                error_codes.append(GroupError.GROUP_ID_NOT_FOUND)
            elif group.membership.state is not GroupState.EMPTY:
                error_codes.append(GroupError.NON_EMPTY_GROUP)
            else:
                writes.append(self._delete_group(group))
                error_codes.append(GroupError.NONE)
        await _wait_all(writes)
        return GroupOutcomes(error_codes)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_group_id(self, group_id: str) -> GroupError:
        if self._status is not GroupError.NONE:
            return self._status
        return GroupError.INVALID_GROUP_ID if not group_id or "\0" in group_id else GroupError.NONE

    def _check_commit(self, request: CommitOffsets) -> GroupError:
        if self._status is not GroupError.NONE:
            return self._status
        if "\0" in request.group_id:  # the empty group id may commit, as it always could
            return GroupError.INVALID_GROUP_ID
        group = self._groups.get(request.group_id)
        if group is not None:
            error = group.membership.check_commit(request, self._clock.monotonic_s())
        elif request.generation_id >= 0:
            error = GroupError.ILLEGAL_GENERATION
        elif len(self._groups) >= self._settings.groups_max:
            error = GroupError.POLICY_VIOLATION
        else:
            error = GroupError.NONE
        if error is GroupError.NONE and not self._store.has_room:
            error = GroupError.COORDINATOR_NOT_AVAILABLE
        return error

    def _check_offset(self, offset: OffsetToCommit) -> GroupError:
        if not self._topic_exists(offset.topic_id, offset.partition):
            return GroupError.UNKNOWN_TOPIC_OR_PARTITION
        if len(offset.metadata.encode()) > self._settings.offset_metadata_bytes_max:
            return GroupError.OFFSET_METADATA_TOO_LARGE
        return GroupError.NONE

    def _ensure_group(self, group_id: str) -> _Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = _Group(GroupMembership(group_id, self._settings))
        return group

    def _new_member_id(self, group: _Group, name: str) -> str:
        while True:
            member_id = f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{self._entropy.uuid()}"
            # A seeded source starts over with the process, but the members that it named before may still be there.
            if not group.membership.knows(member_id):
                return member_id

    async def _wait(
        self, group: _Group, ticket: int, future: asyncio.Future[_Answer], waiting: dict[int, asyncio.Future[_Answer]]
    ) -> _Answer:
        try:
            return await future
        finally:
            if waiting.pop(ticket, None) is not None:
                # Cancelled: the connection that asked is gone.
                self._settle(group, group.membership.abandon(ticket, self._clock.monotonic_s()))

    def _settle(self, group: _Group, effects: list[Effect]) -> None:
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

    def _save(self, group: _Group, effect: SaveGroup | SaveConsumerGroup) -> None:
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

    # ── from one protocol to the other ────────────────────────────────────────────────────────────────────────────

    def _consumer_group(self, request: ConsumerHeartbeat) -> _Group:
        """The group that the heartbeat is for; a classic one goes over to the newer protocol where it can."""
        group_id = request.group_id
        group = self._groups.get(group_id)
        if request.member_epoch == 0 and "\0" not in group_id:
            if group is None:
                if len(self._groups) >= self._settings.groups_max:
                    raise Refused(GroupError.POLICY_VIOLATION, "There are too many groups.")
                group = self._groups[group_id] = _Group(self._new_consumer_membership(group_id))
            elif isinstance(group.membership, GroupMembership):
                self._upgrade_if_allowed(group, group.membership)
        if group is None:
            raise Refused(GroupError.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if not isinstance(group.membership, ConsumerMembership):
            raise Refused(GroupError.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def _new_consumer_membership(self, group_id: str) -> ConsumerMembership:
        return ConsumerMembership(group_id, self._settings, self._topics)

    def _upgrade_if_allowed(self, group: _Group, classic: GroupMembership) -> None:
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

    def _downgrade_if_due(self, group: _Group) -> None:
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

    def _write(self, group: _Group, write: GroupWrite) -> asyncio.Future[None]:
        group.unwritten_count += 1

        def done(_future: asyncio.Future[None]) -> None:
            group.unwritten_count -= 1

        future = self._store.write(write)
        future.add_done_callback(done)
        return future

    def _delete_group(self, group: _Group) -> asyncio.Future[None]:
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

    def _find_expired(self, group: _Group) -> dict[OffsetKey, StoredOffset]:
        membership = group.membership
        before_ms = self._clock.wall_ms() - self._settings.offsets_retention_ms
        state = membership.state

        def is_expired(key: OffsetKey, stored: StoredOffset) -> bool:
            if not self._topic_exists(*key):
                return True
            if stored.committed_ms > before_ms:
                return False
            if membership.protocol_type is None:
                return True
            if state is GroupState.EMPTY:
                return group.empty_since_ms is None or group.empty_since_ms <= before_ms
            # Members may stop reading a topic while the group lives on.
            return state is GroupState.STABLE and not membership.is_subscribed(self._topic_name(key[0]))

        return self._offsets.select(group.group_id, is_expired)

    def _expire_offsets(self, group: _Group, expired: dict[OffsetKey, StoredOffset]) -> asyncio.Future[None]:
        write = GroupWrite(lambda: self._offsets.expire(group.group_id, expired))
        write.expire_offsets(group.group_id, expired)
        return self._write(group, write)

    def _arm(self, group: _Group) -> None:
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

    def _arm_if_sooner(self, group: _Group) -> None:
        if isinstance(group.membership, ConsumerMembership):  # its heartbeats may set a deadline
            self._arm(group)

    def _advance(self, group: _Group) -> None:
        group.timer = None
        self._settle(group, group.membership.advance(self._clock.monotonic_s()))


def _resolve(waiting: dict[int, asyncio.Future[_Answer]], ticket: int, answer: _Answer) -> None:
    future = waiting.pop(ticket, None)
    if future is not None and not future.done():
        future.set_result(answer)


async def _wait_all(writes: list[asyncio.Future[None]]) -> None:
    """A caller that goes away does not take the writes with it."""
    for write in writes:
        await asyncio.shield(write)
