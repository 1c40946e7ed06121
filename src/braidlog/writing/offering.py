"""A shard's own batches in other hands: put into its ring for any member of its group to pull, and answered when what
became of them comes back."""

import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import structlog
from kio.schema.errors import ErrorCode

from braidlog.objects.layout import BatchEntry
from braidlog.runtime.clock import Clock
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.board import Board, Outcome, Puller
from braidlog.writing.order import Order
from braidlog.writing.place import Place
from braidlog.writing.request import Draft, WriteRequest

log = structlog.get_logger(__name__)


class Description(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a batch needs besides its records to become part of an object."""

    topic_id: bytes
    partition: int
    timestamp_ms_min: int
    entry: BatchEntry


_encode = msgspec.msgpack.Encoder().encode
decode_description = msgspec.msgpack.Decoder(Description).decode


@dataclass(eq=False, slots=True)
class LoneDraft(Draft):
    """One large request that its own shard uploads, in the middle of others that are offered."""


@dataclass(eq=False, slots=True)
class _Offer:
    request: WriteRequest
    place: Place
    """A `LoneDraft` where the request is an object by itself."""
    arrival_s: float


class Offering:
    """In the order of arrival: first what others have pulled, then what they may pull, then what waits for room."""

    def __init__(
        self,
        board: Board,
        shard: int,
        order: Order,
        clock: Clock,
        *,
        ring: Callable[[int], None],
        upload_alone: Callable[[LoneDraft], None],
        fence: Callable[[str], Awaitable[None]],
        give_up_s: float,
        tasks: TaskGroup,
    ) -> None:
        """`fence(incarnation)` returns once nothing of that writer can be sequenced any more."""
        self._board = board
        self._shard = shard
        self._ring = board.rings[shard]
        self._order = order
        self._clock = clock
        self._wake = ring
        self._upload_alone = upload_alone
        self._fence = fence
        self._give_up_s = give_up_s
        self._tasks = tasks
        self._offered: dict[int, _Offer] = {}
        """By ticket, in order."""
        self._waiting: deque[_Offer] = deque()
        self._orphaned: dict[int, list[Place]] = {}
        """By incarnation of a writer that died: what it had pulled, until nothing of it can be sequenced any more."""

    @property
    def is_empty(self) -> bool:
        return not self._offered and not self._waiting

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def has_unpulled(self) -> bool:
        return bool(self._waiting) or self._ring.head < self._ring.tail

    @property
    def oldest_s(self) -> float:
        """When the oldest request arrived that nobody has pulled."""
        ring = self._ring
        head = ring.head
        if head < ring.tail and (offer := self._offered.get(head)) is not None:
            return offer.arrival_s
        return self._waiting[0].arrival_s if self._waiting else math.inf

    @property
    def open_count(self) -> int:
        return len(self._offered) + len(self._waiting)

    def add(self, request: WriteRequest, arrival_s: float, *, alone: bool) -> None:
        """Take the request's place in the order, and offer it, or upload it alone, as soon as that is possible."""
        key = (request.topic_id, request.partition)
        place = LoneDraft({key: [request]}, request.entry.length) if alone else Place()
        self._order.enter(key, place)
        self._board.add_arrived_bytes(self._shard, request.entry.length)
        self._waiting.append(_Offer(request, place, arrival_s))

    def publish(self) -> None:
        """Move what waits into the ring, as far as there is room."""
        while self._waiting:
            offer = self._waiting[0]
            ring = self._ring
            if isinstance(offer.place, LoneDraft):
                # What is pulled in one go is sequenced in one go. So nothing that comes before this one may still wait
                # to be pulled together with what comes after it.
                if ring.head < ring.tail:
                    break
                self._waiting.popleft()
                self._board.add_arrived_bytes(self._shard, -offer.request.entry.length)
                self._upload_alone(offer.place)
                continue
            if ring.tail - next(iter(self._offered), ring.tail) >= self._board.shape.slot_count:
                break
            request = offer.request
            description = _encode(
                Description(request.topic_id, request.partition, request.timestamp_ms_min, request.entry)
            )
            is_clear = not offer.place.predecessors_open
            ticket = ring.publish(offer.arrival_s, description, request.records, clear=is_clear)
            if ticket is None:
                break
            self._waiting.popleft()
            self._offered[ticket] = offer
            if not is_clear:
                offer.place.when_clear(lambda ticket=ticket: self._clear(ticket))  # type: ignore[misc]
        self._board.set_wants_room(self._shard, bool(self._waiting))

    def _clear(self, ticket: int) -> None:
        if ticket not in self._offered:
            return
        self._ring.set_clear(ticket)
        if ticket < self._ring.head:
            self._wake(self._ring.puller(ticket).shard)

    def collect(self) -> None:
        """Answer what has come back, and what never will."""
        head = self._ring.head
        overdue_s = self._clock.monotonic_s() - self._give_up_s
        for ticket in list(self._offered):
            if ticket >= head:
                break
            outcome = self._ring.outcome(ticket)
            if outcome is not None:
                self.finish(ticket, outcome)
                continue
            puller = self._ring.puller(ticket)
            if self._board.life(puller.shard) != puller.life:
                self._lose(ticket, puller)
            elif self._offered[ticket].arrival_s <= overdue_s:
                message = f"shard {puller.shard} took it and never answered"
                self.finish(ticket, Outcome(ErrorCode.not_enough_replicas_after_append, -1, -1, message))

    def finish(self, ticket: int, outcome: Outcome) -> None:
        offer = self._offered.pop(ticket, None)
        if offer is None:
            return
        # Successors may go on before the answer is written: their order is settled.
        offer.place.settle()
        _answer(offer.request, outcome)

    def _lose(self, ticket: int, puller: Puller) -> None:
        """Whoever pulled it has died. Its producer is told at once; but what comes after it in its partition must not
        be sequenced before it is certain that this one never will be."""
        offer = self._offered.pop(ticket)
        message = f"shard {puller.shard} died while it was uploading"
        _answer(offer.request, Outcome(ErrorCode.not_enough_replicas_after_append, -1, -1, message))
        orphaned = self._orphaned.get(puller.incarnation)
        if orphaned is not None:
            orphaned.append(offer.place)
            return
        self._orphaned[puller.incarnation] = [offer.place]
        self._tasks.spawn(self._settle_after_fence(puller.incarnation))

    async def _settle_after_fence(self, incarnation: int) -> None:
        try:
            await self._fence(incarnation.to_bytes(8, "big", signed=True).hex())
        finally:
            for place in self._orphaned.pop(incarnation):
                place.settle()

    def withdraw(self, limit_s: float | None = None) -> list[WriteRequest]:
        """Take back what nobody has pulled: all of it, or what arrived before `limit_s`. Called under the group's
        lock, if anything is in the ring."""
        withdrawn: list[_Offer] = []
        size_bytes = 0
        ring = self._ring
        head = end = ring.head
        for ticket in range(head, ring.tail):
            offer = self._offered[ticket]
            if limit_s is not None and offer.arrival_s > limit_s:
                break
            withdrawn.append(self._offered.pop(ticket))
            size_bytes += offer.request.entry.length
            end = ticket + 1
        if end == ring.tail:
            while self._waiting and (limit_s is None or self._waiting[0].arrival_s <= limit_s):
                offer = self._waiting.popleft()
                withdrawn.append(offer)
                size_bytes += offer.request.entry.length
        if withdrawn:
            ring.move_head(end, size_bytes)
        for offer in withdrawn:
            offer.place.settle()
        return [offer.request for offer in withdrawn]


def _answer(request: WriteRequest, outcome: Outcome) -> None:
    request.error_code = outcome.error_code
    request.error_message = outcome.message
    request.base_offset = outcome.base_offset
    request.log_start_offset = outcome.log_start_offset
    request.on_done(request)
