"""The memory that the shards of an agent share: who is in which group, what each holds, and what became of it.

Everything lies in one region. Counters are plain numbers with one writer each, on a cache line of their own:

    header │ groups, twice │ lines: group, counters, ring, pulls, life of each shard │ slots │ arenas

The groups lie there twice, and one word says which of the two counts: whoever dies while it regroups changes nothing.

A shard's *ring* holds its waiting batches: tickets count up from 0, ticket t uses slot t modulo the slot count, and
its bytes lie in the shard's arena. The owner appends at the tail; whoever pulls, under the group's lock, moves the
head. The arena's bytes are free again once the head has passed them, the slot once its outcome is known.

A slot names its ticket and carries checksums, written last. Whoever was paused in the middle of anything and goes on
when the slot has long been used again finds, or leaves behind, what does not check, and that is ignored.
"""

import struct
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c

from braidlog.objects.store import Bytes
from braidlog.scheduling.loads import ShardLoad

LINE_BYTES = 64
_WORDS = LINE_BYTES // 8

MAGIC = 0x6272616964626F61
SLOT_BYTES = 256
MESSAGE_BYTES_MAX = 120

_PUBLISHED = struct.Struct("<qdqIII")
"""Ticket, arrival, position in the arena, bytes of the description, bytes of the records, checksum of both."""
_OUTCOME = struct.Struct("<qiqqH")
"""Ticket, error code, base offset, log start offset, bytes of the message that follows."""
_CHECKSUM = struct.Struct("<I")
_POSITION_AT, _CLEAR_AT, _PULLED_AT, _OUTCOME_AT = 16, 40, 48, 72
_MESSAGE_AT = _OUTCOME_AT + _CHECKSUM.size + _OUTCOME.size

_CURRENT_MAP = 2
_GROUP, _COUNTERS, _RING, _PULLS, _LIFE = range(5)
_LINES = 5


class Clearance(Enum):
    """Whether a pulled batch may be sequenced."""

    CLEAR = "everything before it in its partition is released"
    WAIT = "something before it is still on its way"
    GONE = "its owner has died or given it up, so that nobody will ever say"


@dataclass(frozen=True, slots=True)
class BoardShape:
    """How many of everything. All shards of an agent must agree on it."""

    shard_count: int
    slot_count: int = 2048
    """Batches that a shard may have in other hands at the same time."""
    arena_bytes: int = 16 * 1024 * 1024
    """Bytes of batches that a shard may have waiting for others to pull."""

    @property
    def size_bytes(self) -> int:
        return self._arenas_at + self.shard_count * self.arena_bytes

    @property
    def _groups_at(self) -> int:
        return LINE_BYTES

    @property
    def _lines_at(self) -> int:
        return self._groups_at + -(-2 * self.shard_count * 8 // LINE_BYTES) * LINE_BYTES

    @property
    def _slots_at(self) -> int:
        return self._lines_at + _LINES * self.shard_count * LINE_BYTES

    @property
    def _arenas_at(self) -> int:
        slots_end = self._slots_at + self.shard_count * self.slot_count * SLOT_BYTES
        return -(-slots_end // 4096) * 4096


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch: what its owner tells the producer."""

    error_code: int
    base_offset: int
    log_start_offset: int
    message: str | None = None


class Puller(NamedTuple):
    """Who took a batch: the shard, which of its lives, and the writer whose name its objects carry."""

    shard: int
    life: int
    incarnation: int
    """Its first eight bytes, as a number."""


class Board:
    """The shared region, by name. It decides nothing, and locks nothing."""

    def __init__(self, memory: memoryview, shape: BoardShape) -> None:
        if len(memory) < shape.size_bytes:
            raise ValueError(f"{len(memory)} bytes of shared memory, where {shape.size_bytes} are needed")
        self.shape = shape
        self.shard_count = shape.shard_count
        region = memory[: shape.size_bytes]
        self._words = region.cast("q")
        self._reals = region.cast("d")
        self._bytes = region
        self._groups_at = shape._groups_at // 8
        self._lines_at = shape._lines_at // 8
        if self._words[0] not in {0, MAGIC} or self._words[1] not in {0, shape.shard_count}:
            raise ValueError("this shared memory belongs to something else")
        self._words[1] = shape.shard_count
        self._words[0] = MAGIC
        self.rings = [Ring(self, shard) for shard in range(shape.shard_count)]

    # ── groups: written under the lock of the group (of both groups, where they merge) ──

    def groups(self) -> list[int]:
        start = self._groups_at + self._words[_CURRENT_MAP] * self.shard_count
        return self._words[start : start + self.shard_count].tolist()

    def set_groups(self, groups: list[int]) -> None:
        other = 1 - self._words[_CURRENT_MAP]
        start = self._groups_at + other * self.shard_count
        for shard, group in enumerate(groups):
            self._words[start + shard] = group
        self._words[_CURRENT_MAP] = other

    def group_of(self, shard: int) -> int:
        return self._words[self._groups_at + self._words[_CURRENT_MAP] * self.shard_count + shard]

    def is_alone(self, shard: int) -> bool:
        """Whether the shard is a group of its own: asked for every request, so that it must be quick."""
        words = self._words
        at = self._groups_at + words[_CURRENT_MAP] * self.shard_count + shard
        return words[at] == shard and (shard + 1 == self.shard_count or words[at + 1] != shard)

    def _line(self, kind: int, shard: int) -> int:
        return self._lines_at + (kind * self.shard_count + shard) * _WORDS

    def turn(self, group: int) -> int:
        return self._words[self._line(_GROUP, group)]

    def advance_turn(self, group: int) -> None:
        self._words[self._line(_GROUP, group)] += 1

    def decided_s(self) -> list[float]:
        """By group, when it was last made or changed."""
        return [self._reals[self._line(_GROUP, group) + 1] for group in range(self.shard_count)]

    def set_decided_s(self, group: int, now_s: float) -> None:
        self._reals[self._line(_GROUP, group) + 1] = now_s

    def budget(self, group: int) -> tuple[float, float]:
        """Tokens, and when they were counted; (0, 0) for a group that never had any."""
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
        """Also the average until now: see `scheduling.loads`."""
        at = self._line(_COUNTERS, shard)
        self._words[at + 1] = count
        self._reals[at + 2] = slots_used
        self._reals[at + 3] = now_s

    def set_own(self, shard: int, size_bytes: int, oldest_s: float) -> None:
        """What waits in the shard's own batcher, where nobody else pulls it."""
        at = self._line(_COUNTERS, shard)
        self._words[at + 4] = size_bytes
        self._reals[at + 5] = oldest_s

    def add_arrived_bytes(self, shard: int, size_bytes: int) -> None:
        """Bytes that the shard has for others to pull: in its ring, or waiting for room in it."""
        self._words[self._line(_COUNTERS, shard) + 6] += size_bytes

    def wants_room(self, shard: int) -> bool:
        """Whether the shard waits for room in its own ring, so that whoever makes some should tell it."""
        return self._words[self._line(_COUNTERS, shard) + 7] != 0

    def set_wants_room(self, shard: int, wants: bool) -> None:
        self._words[self._line(_COUNTERS, shard) + 7] = int(wants)

    def load(self, shard: int) -> ShardLoad:
        at, own = self._line(_COUNTERS, shard), self._line(_RING, shard)
        words, reals, ring = self._words, self._reals, self.rings[shard]
        shared_bytes = words[at + 6] - ring.pulled_bytes
        oldest_s = reals[at + 5] if words[at + 4] else inf
        if ring.head < ring.tail and (arrival_s := ring.arrival_s(ring.head)) is not None:
            oldest_s = min(oldest_s, arrival_s)
        return ShardLoad(
            backlog_bytes=max(0, shared_bytes) + words[at + 4],
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
        """What has arrived at the shard lately: see `scheduling.loads`."""
        at = self._line(_RING, shard)
        self._reals[at + 3] = bytes_per_s
        self._reals[at + 4] = now_s

    # ── lives: the supervisor writes them ──

    def life(self, shard: int) -> int:
        """Which process the shard is, counted from its first. What an earlier life pulled will never be uploaded."""
        return self._words[self._line(_LIFE, shard)]

    def bury(self, shard: int) -> None:
        """The shard's process is gone: what it held goes with it. Called under its group's lock."""
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
        """The next ticket. The owner moves it."""
        return self._words[self._own]

    @property
    def head(self) -> int:
        """The first ticket that nobody has pulled. Whoever pulls moves it."""
        return self._words[self._pulls]

    @property
    def pulled_bytes(self) -> int:
        return self._words[self._pulls + 1]

    def _slot(self, ticket: int) -> int:
        return self._slots_at + ticket % self._slot_count * SLOT_BYTES

    # ── the owner ──

    def publish(self, arrival_s: float, description: bytes, records: Bytes, *, clear: bool) -> int | None:
        """Append a batch, and return its ticket; or None where the arena has no room for it now."""
        ticket = self.tail
        size_bytes = len(description) + len(records)
        position = self._room(ticket, size_bytes)
        if position is None:
            return None
        start = position % self.arena_bytes
        middle, end = start + len(description), start + size_bytes
        self._arena[start:middle] = description
        self._arena[middle:end] = records
        checksum = crc32c(records, crc32c(description))
        slot = self._slot(ticket)
        self._words[(slot + _PULLED_AT) // 8] = -1
        self._words[(slot + _CLEAR_AT) // 8] = ticket if clear else -1
        _OUTCOME.pack_into(self._slots, slot + _OUTCOME_AT + 4, -1, 0, 0, 0, 0)
        _PUBLISHED.pack_into(self._slots, slot, ticket, arrival_s, position, len(description), len(records), checksum)
        self._words[self._own + 1] = position + size_bytes
        self._words[self._own] = ticket + 1
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
        """Everything before it in its partition is released: it may be sequenced."""
        self._words[(self._slot(ticket) + _CLEAR_AT) // 8] = ticket

    def puller(self, ticket: int) -> Puller:
        at = (self._slot(ticket) + _PULLED_AT) // 8
        shard, life, incarnation = self._words[at : at + 3]
        return Puller(shard, life, incarnation)

    def outcome(self, ticket: int) -> Outcome | None:
        at = self._slot(ticket) + _OUTCOME_AT
        found, error_code, base_offset, log_start_offset, length = _OUTCOME.unpack_from(self._slots, at + 4)
        if found != ticket or length > MESSAGE_BYTES_MAX:
            return None
        end = self._slot(ticket) + _MESSAGE_AT + length
        if crc32c(self._slots[at + 4 : end]) != _CHECKSUM.unpack_from(self._slots, at)[0]:
            return None
        message = bytes(self._slots[end - length : end]).decode(errors="replace") if length else None
        return Outcome(error_code, base_offset, log_start_offset, message)

    def forget(self) -> None:
        """Nothing in here counts any more. Tickets go on, so that no late answer can be mistaken for a new one."""
        after = self.tail + self._slot_count
        self._words[self._pulls + 1] = 0
        self._words[self._own] = after
        self._words[self._pulls] = after

    # ── whoever pulls ──

    def arrival_s(self, ticket: int) -> float | None:
        found, arrival_s, *_ = _PUBLISHED.unpack_from(self._slots, self._slot(ticket))
        return arrival_s if found == ticket else None

    def read(self, ticket: int) -> tuple[bytes, memoryview] | None:
        """Description and records, copied; None where they do not check."""
        slot = self._slot(ticket)
        found, _, position, described, recorded, checksum = _PUBLISHED.unpack_from(self._slots, slot)
        start = position % self.arena_bytes
        if found != ticket or start + described + recorded > self.arena_bytes:
            return None
        copy = bytes(self._arena[start : start + described + recorded])
        if crc32c(copy) != checksum or self._words[slot // 8] != ticket:
            return None
        return copy[:described], memoryview(copy)[described:]

    def records_bytes(self, ticket: int) -> int:
        return int(_PUBLISHED.unpack_from(self._slots, self._slot(ticket))[4])

    def mark_pulled(self, ticket: int, puller: Puller) -> None:
        at = (self._slot(ticket) + _PULLED_AT) // 8
        self._words[at + 2] = puller.incarnation
        self._words[at + 1] = puller.life
        self._words[at] = puller.shard

    def move_head(self, ticket_end: int, size_bytes: int) -> None:
        """From here on the tickets before `ticket_end` are the puller's. Called under the group's lock."""
        self._words[self._pulls + 1] += size_bytes
        self._words[self._pulls] = ticket_end

    def clearance(self, ticket: int) -> Clearance:
        slot = self._slot(ticket)
        if self._words[slot // 8] != ticket:
            return Clearance.GONE
        return Clearance.CLEAR if self._words[(slot + _CLEAR_AT) // 8] == ticket else Clearance.WAIT

    def set_outcome(self, ticket: int, outcome: Outcome) -> None:
        slot = self._slot(ticket)
        if self._words[slot // 8] != ticket:
            return
        message = (outcome.message or "").encode()[:MESSAGE_BYTES_MAX]
        packed = (
            _OUTCOME.pack(ticket, outcome.error_code, outcome.base_offset, outcome.log_start_offset, len(message))
            + message
        )
        whole = _CHECKSUM.pack(crc32c(packed)) + packed
        self._slots[slot + _OUTCOME_AT : slot + _OUTCOME_AT + len(whole)] = whole
