"""Pulls batches of a shard group into one draft.

They come from the rings of its members. Each result goes back to its owner.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from kio.schema.errors import ErrorCode

from braidlog.runtime.waiters import Waiters
from braidlog.writing.order_node import OrderLost
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.board import NO_FILE, Board, Clearance, Outcome, PullerId
from braidlog.writing.shards.file_states import FileState, FileStates
from braidlog.writing.shards.outbox import decode_description

log = structlog.get_logger(__name__)

REQUESTS_PER_PULL_MAX = 1000


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

    puller: "Puller" = field(kw_only=True)
    firsts: list[_First] = field(default_factory=list)
    journal_file: int = NO_FILE
    """Its number among the puller's journal files, once it is one."""

    async def wait_predecessors(self) -> None:
        while not self.is_clear():
            await self.puller.wait_news()

    def open_file(self) -> "PulledFile":
        """Note that the draft is a journal file now."""
        return self.puller.open_file(self)

    def is_clear(self) -> bool:
        found = [self.puller.clearance(first) for first in self.firsts]
        if Clearance.GONE in found:
            raise OrderLost("nobody knows what comes before batches of another shard", help="Send them again.")
        return Clearance.WAIT not in found


class PulledFile:
    """Tells the owners of a journal file's batches how far the file is."""

    def __init__(
        self, files: FileStates, shard: int, number: int, owners: set[int], wake: Callable[[int], None]
    ) -> None:
        self._files = files
        self._shard = shard
        self._number = number
        self._owners = owners
        self._wake = wake

    def handed_over(self) -> None:
        self._tell(FileState.HANDED_OVER)

    def sequenced(self) -> None:
        self._tell(FileState.SEQUENCED)

    def left(self) -> None:
        self._tell(FileState.LEFT)

    def _tell(self, state: FileState) -> None:
        self._files.set_state(self._shard, self._number, state)
        for owner in self._owners:
            self._wake(owner)


class Puller:
    """The pulling side of one shard. The owning side is `Outbox`."""

    def __init__(
        self,
        board: Board,
        shard: int,
        incarnation: str,
        files: FileStates,
        *,
        wake: Callable[[int], None],
        finish_own: Callable[[int, Outcome], object],
        on_answered: Callable[[], None],
    ) -> None:
        """`on_answered` is called when all batches of a draft have their results."""
        self._board = board
        self._files = files
        self._on_answered = on_answered
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
        draft = PulledDraft(puller=self, on_answered=self._on_answered)
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
                        partial(self._done, draft, owner, life, ticket),
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

    def clearance(self, first: _First) -> Clearance:
        if self._board.life(first.owner) != first.life:
            return Clearance.GONE
        return self._board.rings[first.owner].clearance(first.ticket)

    def open_file(self, draft: PulledDraft) -> PulledFile:
        """Give a draft that is stored in the journal a number, which its owners will hear."""
        shard = self._self.shard
        draft.journal_file = self._files.open(shard)
        owners = {first.owner for first in draft.firsts}
        return PulledFile(self._files, shard, draft.journal_file, owners, self._wake)

    def _done(self, draft: PulledDraft, owner: int, life: int, ticket: int, request: WriteRequest) -> None:
        outcome = Outcome(
            request.error_code,
            request.base_offset,
            request.log_start_offset,
            request.error_message,
            draft.journal_file,
        )
        self._tell(owner, life, ticket, outcome)

    def _tell(self, owner: int, life: int, ticket: int, outcome: Outcome) -> None:
        if self._board.life(owner) != life:
            return
        if owner == self._self.shard:
            self._finish_own(ticket, outcome)
        else:
            self._board.rings[owner].set_outcome(ticket, outcome)
            self._wake(owner)

    async def wait_news(self) -> None:
        """Wait until somebody wakes this shard."""
        await self._waiting.wait()

    def look_again(self) -> None:
        """Let drafts that wait for clearance look again.

        Somebody has woken this shard.
        """
        self._waiting.wake_all()
