"""The group coordinator: Kafka's classic consumer groups over the metadata store.

Each group is a pure state machine; this module gives it time, tickets for requests that wait, and a place to be saved.
A restarted coordinator goes on with the generation that was saved last: members notice nothing but a late heartbeat.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from braidlog.control.group_effects import Effect, JoinAnswered, SyncAnswered, join_error, sync_error
from braidlog.control.group_errors import GroupError
from braidlog.control.group_member import SavedGroup
from braidlog.control.group_membership import GroupMembership, GroupState
from braidlog.control.group_offsets import GroupOffsets
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_store import GroupStore, GroupWrite, OffsetKey, StoredOffset
from braidlog.control.interface import (
    CommitOffsets,
    CommitOffsetsAnswer,
    DeleteGroups,
    DeleteOffsets,
    DeleteOffsetsAnswer,
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

GROUP_TYPE = "classic"
MEMBER_NAME_CHARACTERS_MAX = 255
"""Of the client's own name in a member id: with the random part it must fit into a Kafka string."""
GROUPS_PER_EXPIRY_TURN = 500
"""Expiry looks at so many groups before it lets others have the event loop."""

_Answer = TypeVar("_Answer", JoinAnswer, SyncAnswer)


@dataclass(slots=True, eq=False)
class _Group:
    membership: GroupMembership
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
    ) -> None:
        """`topic_exists` tells whether a partition exists now, `topic_name` what members call a topic that they read.
        Without names every topic counts as read by an active consumer group, so none of its offsets is deleted."""
        self._store = GroupStore(metadata, settings.unwritten_rows_max)
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._topic_exists = topic_exists
        self._topic_name = topic_name
        self._groups: dict[str, _Group] = {}
        self._offsets = GroupOffsets()
        self._tickets = count(1)
        self._joins: dict[int, asyncio.Future[JoinAnswer]] = {}
        self._syncs: dict[int, asyncio.Future[SyncAnswer]] = {}
        self._status = GroupError.COORDINATOR_LOAD_IN_PROGRESS

    async def start(self) -> None:
        """Load what is durable. Until then requests are told to come again."""
        groups, offsets = await self._store.load()
        now_s = self._clock.monotonic_s()
        for loaded in groups:
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
        ticket = next(self._tickets)
        future = self._joins[ticket] = asyncio.get_running_loop().create_future()
        fresh_member_id = self._new_member_id(group, request)
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
        return Outcome(error)

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

    async def fetch_offsets(self, request: FetchOffsets) -> FetchOffsetsAnswer:
        if self._status is not GroupError.NONE:
            return FetchOffsetsAnswer(self._status, [])
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
        if request.types and GROUP_TYPE not in {group_type.lower() for group_type in request.types}:
            return GroupListings([])
        listings = (group.membership.listing() for group in self._groups.values())
        return GroupListings([listing for listing in listings if not states or listing.state.lower() in states])

    async def describe_groups(self, request: DescribeGroups) -> GroupDescriptions:
        """A group that is not there is Dead, with GROUP_ID_NOT_FOUND (which DescribeGroups before 6 does not tell)."""
        descriptions = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                descriptions.append(GroupDescription(self._status, group_id, "", "", "", []))
            elif group is None:
                code = GroupError.GROUP_ID_NOT_FOUND
                descriptions.append(GroupDescription(code, group_id, GroupState.DEAD.value, "", "", []))
            else:
                descriptions.append(group.membership.describe())
        return GroupDescriptions(descriptions)

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

    def _new_member_id(self, group: _Group, request: JoinGroup) -> str:
        name = request.client_id if request.group_instance_id is None else request.group_instance_id
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
            else:
                self._save(group, effect.number, effect.group)
        is_unused = group.membership.is_vacant and not self._offsets.count(group.group_id)
        if is_unused and not group.unwritten_count and self._groups.get(group.group_id) is group:
            del self._groups[group.group_id]
        self._arm(group)

    def _save(self, group: _Group, number: int, saved: SavedGroup) -> None:
        group.empty_since_ms = None if saved.members else self._clock.wall_ms()

        def done(future: asyncio.Future[None]) -> None:
            failure = future.exception()
            if failure is None:
                error = GroupError.NONE
            elif isinstance(failure, Fenced):
                error = GroupError.NOT_COORDINATOR
            else:
                error = GroupError.COORDINATOR_NOT_AVAILABLE
            self._settle(group, group.membership.saved(number, error, self._clock.monotonic_s()))

        write = GroupWrite(lambda: None)
        write.save_group(group.group_id, group.empty_since_ms, saved)
        self._write(group, write).add_done_callback(done)

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
