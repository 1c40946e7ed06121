"""A shard's own batches on offer to its shard group.

Any member may pull them from its ring and upload them.

Their results come back through the shared memory, and are passed on from here.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog
from kio.schema.errors import ErrorCode

from braidlog.objects.layout import BatchEntry
from braidlog.runtime.clock import Clock
from braidlog.writing.order import Order
from braidlog.writing.order_node import OrderNode
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.board import NO_FILE, Outcome, PullerId
from braidlog.writing.shards.dead_writers import LostBatches
from braidlog.writing.shards.journaled_batches import JournaledBatches
from braidlog.writing.shards.link import ShardLink

log = structlog.get_logger(__name__)


class Description(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The data of a batch, besides its records, that make it part of an object."""

    topic_id: bytes
    partition: int
    timestamp_ms_min: int
    entry: BatchEntry


_encode = msgspec.msgpack.Encoder().encode
decode_description = msgspec.msgpack.Decoder(Description).decode


@dataclass(eq=False, slots=True)
class LoneDraft(Draft):
    """One large request that its own shard uploads.

    The shard shares the smaller ones.
    """


@dataclass(eq=False, slots=True)
class _Outgoing:
    """A request in the outbox."""

    request: WriteRequest
    node: OrderNode
    """A `LoneDraft` if the request is an object by itself."""
    arrival_s: float


@dataclass(frozen=True, slots=True)
class Fates:
    """The parts that follow batches which are answered and may yet be sequenced."""

    lost: LostBatches
    """Their pullers died."""
    journaled: JournaledBatches
    """Their pullers journaled them."""


class Outbox:
    """Holds batches in the order of arrival.

    First come those pulled, then those to pull, then those waiting for room.
    """

    def __init__(
        self,
        link: ShardLink,
        order: Order,
        clock: Clock,
        fates: Fates,
        *,
        wake: Callable[[int], None],
        upload_alone: Callable[[LoneDraft], None],
        give_up_s: float,
    ) -> None:
        self._board = link.board
        self._shard = link.shard
        self._ring = link.board.rings[link.shard]
        self._order = order
        self._clock = clock
        self._lost = fates.lost
        self._journaled = fates.journaled
        self._wake = wake
        self._upload_alone = upload_alone
        self._give_up_s = give_up_s
        self._published: dict[int, _Outgoing] = {}
        """Batches in the ring, or pulled from it and not answered, by ticket and in order."""
        self._waiting: deque[_Outgoing] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._published and not self._waiting

    @property
    def has_news_to_come(self) -> bool:
        """Whether other shards may still say something about this shard's batches."""
        return not self.is_empty or not self._journaled.is_empty

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def has_unpulled(self) -> bool:
        return bool(self._waiting) or self._ring.head < self._ring.tail

    @property
    def oldest_s(self) -> float:
        """When the oldest unpulled request arrived."""
        ring = self._ring
        head = ring.head
        if head < ring.tail and (outgoing := self._published.get(head)) is not None:
            return outgoing.arrival_s
        return self._waiting[0].arrival_s if self._waiting else math.inf

    @property
    def open_count(self) -> int:
        return len(self._published) + len(self._waiting)

    def add(self, request: WriteRequest, arrival_s: float, *, alone: bool) -> None:
        """Add the request to the order, and publish it, or upload it `alone`.

        Either happens as soon as it is possible.
        """
        key = (request.topic_id, request.partition)
        node = LoneDraft({key: [request]}, request.entry.length) if alone else OrderNode()
        self._order.enter(key, node)
        self._board.add_arrived_bytes(self._shard, request.entry.length)
        self._waiting.append(_Outgoing(request, node, arrival_s))

    def publish(self) -> None:
        """Move waiting batches into the ring, as far as there is room."""
        self._fill()
        if self._waiting and not self._board.wants_room(self._shard):
            # A puller that made room before it could see this flag has woken nobody.
            self._board.set_wants_room(self._shard, True)
            self._fill()
        if not self._waiting:
            self._board.set_wants_room(self._shard, False)

    def _fill(self) -> None:
        while self._waiting:
            outgoing = self._waiting[0]
            ring = self._ring
            if isinstance(outgoing.node, LoneDraft):
                # Batches that are pulled together are sequenced together. So none that comes before this one may still
                # wait to be pulled together with one that comes after it.
                if ring.head < ring.tail:
                    break
                self._waiting.popleft()
                self._board.add_arrived_bytes(self._shard, -outgoing.request.entry.length)
                self._upload_alone(outgoing.node)
                continue
            if ring.tail - next(iter(self._published), ring.tail) >= self._board.shape.slot_count:
                break
            request = outgoing.request
            description = _encode(
                Description(request.topic_id, request.partition, request.timestamp_ms_min, request.entry)
            )
            node = outgoing.node
            is_clear = not node.predecessors_open and not node.is_lost
            ticket = ring.publish(outgoing.arrival_s, description, request.records, clear=is_clear)
            if ticket is None:
                break
            self._waiting.popleft()
            self._published[ticket] = outgoing
            if not is_clear:
                node.when_clear(lambda ticket=ticket, node=node: self._clear(ticket, node))  # type: ignore[misc]

    def _clear(self, ticket: int, node: OrderNode) -> None:
        # A journaled batch may be answered by now, while its file still waits. If its slot has another batch since, the
        # file does not wait any more.
        if ticket + self._board.shape.slot_count < self._ring.tail:
            return
        if node.is_lost:
            self._ring.set_lost(ticket)
        else:
            self._ring.set_clear(ticket)
        if ticket < self._ring.head and (puller := self._ring.puller(ticket)) is not None:
            self._wake(puller.shard)

    def collect(self) -> None:
        """Pass on the results that have come back, and give up those that never will."""
        head = self._ring.head
        overdue_s = self._clock.monotonic_s() - self._give_up_s
        for ticket in list(self._published):
            if ticket >= head:
                break
            outcome = self._ring.outcome(ticket)
            if outcome is not None and self.finish(ticket, outcome):
                continue
            puller = self._ring.puller(ticket)
            if puller is not None and self._board.life(puller.shard) != puller.life:
                # The dead shard says nothing more, but may have done so just before.
                outcome = self._ring.outcome(ticket)
                if outcome is not None:
                    self.finish(ticket, outcome)
                else:
                    self._lose(ticket, puller)
            elif self._published[ticket].arrival_s <= overdue_s:
                who = f"shard {puller.shard}" if puller is not None else "another shard"
                message = f"{who} took it and never answered"
                self.finish(ticket, Outcome(ErrorCode.not_enough_replicas_after_append, -1, -1, message))
        self._journaled.look()

    def finish(self, ticket: int, outcome: Outcome) -> bool:
        """Pass on a result. Return False if that must wait.

        It must if the batch is journaled, and its puller cannot be seen yet.
        """
        outgoing = self._published.get(ticket)
        if outgoing is None:
            return True
        request = outgoing.request
        if outcome.journal_file == NO_FILE:
            # Successors may go on before the result is passed back: their order is settled.
            outgoing.node.settle()
        else:
            puller = self._ring.puller(ticket)
            if puller is None:
                return False
            self._journaled.add(puller, outcome.journal_file, outgoing.node, (request.topic_id, request.partition))
        del self._published[ticket]
        _answer(request, outcome)
        return True

    def _lose(self, ticket: int, puller: PullerId) -> None:
        """Fail a batch whose puller has died.

        Its producer hears of it at once. But later batches of its partition must not be sequenced before it is certain
        that this one never will be.
        """
        outgoing = self._published.pop(ticket)
        message = f"shard {puller.shard} died while it was uploading"
        _answer(outgoing.request, Outcome(ErrorCode.not_enough_replicas_after_append, -1, -1, message))
        self._lost.settle_later(puller.incarnation, outgoing.node)

    def withdraw(self, limit_s: float | None = None) -> list[WriteRequest]:
        """Take back unpulled batches: all, or those that arrived before `limit_s`.

        Called under the group's lock, if anything is in the ring.
        """
        withdrawn: list[_Outgoing] = []
        ring = self._ring
        head = end = ring.head
        for ticket in range(head, ring.tail):
            outgoing = self._published[ticket]
            if limit_s is not None and outgoing.arrival_s > limit_s:
                break
            withdrawn.append(self._published.pop(ticket))
            end = ticket + 1
        if end == ring.tail:
            while self._waiting and (limit_s is None or self._waiting[0].arrival_s <= limit_s):
                outgoing = self._waiting.popleft()
                withdrawn.append(outgoing)
                self._board.add_arrived_bytes(self._shard, -outgoing.request.entry.length)
        if end > head:
            ring.move_head(end)
        for outgoing in withdrawn:
            outgoing.node.settle()
        return [outgoing.request for outgoing in withdrawn]


def _answer(request: WriteRequest, outcome: Outcome) -> None:
    request.error_code = outcome.error_code
    request.error_message = outcome.message
    request.base_offset = outcome.base_offset
    request.log_start_offset = outcome.log_start_offset
    request.way_back(request)
