"""Consumer groups in the metadata store: read at the start, written in order.

They are read once, and written in the background.

Writes that arrive while a transaction is in flight share the next one, so that a thousand groups that commit at once
cost a few disk syncs. All writes happen in the order in which they were handed in.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from braidlog.control.groups.classic.member import SavedGroup
from braidlog.control.groups.consumer.group import ConsumerChanges
from braidlog.control.groups.consumer.member import SavedConsumerGroup, SavedConsumerMember
from braidlog.control.metadata.store import (
    MetadataBusy,
    MetadataDamaged,
    MetadataFull,
    MetadataStore,
    MetadataUnavailable,
    Row,
    Transaction,
    Value,
)
from braidlog.runtime.errors import ControlUnavailable, Fenced

ROWS_PER_TRANSACTION_MAX = 20_000

_CLASSIC = "classic"
_CONSUMER = "consumer"

_OUTAGES = (Fenced, MetadataBusy, MetadataDamaged, MetadataFull, MetadataUnavailable)
"""Failures that any other write would meet as well."""

_SAVE_GROUP = (
    "INSERT INTO consumer_groups (group_id, generation_id, empty_since_ms, state, kind) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (group_id) DO UPDATE SET generation_id = excluded.generation_id, "
    "empty_since_ms = excluded.empty_since_ms, state = excluded.state, kind = excluded.kind"
)
_SAVE_MEMBER = (
    "INSERT INTO consumer_group_members (group_id, member_id, state) VALUES (?, ?, ?) "
    "ON CONFLICT (group_id, member_id) DO UPDATE SET state = excluded.state"
)
_DELETE_MEMBER = "DELETE FROM consumer_group_members WHERE group_id = ? AND member_id = ?"
_DELETE_MEMBERS = "DELETE FROM consumer_group_members WHERE group_id = ?"
_SAVE_OFFSET = (
    "INSERT INTO group_offsets "
    "(group_id, topic_id, partition_index, committed_offset, leader_epoch, metadata, committed_ms) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (group_id, topic_id, partition_index) DO UPDATE SET committed_offset = excluded.committed_offset, "
    "leader_epoch = excluded.leader_epoch, metadata = excluded.metadata, committed_ms = excluded.committed_ms"
)
_DELETE_GROUP = "DELETE FROM consumer_groups WHERE group_id = ?"
_DELETE_GROUP_OFFSETS = "DELETE FROM group_offsets WHERE group_id = ?"
_DELETE_OFFSET = "DELETE FROM group_offsets WHERE group_id = ? AND topic_id = ? AND partition_index = ?"
_EXPIRE_OFFSET = f"{_DELETE_OFFSET} AND committed_ms = ?"
_DELETE_TOPIC_OFFSETS = "DELETE FROM group_offsets WHERE topic_id = ?"


@dataclass(frozen=True, slots=True)
class StoredOffset:
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


OffsetKey = tuple[bytes, int]
"""Topic id and partition index."""


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    group_id: str
    empty_since_ms: int | None
    group: SavedGroup | SavedConsumerGroup
    members: list[SavedConsumerMember] = field(default_factory=list)
    """The members of a group whose partitions the coordinator assigns. A classic group has its members inside."""


@dataclass(slots=True)
class GroupWrite:
    """Rows that become durable together.

    `apply` runs on the event loop afterwards, in the order of the writes.
    """

    apply: Callable[[], None]
    statements: list[tuple[str, list[Sequence[Value]]]] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        return sum(len(rows) for _, rows in self.statements)

    def save_group(self, group_id: str, empty_since_ms: int | None, group: SavedGroup) -> None:
        row = (group_id, group.generation_id, empty_since_ms, msgspec.msgpack.encode(group), _CLASSIC)
        self.statements += [(_SAVE_GROUP, [row]), (_DELETE_MEMBERS, [(group_id,)])]

    def save_consumer_group(self, group_id: str, empty_since_ms: int | None, changes: ConsumerChanges) -> None:
        encode = msgspec.msgpack.encode
        row = (group_id, changes.group.group_epoch, empty_since_ms, encode(changes.group), _CONSUMER)
        self.statements += [
            (_SAVE_GROUP, [row]),
            (_DELETE_MEMBER, [(group_id, member_id) for member_id in changes.removed]),
            (_SAVE_MEMBER, [(group_id, member.member_id, encode(member)) for member in changes.members]),
        ]

    def save_offsets(self, group_id: str, offsets: dict[OffsetKey, StoredOffset]) -> None:
        rows: list[Sequence[Value]] = [
            (group_id, *key, each.offset, each.leader_epoch, each.metadata.encode(), each.committed_ms)
            for key, each in offsets.items()
        ]
        self.statements.append((_SAVE_OFFSET, rows))

    def delete_group(self, group_id: str) -> None:
        self.statements += [
            (statement, [(group_id,)]) for statement in (_DELETE_GROUP, _DELETE_MEMBERS, _DELETE_GROUP_OFFSETS)
        ]

    def delete_offsets(self, group_id: str, keys: Sequence[OffsetKey]) -> None:
        self.statements.append((_DELETE_OFFSET, [(group_id, *key) for key in keys]))

    def expire_offsets(self, group_id: str, offsets: dict[OffsetKey, StoredOffset]) -> None:
        """Delete these offsets, except those committed again since they were selected."""
        rows: list[Sequence[Value]] = [(group_id, *key, stored.committed_ms) for key, stored in offsets.items()]
        self.statements.append((_EXPIRE_OFFSET, rows))

    def delete_topics(self, topic_ids: Iterable[bytes]) -> None:
        self.statements.append((_DELETE_TOPIC_OFFSETS, [(topic_id,) for topic_id in topic_ids]))


class GroupStore:
    def __init__(self, metadata: MetadataStore, unwritten_rows_max: int) -> None:
        self._metadata = metadata
        self._unwritten_rows_max = unwritten_rows_max
        self._unwritten_rows = 0
        self._queue: deque[tuple[GroupWrite, asyncio.Future[None]]] = deque()
        self._writer: asyncio.Task[None] | None = None

    @property
    def has_room(self) -> bool:
        return self._unwritten_rows < self._unwritten_rows_max

    async def load(self) -> tuple[list[LoadedGroup], dict[str, dict[OffsetKey, StoredOffset]]]:
        """Load all groups, and all committed offsets by group."""

        def read(transaction: Transaction) -> tuple[list[Row], list[Row], list[Row]]:
            return (
                transaction.query(
                    "SELECT group_id, empty_since_ms, kind, state FROM consumer_groups ORDER BY group_id"
                ),
                transaction.query("SELECT group_id, state FROM consumer_group_members ORDER BY group_id, member_id"),
                transaction.query(
                    "SELECT group_id, topic_id, partition_index, committed_offset, leader_epoch, metadata, "
                    "committed_ms FROM group_offsets ORDER BY group_id, topic_id, partition_index"
                ),
            )

        group_rows, member_rows, offset_rows = await self._metadata.read(read)
        decoders: dict[str, msgspec.msgpack.Decoder[SavedGroup] | msgspec.msgpack.Decoder[SavedConsumerGroup]] = {
            _CLASSIC: msgspec.msgpack.Decoder(SavedGroup),
            _CONSUMER: msgspec.msgpack.Decoder(SavedConsumerGroup),
        }
        member_decoder = msgspec.msgpack.Decoder(SavedConsumerMember)
        members: dict[str, list[SavedConsumerMember]] = {}
        for group_id, state in member_rows:
            members.setdefault(group_id, []).append(member_decoder.decode(state))
        groups = [
            LoadedGroup(group_id, empty_since_ms, decoders[kind].decode(state), members.get(group_id, []))
            for group_id, empty_since_ms, kind, state in group_rows
        ]
        offsets: dict[str, dict[OffsetKey, StoredOffset]] = {}
        for group_id, topic_id, partition, offset, leader_epoch, metadata, committed_ms in offset_rows:
            stored = StoredOffset(offset, leader_epoch, bytes(metadata).decode(), committed_ms)
            offsets.setdefault(group_id, {})[(bytes(topic_id), partition)] = stored
        return groups, offsets

    def write(self, write: GroupWrite) -> asyncio.Future[None]:
        """Hand in a write.

        The future is done when it is durable and applied, or has failed as a whole. Writes are accepted even if
        `has_room` is False. Requests check that first; what a group itself saves is bounded.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_mark_retrieved)
        self._queue.append((write, future))
        self._unwritten_rows += write.row_count
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_queue())
        return future

    async def flush(self) -> None:
        """Wait until nothing is left to write."""
        while self._writer is not None:
            await asyncio.shield(self._writer)

    async def _write_queue(self) -> None:
        try:
            while self._queue:
                batch = [self._queue.popleft()]
                row_count = batch[0][0].row_count
                while self._queue and row_count + self._queue[0][0].row_count <= ROWS_PER_TRANSACTION_MAX:
                    row_count += self._queue[0][0].row_count
                    batch.append(self._queue.popleft())
                await self._write_batch(batch)
                self._unwritten_rows -= row_count
        finally:
            self._writer = None
            for write, future in self._queue:
                self._unwritten_rows -= write.row_count
                if not future.done():
                    future.set_exception(_stopped())
            self._queue.clear()

    async def _write_batch(self, batch: list[tuple[GroupWrite, asyncio.Future[None]]]) -> None:
        statements = [statement for write, _ in batch for statement in write.statements]

        def run(transaction: Transaction) -> None:
            for sql, rows in statements:
                transaction.executemany(sql, rows)

        try:
            await self._metadata.plan(run)
        except asyncio.CancelledError:
            for _, future in batch:
                if not future.done():
                    future.set_exception(_stopped())
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait have to hear of it
            if len(batch) > 1 and not isinstance(error, _OUTAGES):
                # One of the writes cannot be stored. The others are retried one by one.
                for each in batch:
                    await self._write_batch([each])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for write, future in batch:
            write.apply()
            if not future.done():
                future.set_result(None)


def _stopped() -> ControlUnavailable:
    return ControlUnavailable("the group coordinator was stopped", help="Retry: another control plane takes over.")


def _mark_retrieved(future: asyncio.Future[None]) -> None:
    """Retrieve the error of a background write, so that asyncio does not warn.

    Nobody awaits such a write.
    """
    if not future.cancelled():
        future.exception()
