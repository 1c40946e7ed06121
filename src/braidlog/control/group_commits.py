"""Committed offsets of all groups: who may commit, what is kept, and when it goes."""

import asyncio

from braidlog.control.group_errors import GroupError
from braidlog.control.group_state import GroupState
from braidlog.control.group_store import GroupWrite, OffsetKey, StoredOffset
from braidlog.control.group_table import GroupEntry, GroupTable, wait_all
from braidlog.control.interface import (
    CommitOffsets,
    CommitOffsetsAnswer,
    DeleteOffsets,
    DeleteOffsetsAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    OffsetToCommit,
)

GROUPS_PER_EXPIRY_TURN = 500
"""Expiry looks at so many groups before it lets others have the event loop."""


class GroupCommits(GroupTable):
    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

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
            await wait_all(writes)
            await asyncio.sleep(0)
        return expired_count

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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

    def _find_expired(self, group: GroupEntry) -> dict[OffsetKey, StoredOffset]:
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

    def _expire_offsets(self, group: GroupEntry, expired: dict[OffsetKey, StoredOffset]) -> asyncio.Future[None]:
        write = GroupWrite(lambda: self._offsets.expire(group.group_id, expired))
        write.expire_offsets(group.group_id, expired)
        return self._write(group, write)
