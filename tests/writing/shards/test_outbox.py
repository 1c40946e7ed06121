"""A shard's own batches in other hands: what becomes of them, and of those behind them, when a shard dies."""

import asyncio
from typing import cast

from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.objects.layout import BatchEntry
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.order import Order
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.board import Board, BoardShape, Clearance, Outcome, PullerId
from braidlog.writing.shards.dead_writers import DeadWriters
from braidlog.writing.shards.link import ShardLink
from braidlog.writing.shards.outbox import LoneDraft, Outbox

TOPIC = b"t" * 16
SHAPE = BoardShape(2, slot_count=8, arena_bytes=4096)
OWNER, OTHER = 0, 1
INCARNATION = 0x0102030405060708


class Table:
    """The owner's side of a board, with the other shard played by the test."""

    def __init__(self) -> None:
        self.board = Board(memoryview(bytearray(SHAPE.size_bytes)), SHAPE)
        self.shard = OWNER
        self.ring = self.board.rings[OWNER]
        self.clock = FakeClock()
        self.done: list[WriteRequest] = []
        self.woken: list[int] = []
        self.alone: list[LoneDraft] = []
        self.fenced: list[str] = []
        self.fence = asyncio.Event()
        self.order = Order(self)
        self.drafts: list[Draft] = []
        self.outbox = Outbox(
            cast(ShardLink, self),
            self.order,
            self.clock,
            DeadWriters(self._fence, TaskGroup("test")),
            wake=self.woken.append,
            upload_alone=self.alone.append,
            give_up_s=60.0,
        )

    def submit(self, draft: Draft) -> None:
        self.drafts.append(draft)

    async def _fence(self, incarnation: str) -> None:
        self.fenced.append(incarnation)
        await self.fence.wait()

    def add(self, partition: int, size: int = 10, *, alone: bool = False) -> WriteRequest:
        entry = BatchEntry(size, 1, 0, 5)
        request = WriteRequest(TOPIC, partition, b"x" * size, entry, 5, -1, self.done.append)
        self.outbox.add(request, self.clock.monotonic_s(), alone=alone)
        self.outbox.publish()
        return request

    def pull(self, count: int = 1) -> list[int]:
        tickets = list(range(self.ring.head, self.ring.head + count))
        for ticket in tickets:
            self.ring.mark_pulled(ticket, PullerId(OTHER, self.board.life(OTHER), INCARNATION))
        self.ring.move_head(tickets[-1] + 1)
        return tickets


async def test_an_outcome_comes_back_and_lets_the_next_one_go() -> None:
    table = Table()
    first, second = table.add(0), table.add(0)
    [ticket] = table.pull()
    [behind] = table.pull()
    assert table.ring.clearance(ticket) is Clearance.CLEAR
    assert table.ring.clearance(behind) is Clearance.WAIT
    table.ring.set_outcome(ticket, Outcome(0, 41, 3))
    table.outbox.collect()
    assert table.done == [first]
    assert (first.error_code, first.base_offset, first.log_start_offset) == (0, 41, 3)
    assert table.ring.clearance(behind) is Clearance.CLEAR
    assert table.woken == [OTHER]
    table.ring.set_outcome(behind, Outcome(int(ErrorCode.not_enough_replicas), -1, -1, "no"))
    table.outbox.collect()
    assert (second.error_code, second.error_message) == (ErrorCode.not_enough_replicas, "no")
    assert table.outbox.is_empty


async def test_nothing_follows_what_a_dead_shard_had_before_that_shard_is_fenced_off() -> None:
    table = Table()
    first = table.add(0)
    table.pull()
    table.add(0)
    [behind] = table.pull()
    assert table.ring.clearance(behind) is Clearance.WAIT
    table.board.bury(OTHER)
    table.ring.mark_pulled(behind, PullerId(OTHER, table.board.life(OTHER), 9))  # pulled again, by its next life
    table.outbox.collect()
    # Its producer knows at once; whoever comes next must wait, because the dead one's commit may be on its way.
    assert first.error_code == ErrorCode.not_enough_replicas_after_append
    await asyncio.sleep(0)
    assert table.fenced == ["0102030405060708"]
    assert table.ring.clearance(behind) is Clearance.WAIT
    table.fence.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert table.ring.clearance(behind) is Clearance.CLEAR


async def test_a_large_request_goes_alone_and_nothing_is_pulled_around_it() -> None:
    table = Table()
    table.add(0)
    large = table.add(0, 2000, alone=True)
    table.add(0)
    # What comes after it must not be pulled together with what comes before it.
    assert table.ring.tail - table.ring.head == 1
    assert not table.alone
    [before] = table.pull()
    table.outbox.publish()
    [draft] = table.alone
    assert draft.partitions == {(TOPIC, 0): [large]}
    assert draft.predecessors_open == 1
    [after] = table.pull()
    assert table.ring.clearance(after) is Clearance.WAIT
    table.ring.set_outcome(before, Outcome(0, 0, 0))
    table.outbox.collect()
    assert draft.predecessors_open == 0
    assert table.ring.clearance(after) is Clearance.WAIT
    draft.settle()
    assert table.ring.clearance(after) is Clearance.CLEAR


async def test_what_was_taken_back_still_waits_for_what_was_pulled() -> None:
    table = Table()
    table.add(0)
    [pulled] = table.pull()
    taken_back = table.add(0)
    assert table.outbox.withdraw() == [taken_back]
    draft = Draft({(TOPIC, 0): [taken_back]}, 10)
    table.order.submit(draft)
    assert draft.predecessors_open == 1
    table.ring.set_outcome(pulled, Outcome(0, 0, 0))
    table.outbox.collect()
    assert draft.predecessors_open == 0
    assert table.board.load(OWNER).backlog_bytes == 0


async def test_what_nobody_answers_is_given_up_in_time() -> None:
    table = Table()
    request = table.add(0)
    table.pull()
    table.clock.advance(61.0)
    table.outbox.collect()
    assert request.error_code == ErrorCode.not_enough_replicas_after_append


async def test_more_than_the_ring_holds_waits_for_room() -> None:
    table = Table()
    requests = [table.add(0, 1000) for _ in range(6)]
    assert table.ring.tail < len(requests)
    assert table.board.wants_room(OWNER)
    assert table.board.load(OWNER).backlog_bytes == 6000
    while table.ring.head < table.ring.tail:
        for ticket in table.pull(table.ring.tail - table.ring.head):
            table.ring.set_outcome(ticket, Outcome(0, ticket, 0))
        table.outbox.publish()
        table.outbox.collect()
    assert table.done == requests
    assert not table.board.wants_room(OWNER)
