"""A shard's own batches in other hands: what becomes of them, and of those behind them, when a shard dies."""

import asyncio
from typing import cast

import pytest
from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock
from tests.writing.shards.shard_rig import Clients

from braidlog.objects.layout import BatchEntry
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.journal.unsequenced import Partition, Unsequenced
from braidlog.writing.order import Order
from braidlog.writing.order_node import OrderLost
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.shards.board import Board, BoardShape, Clearance, Outcome, PullerId
from braidlog.writing.shards.dead_writers import DeadWriters
from braidlog.writing.shards.file_states import FileState, FileStates
from braidlog.writing.shards.journaled_batches import JournaledBatches
from braidlog.writing.shards.link import ShardLink
from braidlog.writing.shards.outbox import Fates, LoneDraft, Outbox

TOPIC = b"t" * 16
SHAPE = BoardShape(2, slot_count=8, arena_bytes=4096)
OWNER, OTHER = 0, 1
FILE_COUNT = 8
INCARNATION = 0x0102030405060708


class Table:
    """The owner's side of a board, with the other shard played by the test."""

    def __init__(self, *, taken_over: bool = False) -> None:
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
        self.files = FileStates(memoryview(bytearray(FileStates.size_bytes(2, FILE_COUNT))), 2, FILE_COUNT)
        self.emptied: list[Partition] = []
        self.left: list[Partition] = []
        self.unsequenced = Unsequenced(Clients(), on_empty=self.emptied.append, on_left=self.left.extend)
        self.journaled = JournaledBatches(self.files, self.board, self.unsequenced, taken_over=taken_over)
        self.outbox = Outbox(
            cast(ShardLink, self),
            self.order,
            self.clock,
            Fates(DeadWriters(self._fence, TaskGroup("test")), self.journaled),
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


def journal(table: Table, ticket: int, *, partition: int = 0, taken_over: bool = False) -> int:
    """The other shard has a batch in a new file of its journal."""
    if not taken_over:
        table.unsequenced.add((TOPIC, partition))
    number = table.files.open(OTHER)
    table.ring.set_outcome(ticket, Outcome(0, 0, -1, journal_file=number))
    table.outbox.collect()
    return number


async def test_a_journaled_batch_is_answered_at_once_and_followed_when_its_file_is_on_its_way() -> None:
    table = Table()
    first = table.add(0)
    [ticket] = table.pull()
    table.add(0)
    [behind] = table.pull()
    number = journal(table, ticket)
    assert table.done == [first]
    assert (TOPIC, 0) in table.unsequenced
    assert table.ring.clearance(behind) is Clearance.WAIT
    table.files.set_state(OTHER, number, FileState.HANDED_OVER)
    table.outbox.collect()
    assert table.ring.clearance(behind) is Clearance.CLEAR
    assert (TOPIC, 0) in table.unsequenced
    assert table.outbox.has_news_to_come
    table.files.set_state(OTHER, number, FileState.SEQUENCED)
    table.ring.set_outcome(behind, Outcome(0, 0, 0))
    table.outbox.collect()
    assert table.emptied == [(TOPIC, 0)]
    assert not table.left
    assert not table.outbox.has_news_to_come


async def test_a_file_waits_for_earlier_ones_even_if_its_own_batches_are_answered_long_ago() -> None:
    table = Table()
    table.add(0)
    [ticket] = table.pull()
    later = table.add(0)
    [behind] = table.pull()
    journal(table, behind)
    assert table.done == [later]
    assert table.ring.clearance(behind) is Clearance.WAIT
    number = journal(table, ticket)
    table.files.set_state(OTHER, number, FileState.HANDED_OVER)
    table.outbox.collect()
    assert table.ring.clearance(behind) is Clearance.CLEAR


async def test_a_file_waits_no_more_if_the_slot_of_its_batch_is_needed() -> None:
    table = Table()
    table.add(0)
    [ticket] = table.pull()
    table.add(0)
    [behind] = table.pull()
    journal(table, behind)
    number = journal(table, ticket)
    for _ in range(SHAPE.slot_count):
        table.add(1)
        [other] = table.pull()
        table.ring.set_outcome(other, Outcome(0, 0, 0))
        table.outbox.collect()
    assert table.ring.clearance(behind) is Clearance.GONE
    table.files.set_state(OTHER, number, FileState.HANDED_OVER)
    table.outbox.collect()
    # Whoever has the slot now is not touched.
    assert table.ring.clearance(other) is Clearance.CLEAR
    assert table.ring.clearance(behind + SHAPE.slot_count) is Clearance.CLEAR


async def test_files_of_a_shard_that_died_are_left_to_be_replayed_unless_it_said_that_they_are_sequenced() -> None:
    table = Table()
    table.add(0)
    table.add(1)
    table.add(1)
    numbers = [journal(table, ticket, partition=ticket > 0) for ticket in table.pull(3)]
    table.files.set_state(OTHER, numbers[0], FileState.SEQUENCED)
    table.files.set_state(OTHER, numbers[1], FileState.HANDED_OVER)
    table.board.bury(OTHER)
    table.outbox.collect()
    assert table.left == [(TOPIC, 1), (TOPIC, 1)]
    assert not len(table.unsequenced)


async def test_a_file_that_has_left_the_table_counts_as_left_to_be_replayed() -> None:
    table = Table()
    table.add(0)
    [ticket] = table.pull()
    number = journal(table, ticket)
    for _ in range(FILE_COUNT):
        table.files.open(OTHER)
    table.files.set_state(OTHER, number, FileState.SEQUENCED)  # too late: its word has another file's state
    table.outbox.collect()
    assert table.left == [(TOPIC, 0)]


def test_a_file_that_was_left_is_not_on_its_way_after_that() -> None:
    table = Table()
    number = table.files.open(OWNER)
    table.files.set_state(OWNER, number, FileState.LEFT)
    table.files.set_state(OWNER, number, FileState.HANDED_OVER)
    assert table.files.state(OWNER, number) is FileState.LEFT
    assert table.files.state(OTHER, number) is FileState.STORED  # of the other shard nothing is to be seen yet


async def test_nothing_overtakes_a_batch_that_was_taken_over_before_its_file_is_sequenced() -> None:
    table = Table(taken_over=True)
    table.add(0)
    [ticket] = table.pull()
    table.add(0)
    [behind] = table.pull()
    number = journal(table, ticket, taken_over=True)
    assert (TOPIC, 0) in table.unsequenced
    table.files.set_state(OTHER, number, FileState.HANDED_OVER)
    table.outbox.collect()
    assert table.ring.clearance(behind) is Clearance.WAIT
    table.files.set_state(OTHER, number, FileState.SEQUENCED)
    table.outbox.collect()
    assert table.ring.clearance(behind) is Clearance.CLEAR
    assert table.emptied == [(TOPIC, 0)]


async def test_what_follows_a_batch_that_was_taken_over_and_left_is_not_sequenced() -> None:
    table = Table(taken_over=True)
    table.add(0)
    [ticket] = table.pull()
    table.add(0)
    table.add(0)
    [behind, next_one] = table.pull(2)
    waiting = table.add(0, 2000, alone=True)
    number = journal(table, ticket, taken_over=True)
    table.files.set_state(OTHER, number, FileState.LEFT)
    table.outbox.collect()
    assert table.left == [(TOPIC, 0)]
    for each in (behind, next_one):
        assert table.ring.clearance(each) is Clearance.GONE
        table.ring.set_outcome(each, Outcome(int(ErrorCode.not_enough_replicas), -1, -1, "lost"))
        table.outbox.collect()
    [draft] = table.alone
    assert draft.partitions == {(TOPIC, 0): [waiting]}
    with pytest.raises(OrderLost):
        await draft.wait_predecessors()
    draft.settle()
    # What comes later waits for nothing.
    table.add(0)
    [later] = table.pull()
    assert table.ring.clearance(later) is Clearance.CLEAR
