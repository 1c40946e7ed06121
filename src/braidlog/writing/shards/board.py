"""The memory that the shards of an agent share.

It holds their groups, their waiting batches, and the outcomes of those.

Everything lies in one region. Counters are plain numbers with one writer each, on a cache line of their own:

    header │ where groups start │ lines: group, counters, ring, pulls, life of each shard │ slots │ arenas

**Groups.** One word for each shard says whether a group starts there. A split sets one word, a merge clears one. So a
shard that dies while it regroups has changed everything or nothing, and no group touches another's word. The words
count from the largest block down: if a block is whole, the words inside it do not matter. So whatever a reader without
a lock happens to see is a valid map, if perhaps one of a moment ago.

**Locks.** Each group has one, named after its first shard. The word of shard s is changed under the lock of s and that
of the group below it, from which s splits off or with which it merges. So a shard that has the lock of s, and finds
that a group starts there, knows that this group does not change until it gives the lock back. Only then may it write
the group's line (pull count, budget, time of the last decision) and move the heads of its rings.

**Without a lock** nothing relies on the order in which one processor sees the stores of another. Data that crosses is
either one aligned word of eight bytes, which is seen whole, or it names its ticket and carries a checksum, and is
copied before it is checked. A reader that does not find it whole yet looks again later. Everything else that is read
without a lock is a hint, and is read again under the lock before anything is done about it.

A shard's *ring* holds its waiting batches: tickets count up from 0, ticket t uses slot t modulo the slot count, and
its bytes lie in the shard's arena. The owner appends at the tail; the puller, under the group's lock, moves the head.
The arena's bytes are free again once the head has passed them, the slot once its outcome is known.

A process that was paused in the middle of anything may go on when the slot has long been reused. Then the checksum of
whatever it reads or writes is wrong, and the data is ignored.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from braidlog.objects.store import Bytes
from braidlog.scheduling.loads import ShardLoad
from braidlog.scheduling.shard_groups import block_around, groups_from_starts, middles_around, nested_middles

LINE_BYTES = 64
_WORDS = LINE_BYTES // 8

MAGIC = 0x6272616964626F61
SLOT_BYTES = 256
MESSAGE_BYTES_MAX = 112

_PUBLISHED = struct.Struct("<qdqqII")
"""Ticket, arrival, position in the arena, bytes of records published before it, lengths of its description and of its
records. A checksum of all three follows."""
_PULLED = struct.Struct("<qqqq")
"""Ticket, and the three parts of the puller's id. A checksum follows."""
_OUTCOME = struct.Struct("<qiqqqH")
"""Ticket, error code, base offset, log start offset, journal file, length of the message that follows. A checksum comes
before it."""
_CHECKSUM = struct.Struct("<I")
_ARRIVAL_AT, _POSITION_AT, _BEFORE_AT, _CLEAR_AT, _PULLED_AT, _OUTCOME_AT = 8, 16, 24, 48, 56, 96

_GROUP, _COUNTERS, _RING, _PULLS, _LIFE = range(5)
_LINES = 5
_PUBLISHED_BYTES = 5
"""The word of a ring's line that counts the bytes of all records ever published in it."""


_LOST = -2
"""Less a ticket: the batch must not be sequenced."""

NO_FILE = -1


class Clearance(Enum):
    """Whether a pulled batch may be sequenced."""

    CLEAR = "everything before it in its partition is released"
    WAIT = "something before it is still under way"
    GONE = "its owner has died, or given it or one before it up, so nobody will ever know"


@dataclass(frozen=True, slots=True)
class BoardShape:
    """The sizes of a board's parts. All shards of an agent must agree on them."""

    shard_count: int
    slot_count: int = 2048
    """Batches of a shard that may be published and not answered at the same time."""
    arena_bytes: int = 16 * 1024 * 1024
    """Bytes of a shard's batches that may wait to be pulled."""

    @property
    def size_bytes(self) -> int:
        return self._arenas_at + self.shard_count * self.arena_bytes

    @property
    def _groups_at(self) -> int:
        return LINE_BYTES

    @property
    def _lines_at(self) -> int:
        return self._groups_at + -(-self.shard_count * 8 // LINE_BYTES) * LINE_BYTES

    @property
    def _slots_at(self) -> int:
        return self._lines_at + _LINES * self.shard_count * LINE_BYTES

    @property
    def _arenas_at(self) -> int:
        slots_end = self._slots_at + self.shard_count * self.slot_count * SLOT_BYTES
        return -(-slots_end // 4096) * 4096


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a pulled batch, which its owner passes on to the producer."""

    error_code: int
    base_offset: int
    log_start_offset: int
    message: str | None = None
    journal_file: int = NO_FILE
    """The number of the puller's journal file that has the batch, if it is not sequenced: see `FileStates`."""


class PullerId(NamedTuple):
    """The puller of a batch: the shard, which of its lives, and its writer.

    The shard's objects carry the name of the writer.
    """

    shard: int
    life: int
    incarnation: int
    """The first eight bytes of the writer's incarnation, as a number."""


class Board:
    """Gives names to the words of the shared region.

    It decides nothing, and locks nothing.
    """

    def __init__(self, memory: memoryview, shape: BoardShape) -> None:
        if len(memory) < shape.size_bytes:
            raise ValueError(f"{len(memory)} bytes of shared memory, where {shape.size_bytes} are needed")
        self.shape = shape
        self.shard_count = shape.shard_count
        region = memory[: shape.size_bytes]
        self._words = region.cast("q")
        self._reals = region.cast("d")
        self._bytes = region
        starts_at = shape._groups_at // 8
        self._starts = self._words[starts_at : starts_at + shape.shard_count]
        self._lines_at = shape._lines_at // 8
        if self._words[0] not in {0, MAGIC} or self._words[1] not in {0, shape.shard_count}:
            raise ValueError("this shared memory belongs to something else")
        self._words[1] = shape.shard_count
        self._words[0] = MAGIC
        self._starts[0] = 1
        self._nesting = nested_middles(shape.shard_count)
        self._middles = [middles_around(shape.shard_count, shard) for shard in range(shape.shard_count)]
        # Blocks are split from the largest down: if the smallest one around a shard is split, the shard is alone.
        self._alone_at = [middles[-1] if middles else 0 for middles in self._middles]
        self.rings = [Ring(self, shard) for shard in range(shape.shard_count)]

    # ── groups ──

    def groups(self) -> list[int]:
        # Each word is read once: read twice, it might say two things.
        return groups_from_starts(self._starts.tolist(), self._nesting)

    def members_of(self, shard: int) -> range:
        """Return all members of the shard's group."""
        return block_around(shard, self._middles[shard], self._starts)

    def group_of(self, shard: int) -> int:
        return self.members_of(shard).start

    def is_alone(self, shard: int) -> bool:
        """Whether the shard is alone in its group.

        Asked for every request, so it must be quick.
        """
        return self._starts[self._alone_at[shard]] == 1

    def set_starts_group(self, shard: int, starts: bool) -> None:
        """Split a group before the shard, or merge the two groups that meet there.

        A merge joins the group that starts at the shard with the one below it. Called under the locks of both.
        """
        if shard == 0:
            raise ValueError("a group always starts at shard 0")
        self._starts[shard] = int(starts)

    def _line(self, kind: int, shard: int) -> int:
        return self._lines_at + (kind * self.shard_count + shard) * _WORDS

    # ── a group's line: written under its lock ──

    def pull_count(self, group: int) -> int:
        return self._words[self._line(_GROUP, group)]

    def count_pull(self, group: int) -> None:
        self._words[self._line(_GROUP, group)] += 1

    def decided_s(self) -> list[float]:
        """Return, by group, when it was last made or changed."""
        return [self._reals[self._line(_GROUP, group) + 1] for group in range(self.shard_count)]

    def set_decided_s(self, group: int, now_s: float) -> None:
        self._reals[self._line(_GROUP, group) + 1] = now_s

    def budget(self, group: int) -> tuple[float, float]:
        """Return the tokens, and when they were counted.

        They are (0, 0) for a group that never had any.
        """
        at = self._line(_GROUP, group)
        return self._reals[at + 2], self._reals[at + 3]

    def set_budget(self, group: int, tokens: float, refilled_s: float) -> None:
        at = self._line(_GROUP, group)
        self._reals[at + 2] = tokens
        self._reals[at + 3] = refilled_s

    # ── counters: each shard writes its own ──

    def is_serving(self, shard: int) -> bool:
        return self._words[self._line(_COUNTERS, shard)] == 1

    def set_serving(self, shard: int, serving: bool) -> None:
        self._words[self._line(_COUNTERS, shard)] = int(serving)

    def uploads_in_flight(self, shard: int) -> int:
        return self._words[self._line(_COUNTERS, shard) + 1]

    def set_uploads_in_flight(self, shard: int, count: int, slots_used: float, now_s: float) -> None:
        """Set the count, and its average until now: see `scheduling.loads`."""
        at = self._line(_COUNTERS, shard)
        self._words[at + 1] = count
        self._reals[at + 2] = slots_used
        self._reals[at + 3] = now_s

    def set_own(self, shard: int, size_bytes: int, oldest_s: float) -> None:
        """Set the backlog of the shard's own batcher, where nobody else pulls it."""
        at = self._line(_COUNTERS, shard)
        self._words[at + 4] = size_bytes
        self._reals[at + 5] = oldest_s

    def add_arrived_bytes(self, shard: int, size_bytes: int) -> None:
        """Count bytes that others may pull.

        They are in the shard's ring, or wait for room in it.
        """
        self._words[self._line(_COUNTERS, shard) + 6] += size_bytes

    def wants_room(self, shard: int) -> bool:
        """Whether the shard waits for room in its own ring.

        A puller that makes some should wake it.
        """
        return self._words[self._line(_COUNTERS, shard) + 7] != 0

    def set_wants_room(self, shard: int, wants: bool) -> None:
        self._words[self._line(_COUNTERS, shard) + 7] = int(wants)

    def load(self, shard: int) -> ShardLoad:
        at, own = self._line(_COUNTERS, shard), self._line(_RING, shard)
        words, reals = self._words, self._reals
        pulled_bytes, arrival_s = self.rings[shard].progress()
        own_bytes = words[at + 4]
        oldest_s = min(arrival_s, reals[at + 5]) if own_bytes else arrival_s
        return ShardLoad(
            backlog_bytes=max(0, words[at + 6] - pulled_bytes) + own_bytes,
            oldest_s=oldest_s,
            uploads_in_flight=words[at + 1],
            slots_used=reals[at + 2],
            slots_used_s=reals[at + 3],
            bytes_per_s=reals[own + 3],
            bytes_per_s_s=reals[own + 4],
        )

    def seen_s(self, shard: int) -> float:
        """When the shard last showed that its event loop runs."""
        return self._reals[self._line(_RING, shard) + 2]

    def set_seen_s(self, shard: int, now_s: float) -> None:
        self._reals[self._line(_RING, shard) + 2] = now_s

    def set_bytes_per_s(self, shard: int, bytes_per_s: float, now_s: float) -> None:
        """Set the rate of arrivals at the shard: see `scheduling.loads`."""
        at = self._line(_RING, shard)
        self._reals[at + 3] = bytes_per_s
        self._reals[at + 4] = now_s

    # ── PUTs: each board pays for those of both ──

    def puts(self, shard: int) -> int:
        """Return how many objects of this board the shard has uploaded."""
        return self._words[self._line(_RING, shard) + 6]

    def count_put(self, shard: int) -> None:
        self._words[self._line(_RING, shard) + 6] += 1

    def paid_puts(self, shard: int) -> int:
        """Return how many PUTs of the shard on the other board are paid for here."""
        return self._words[self._line(_PULLS, shard) + 1]

    def set_paid_puts(self, shard: int, puts: int) -> None:  # under the group's lock
        self._words[self._line(_PULLS, shard) + 1] = puts

    # ── lives: the supervisor writes them ──

    def life(self, shard: int) -> int:
        """Return the number of the shard's process.

        Batches that an earlier one pulled will never be uploaded.
        """
        return self._words[self._line(_LIFE, shard)]

    def bury(self, shard: int) -> None:
        """Clear the shard's counters and ring after its process has died.

        Called under its group's lock.
        """
        self._words[self._line(_LIFE, shard)] += 1
        for field in range(_WORDS):
            self._words[self._line(_COUNTERS, shard) + field] = 0
        self.set_bytes_per_s(shard, 0.0, 0.0)
        self.rings[shard].forget()


class Ring:
    """One shard's waiting batches."""

    def __init__(self, board: Board, shard: int) -> None:
        shape = board.shape
        self._words = board._words
        self._reals = board._reals
        self._slot_count = shape.slot_count
        self._slots_at = shape._slots_at + shard * shape.slot_count * SLOT_BYTES
        self._slots = board._bytes
        self._own = board._line(_RING, shard)
        self._pulls = board._line(_PULLS, shard)
        start = shape._arenas_at + shard * shape.arena_bytes
        self._arena = board._bytes[start : start + shape.arena_bytes]
        self.arena_bytes = shape.arena_bytes

    @property
    def tail(self) -> int:
        """The next ticket. Only the owner moves it."""
        return self._words[self._own]

    @property
    def head(self) -> int:
        """The first unpulled ticket. Only a puller moves it."""
        return self._words[self._pulls]

    def progress(self) -> tuple[int, float]:
        """Return the bytes ever pulled, and when the first unpulled batch arrived.

        The head alone decides, so a shard that dies while it pulls leaves no wrong count behind.
        """
        head = self.head
        if head < self.tail:
            slot = self._slot(head) // 8
            if self._words[slot] == head:
                return self._words[slot + _BEFORE_AT // 8], self._reals[slot + _ARRIVAL_AT // 8]
        return self._words[self._own + _PUBLISHED_BYTES], inf

    def _slot(self, ticket: int) -> int:
        return self._slots_at + ticket % self._slot_count * SLOT_BYTES

    # ── the owner ──

    def publish(self, arrival_s: float, description: bytes, records: Bytes, *, clear: bool) -> int | None:
        """Append a batch and return its ticket; None if the arena has no room now."""
        ticket = self.tail
        size_bytes = len(description) + len(records)
        position = self._room(ticket, size_bytes)
        if position is None:
            return None
        words = self._words
        before_bytes = words[self._own + _PUBLISHED_BYTES]
        start = position % self.arena_bytes
        middle, end = start + len(description), start + size_bytes
        self._arena[start:middle] = description
        self._arena[middle:end] = records
        published = _PUBLISHED.pack(ticket, arrival_s, position, before_bytes, len(description), len(records))
        checksum = crc32c(records, crc32c(description, crc32c(published)))
        slot = self._slot(ticket)
        words[(slot + _CLEAR_AT) // 8] = ticket if clear else -1
        self._slots[slot : slot + _PUBLISHED.size + 4] = published + _CHECKSUM.pack(checksum)
        words[self._own + 1] = position + size_bytes
        words[self._own + _PUBLISHED_BYTES] = before_bytes + len(records)
        words[self._own] = ticket + 1
        return ticket

    def _room(self, ticket: int, size_bytes: int) -> int | None:
        head = self.head
        if head == ticket:
            return 0 if size_bytes <= self.arena_bytes else None  # empty: start over, in memory that is warm
        position = self._words[self._own + 1]
        if position % self.arena_bytes + size_bytes > self.arena_bytes:
            position += self.arena_bytes - position % self.arena_bytes
        oldest: int = self._words[(self._slot(head) + _POSITION_AT) // 8]
        return position if position + size_bytes - oldest <= self.arena_bytes else None

    def set_clear(self, ticket: int) -> None:
        """Let a batch be sequenced: everything before it in its partition is released."""
        self._words[(self._slot(ticket) + _CLEAR_AT) // 8] = ticket

    def set_lost(self, ticket: int) -> None:
        """Never let a batch be sequenced: something before it was left behind."""
        self._words[(self._slot(ticket) + _CLEAR_AT) // 8] = _LOST - ticket

    def puller(self, ticket: int) -> PullerId | None:
        """Return the puller of a batch; None as long as it cannot be seen."""
        at = self._slot(ticket) + _PULLED_AT
        copy = bytes(self._slots[at : at + _PULLED.size + 4])
        found, shard, life, incarnation = _PULLED.unpack_from(copy)
        if found != ticket or not _checks(copy[: _PULLED.size], copy[_PULLED.size :]):
            return None
        return PullerId(shard, life, incarnation)

    def outcome(self, ticket: int) -> Outcome | None:
        at = self._slot(ticket) + _OUTCOME_AT
        # A copy, because it may be written this moment: what was checked must be what is read.
        copy = bytes(self._slots[at : at + 4 + _OUTCOME.size + MESSAGE_BYTES_MAX])
        found, error_code, base_offset, log_start_offset, journal_file, length = _OUTCOME.unpack_from(copy, 4)
        if found != ticket or length > MESSAGE_BYTES_MAX:
            return None
        end = 4 + _OUTCOME.size + length
        if not _checks(copy[4:end], copy[:4]):
            return None
        message = copy[end - length : end].decode(errors="replace") if length else None
        return Outcome(error_code, base_offset, log_start_offset, message, journal_file)

    def forget(self) -> None:
        """Drop all batches.

        Tickets go on, so that no late outcome can be mistaken for a new one.
        """
        after = self.tail + self._slot_count
        self._words[self._own + _PUBLISHED_BYTES] = 0
        self._words[self._own] = after
        self._words[self._pulls] = after

    # ── the puller ──

    def read(self, ticket: int) -> tuple[bytes, memoryview] | None:
        """Return copies of description and records; None if they are not whole.

        Their checksum is wrong then, or they cannot be seen yet.
        """
        slot = self._slot(ticket)
        copy = bytes(self._slots[slot : slot + _PUBLISHED.size + 4])
        published, checksum = copy[: _PUBLISHED.size], copy[_PUBLISHED.size :]
        found, _, position, _, described, recorded = _PUBLISHED.unpack(published)
        start = position % self.arena_bytes
        if found != ticket or start + described + recorded > self.arena_bytes:
            return None
        batch = bytes(self._arena[start : start + described + recorded])
        if not _checks(batch, checksum, crc32c(published)):
            return None
        return batch[:described], memoryview(batch)[described:]

    def mark_pulled(self, ticket: int, puller: PullerId) -> None:
        at = self._slot(ticket) + _PULLED_AT
        mark = _PULLED.pack(ticket, *puller)
        self._slots[at : at + _PULLED.size + 4] = mark + _CHECKSUM.pack(crc32c(mark))

    def move_head(self, ticket_end: int) -> None:
        """Give the tickets before `ticket_end` to the puller.

        Called under the group's lock.
        """
        self._words[self._pulls] = ticket_end

    def clearance(self, ticket: int) -> Clearance:
        slot = self._slot(ticket)
        clear = self._words[(slot + _CLEAR_AT) // 8]
        if self._words[slot // 8] != ticket or clear == _LOST - ticket:
            return Clearance.GONE
        return Clearance.CLEAR if clear == ticket else Clearance.WAIT

    def set_outcome(self, ticket: int, outcome: Outcome) -> None:
        slot = self._slot(ticket)
        if self._words[slot // 8] != ticket:
            return
        message = (outcome.message or "").encode()[:MESSAGE_BYTES_MAX]
        offsets = (outcome.base_offset, outcome.log_start_offset)
        packed = _OUTCOME.pack(ticket, outcome.error_code, *offsets, outcome.journal_file, len(message)) + message
        whole = _CHECKSUM.pack(crc32c(packed)) + packed
        self._slots[slot + _OUTCOME_AT : slot + _OUTCOME_AT + len(whole)] = whole


def _checks(content: bytes, checksum: bytes, initial: int = 0) -> bool:
    return crc32c(content, initial) == int.from_bytes(checksum, "little")
