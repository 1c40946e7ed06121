"""The committed offsets of all groups: who may commit, and when an offset expires."""

import asyncio

from kio.schema.errors import ErrorCode

from braidlog.control.groups.state import GroupState
from braidlog.control.groups.store import GroupWrite, OffsetKey, StoredOffset
from braidlog.control.groups.table import GroupEntry, GroupTable, wait_all
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
"""How many groups expiry checks before it yields to the event loop."""


class OffsetCommits:
    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self._clock = table.clock
        self._settings = table.settings
        self.offsets = table.offsets
        self._topics = table.topics

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def commit_offsets(self, request: CommitOffsets) -> CommitOffsetsAnswer:
        """Commit offsets.

        Raises the metadata store's error if they could not be made durable.
        """
        error = self._check_commit(request)
        if error is not ErrorCode.none:
            return CommitOffsetsAnswer([error] * len(request.offsets))
        committed_ms = self._clock.wall_ms()
        error_codes: list[int] = [self._check_offset(each) for each in request.offsets]
        accepted = {
            (each.topic_id, each.partition): StoredOffset(each.offset, each.leader_epoch, each.metadata, committed_ms)
            for each, code in zip(request.offsets, error_codes, strict=True)
            if code == ErrorCode.none
        }
        if accepted:
            group = self._table.ensure_group(request.group_id)

            def apply() -> None:
                self._table.ensure_group(request.group_id)
                self.offsets.put(request.group_id, accepted)

            write = GroupWrite(apply)
            write.save_offsets(request.group_id, accepted)
            await asyncio.shield(self._table.write(group, write))
        return CommitOffsetsAnswer(error_codes)

    def check_offsets(self, request: CommitOffsets) -> list[int]:
        """Return for each offset whether a transaction may commit it: an error code.

        A producer that does not claim to be a member may: earlier releases do not send the member.
        """
        is_anonymous = request.generation_id < 0 and not request.member_id and request.group_instance_id is None
        error = self._table.status if is_anonymous else self._check_commit(request)
        if error is not ErrorCode.none:
            return [error] * len(request.offsets)
        return [self._check_offset(each) for each in request.offsets]

    def transaction_offsets(self, offsets: dict[str, dict[OffsetKey, StoredOffset]]) -> GroupWrite:
        """Return the offsets that a transaction commits, by group, as rows.

        They are written with the transaction's decision.
        """

        def apply() -> None:
            for group_id, committed in offsets.items():
                self._table.ensure_group(group_id)
                self.offsets.put(group_id, committed)

        write = GroupWrite(apply)
        for group_id, committed in offsets.items():
            write.save_offsets(group_id, committed)
        return write

    async def fetch_offsets(self, request: FetchOffsets) -> FetchOffsetsAnswer:
        if self._table.status is not ErrorCode.none:
            return FetchOffsetsAnswer(self._table.status, [])
        group = self._table.groups.get(request.group_id)
        if group is not None:
            error = group.membership.check_fetch(request.member_id, request.member_epoch)
            if error is not ErrorCode.none:
                return FetchOffsetsAnswer(error, [])
        return FetchOffsetsAnswer(ErrorCode.none, self.offsets.fetch(request.group_id, request.partitions))

    async def delete_offsets(self, request: DeleteOffsets) -> DeleteOffsetsAnswer:
        error = self._table.check_group_id(request.group_id)
        group = self._table.groups.get(request.group_id)
        if error is ErrorCode.none and group is None:
            error = ErrorCode.group_id_not_found
        elif error is ErrorCode.none and group is not None:
            membership = group.membership
            if membership.state is not GroupState.EMPTY and not membership.uses_consumer_protocol:
                error = ErrorCode.non_empty_group
        if error is not ErrorCode.none or group is None:
            return DeleteOffsetsAnswer(error, [])
        error_codes: list[int] = []
        keys: list[OffsetKey] = []
        for topic_id, partition in request.partitions:
            if not self._topics.has_partition(topic_id, partition):
                error_codes.append(ErrorCode.unknown_topic_or_partition)
            elif group.membership.is_subscribed(self._topics.name_of(topic_id)):
                error_codes.append(ErrorCode.group_subscribed_to_topic)
            else:
                error_codes.append(ErrorCode.none)
                keys.append((topic_id, partition))
        if keys:
            write = GroupWrite(lambda: self.offsets.remove(request.group_id, keys))
            write.delete_offsets(request.group_id, keys)
            await asyncio.shield(self._table.write(group, write))
        return DeleteOffsetsAnswer(ErrorCode.none, error_codes)

    def topics_removed(self, topic_ids: frozenset[bytes]) -> None:
        """Delete the offsets of topics.

        If the write fails, `expire_once` deletes them later.
        """
        self.offsets.remove_topics(topic_ids)
        write = GroupWrite(lambda: self.offsets.remove_topics(topic_ids))
        write.delete_topics(topic_ids)
        self._table.store.write(write)

    async def expire_once(self) -> int:
        """Remove expired offsets, those of deleted topics, and empty groups.

        An empty group has neither members nor offsets.

        Returns how many offsets were removed.
        """
        if self._table.status is not ErrorCode.none:
            return 0
        expired_count = 0
        group_ids = list(self._table.groups)
        for start in range(0, len(group_ids), GROUPS_PER_EXPIRY_TURN):
            writes = []
            for group_id in group_ids[start : start + GROUPS_PER_EXPIRY_TURN]:
                group = self._table.groups.get(group_id)
                if group is None:
                    continue
                expired = self._find_expired(group)
                expired_count += len(expired)
                if (
                    len(expired) == self.offsets.count(group_id)
                    and group.membership.is_deletable
                    and not group.unwritten_count
                ):
                    writes.append(self._table.delete_group(group))
                elif expired:
                    writes.append(self._expire_offsets(group, expired))
            await wait_all(writes)
            await asyncio.sleep(0)
        return expired_count

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_commit(self, request: CommitOffsets) -> ErrorCode:
        if self._table.status is not ErrorCode.none:
            return self._table.status
        if "\0" in request.group_id:  # the empty group id may commit, as in Kafka
            return ErrorCode.invalid_group_id
        group = self._table.groups.get(request.group_id)
        if group is not None:
            error = group.membership.check_commit(request, self._clock.monotonic_s())
        elif request.generation_id >= 0:
            error = ErrorCode.illegal_generation
        elif len(self._table.groups) >= self._settings.groups_max:
            error = ErrorCode.policy_violation
        else:
            error = ErrorCode.none
        if error is ErrorCode.none and not self._table.store.has_room:
            error = ErrorCode.coordinator_not_available
        return error

    def _check_offset(self, offset: OffsetToCommit) -> ErrorCode:
        if not self._topics.has_partition(offset.topic_id, offset.partition):
            return ErrorCode.unknown_topic_or_partition
        if len(offset.metadata.encode()) > self._settings.offset_metadata_bytes_max:
            return ErrorCode.offset_metadata_too_large
        return ErrorCode.none

    def _find_expired(self, group: GroupEntry) -> dict[OffsetKey, StoredOffset]:
        membership = group.membership
        before_ms = self._clock.wall_ms() - self._settings.offsets_retention_ms
        state = membership.state

        def is_expired(key: OffsetKey, stored: StoredOffset) -> bool:
            if not self._topics.has_partition(*key):
                return True
            if stored.committed_ms > before_ms:
                return False
            if membership.protocol_type is None:
                return True
            if state is GroupState.EMPTY:
                return group.empty_since_ms is None or group.empty_since_ms <= before_ms
            # Members may stop reading a topic while the group lives on.
            return state is GroupState.STABLE and not membership.is_subscribed(self._topics.name_of(key[0]))

        return self.offsets.select(group.group_id, is_expired)

    def _expire_offsets(self, group: GroupEntry, expired: dict[OffsetKey, StoredOffset]) -> asyncio.Future[None]:
        write = GroupWrite(lambda: self.offsets.expire(group.group_id, expired))
        write.expire_offsets(group.group_id, expired)
        return self._table.write(group, write)
