"""Other shards' batches in this shard's hands: pulled from their rings, uploaded in one object, and what became of them
told to their owners."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from kio.schema.errors import ErrorCode

from braidlog.runtime.errors import BraidError, Remedy
from braidlog.writing.board import Board, Clearance, Outcome, Puller
from braidlog.writing.offering import decode_description
from braidlog.writing.request import Draft, WriteRequest

log = structlog.get_logger(__name__)

REQUESTS_PER_PULL_MAX = 1000


class OrderLost(BraidError):
    """An object must follow something that nobody can tell of any more, so it is not sequenced at all."""

    remedy = Remedy.RETRY


@dataclass(frozen=True, slots=True)
class _First:
    """The first batch of a partition that was pulled from an owner: the ones behind it follow by themselves."""

    owner: int
    life: int
    ticket: int


@dataclass(eq=False, slots=True)
class PulledDraft(Draft):
    """An object made of several shards' batches. Each owner keeps the order of its own, and says when the first of each
    partition may be sequenced."""

    firsts: list[_First] = field(default_factory=list)
    clearance: Callable[[_First], Clearance] = field(default=lambda _: Clearance.GONE)
    waiting: dict["PulledDraft", asyncio.Future[None]] = field(default_factory=dict)
    """All drafts of this shard that wait to be cleared."""

    async def wait_turn(self) -> None:
        while not self.is_clear():
            rung: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting[self] = rung
            try:
                await rung
            finally:
                self.waiting.pop(self, None)

    def is_clear(self) -> bool:
        found = [self.clearance(first) for first in self.firsts]
        if Clearance.GONE in found:
            raise OrderLost("a shard died before it could say what comes before its batches", help="Send them again.")
        return Clearance.WAIT not in found


class Pulling:
    def __init__(
        self,
        board: Board,
        shard: int,
        incarnation: str,
        *,
        ring: Callable[[int], None],
        finish_own: Callable[[int, Outcome], None],
    ) -> None:
        self._board = board
        self._self = Puller(
            shard, board.life(shard), int.from_bytes(bytes.fromhex(incarnation)[:8], "big", signed=True)
        )
        self._wake = ring
        self._finish_own = finish_own
        self._waiting: dict[PulledDraft, asyncio.Future[None]] = {}

    def pull(self, shards: Sequence[int], bytes_target: int) -> PulledDraft | None:
        """Take what the group's members have waiting, oldest first within each. Called under the group's lock, and
        returns before anything is awaited."""
        draft = PulledDraft(clearance=self._clearance, waiting=self._waiting)
        count = 0
        start = shards.index(self._self.shard) if self._self.shard in shards else 0
        for owner in [*shards[start:], *shards[:start]]:
            ring, life = self._board.rings[owner], self._board.life(owner)
            ticket, tail = ring.head, ring.tail
            firsts: set[tuple[bytes, int]] = set()
            taken_bytes = 0
            while ticket < tail and draft.size_bytes < bytes_target and count < REQUESTS_PER_PULL_MAX:
                found = ring.read(ticket)
                ring.mark_pulled(ticket, self._self)
                length = ring.records_bytes(ticket)
                if found is None:
                    log.error("a batch in shared memory does not check", owner=owner, ticket=ticket)
                    self._tell(owner, life, ticket, Outcome(ErrorCode.kafka_storage_error, -1, -1, "damaged in memory"))
                else:
                    described = decode_description(found[0])
                    key = (described.topic_id, described.partition)
                    request = WriteRequest(
                        described.topic_id,
                        described.partition,
                        found[1],
                        described.entry,
                        described.timestamp_ms_min,
                        -1,
                        partial(self._done, owner, life, ticket),
                    )
                    draft.groups.setdefault(key, []).append(request)
                    draft.size_bytes += length
                    if key not in firsts:
                        firsts.add(key)
                        draft.firsts.append(_First(owner, life, ticket))
                taken_bytes += length
                count += 1
                ticket += 1
            if taken_bytes:
                ring.move_head(ticket, taken_bytes)
                if self._board.wants_room(owner):
                    self._wake(owner)
        return draft if draft.groups else None

    def _clearance(self, first: _First) -> Clearance:
        if self._board.life(first.owner) != first.life:
            return Clearance.GONE
        return self._board.rings[first.owner].clearance(first.ticket)

    def _done(self, owner: int, life: int, ticket: int, request: WriteRequest) -> None:
        outcome = Outcome(request.error_code, request.base_offset, request.log_start_offset, request.error_message)
        self._tell(owner, life, ticket, outcome)

    def _tell(self, owner: int, life: int, ticket: int, outcome: Outcome) -> None:
        if self._board.life(owner) != life:
            return
        if owner == self._self.shard:
            self._finish_own(ticket, outcome)
        else:
            self._board.rings[owner].set_outcome(ticket, outcome)
            self._wake(owner)

    def look_again(self) -> None:
        """Somebody rang: drafts that wait to be cleared look whether they are."""
        for rung in self._waiting.values():
            if not rung.done():
                rung.set_result(None)
