"""Pulls batches of a shard group into one draft.

They come from the rings of its members. Each result goes back to its owner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from kio.schema.errors import ErrorCode

from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.waiters import Waiters
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.board import Board, Clearance, Outcome, PullerId
from braidlog.writing.shards.outbox import decode_description

log = structlog.get_logger(__name__)

REQUESTS_PER_PULL_MAX = 1000


class OrderLost(BraidError):
    """An object must follow batches whose fate nobody knows any more.

    So it is not sequenced at all.
    """

    remedy = Remedy.RETRY


@dataclass(frozen=True, slots=True)
class _First:
    """The first batch of a partition that was pulled from an owner.

    The ones behind it follow by themselves.
    """

    owner: int
    life: int
    ticket: int


@dataclass(eq=False, slots=True)
class PulledDraft(Draft):
    """A draft with batches of several shards.

    Each owner keeps the order of its own batches, and says when the first of each partition may be sequenced.
    """

    firsts: list[_First] = field(default_factory=list)
    clearance: Callable[[_First], Clearance] = field(default=lambda _: Clearance.GONE)
    waiting: Waiters = field(default_factory=Waiters)
    """All drafts of this shard that wait to be cleared."""

    async def wait_predecessors(self) -> None:
        while not self.is_clear():
            await self.waiting.wait()

    def is_clear(self) -> bool:
        found = [self.clearance(first) for first in self.firsts]
        if Clearance.GONE in found:
            raise OrderLost("a shard died, and nobody knows what comes before its batches", help="Send them again.")
        return Clearance.WAIT not in found


class Puller:
    """The pulling side of one shard. The owning side is `Outbox`."""

    def __init__(
        self,
        board: Board,
        shard: int,
        incarnation: str,
        *,
        wake: Callable[[int], None],
        finish_own: Callable[[int, Outcome], None],
    ) -> None:
        self._board = board
        self._self = PullerId(
            shard, board.life(shard), int.from_bytes(bytes.fromhex(incarnation)[:8], "big", signed=True)
        )
        self._wake = wake
        self._finish_own = finish_own
        self._waiting = Waiters()
        self._unseen: dict[int, int] = {}
        """The ticket of each owner that was published but could not be read the last time."""

    def pull(self, shards: Sequence[int], bytes_target: int) -> PulledDraft | None:
        """Take waiting batches of the group's members, the oldest first within each.

        Called under the group's lock, and returns before anything is awaited.
        """
        draft = PulledDraft(clearance=self._clearance, waiting=self._waiting)
        count = 0
        start = shards.index(self._self.shard) if self._self.shard in shards else 0
        for owner in [*shards[start:], *shards[:start]]:
            ring, life = self._board.rings[owner], self._board.life(owner)
            head, tail = ring.head, ring.tail
            ticket = head
            firsts: set[tuple[bytes, int]] = set()
            while ticket < tail and draft.size_bytes < bytes_target and count < REQUESTS_PER_PULL_MAX:
                found = ring.read(ticket)
                if found is None and self._unseen.get(owner) != ticket:
                    self._unseen[owner] = ticket  # its bytes may follow its ticket: look again next time
                    break
                ring.mark_pulled(ticket, self._self)
                if found is None:
                    log.error("a batch in shared memory is damaged", owner=owner, ticket=ticket)
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
                    draft.partitions.setdefault(key, []).append(request)
                    draft.size_bytes += len(found[1])
                    if key not in firsts:
                        firsts.add(key)
                        draft.firsts.append(_First(owner, life, ticket))
                count += 1
                ticket += 1
            if ticket > head:
                ring.move_head(ticket)
                if self._board.wants_room(owner):
                    self._wake(owner)
        return draft if draft.partitions else None

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
        """Let drafts that wait for clearance look again.

        Somebody has woken this shard.
        """
        self._waiting.wake_all()
