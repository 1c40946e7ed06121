"""The memory that shards share, by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.group_map import check_groups

from braidlog.scheduling.shard_groups import buddy, first_groups, group_ids, halves, members, merge, split
from braidlog.writing.shards.board import MESSAGE_BYTES_MAX, Board, BoardShape, Clearance, Outcome, PullerId, Ring

SHAPE = BoardShape(3, slot_count=8, arena_bytes=1024)


def new_board(shape: BoardShape = SHAPE) -> Board:
    return Board(memoryview(bytearray(shape.size_bytes)), shape)


def publish(ring: Ring, records: bytes, *, clear: bool = True) -> int:
    ticket = ring.publish(1.0, b"about", records, clear=clear)
    assert ticket is not None
    return ticket


def pull_one(board: Board, shard: int, by: int = 2) -> int:
    ring = board.rings[shard]
    ticket = ring.head
    ring.mark_pulled(ticket, PullerId(by, board.life(by), 77))
    ring.move_head(ticket + 1)
    return ticket


def test_two_views_of_the_same_memory_agree() -> None:
    memory = memoryview(bytearray(SHAPE.size_bytes))
    one, other = Board(memory, SHAPE), Board(memory, SHAPE)
    one.set_starts_group(2, True)
    assert other.groups() == [0, 0, 2]
    assert [other.is_alone(shard) for shard in range(3)] == [False, False, True]
    ticket = publish(one.rings[1], b"records")
    found = other.rings[1].read(ticket)
    assert found is not None
    assert (found[0], bytes(found[1])) == (b"about", b"records")


def test_memory_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="needed"):
        Board(memoryview(bytearray(64)), SHAPE)
    memory = bytearray(SHAPE.size_bytes)
    memory[0:8] = b"whatever"
    with pytest.raises(ValueError, match="something else"):
        Board(memoryview(memory), SHAPE)
    other_shape = bytearray(SHAPE.size_bytes)
    Board(memoryview(other_shape), SHAPE)
    with pytest.raises(ValueError, match="something else"):
        Board(memoryview(other_shape), BoardShape(2, slot_count=8, arena_bytes=1024))


def test_room_comes_back_when_the_head_has_passed() -> None:
    board = new_board()
    ring = board.rings[0]
    publish(ring, b"x" * 400)
    publish(ring, b"y" * 400)
    assert ring.publish(1.0, b"about", b"z" * 400, clear=True) is None
    pull_one(board, 0)
    third = publish(ring, b"z" * 400)  # in front of the second, where the first was
    found = ring.read(third)
    assert found is not None
    assert bytes(found[1]) == b"z" * 400
    second = ring.read(1)
    assert second is not None
    assert bytes(second[1]) == b"y" * 400


def test_an_outcome_belongs_to_one_ticket() -> None:
    board = new_board()
    ring = board.rings[0]
    first = publish(ring, b"a")
    pull_one(board, 0)
    assert ring.outcome(first) is None
    ring.set_outcome(first, Outcome(0, 41, 7))
    assert ring.outcome(first) == Outcome(0, 41, 7)
    for _ in range(SHAPE.slot_count):  # until the slot is used again
        later = publish(ring, b"b")
        pull_one(board, 0)
    assert later % SHAPE.slot_count == first % SHAPE.slot_count
    assert ring.outcome(later) is None
    ring.set_outcome(first, Outcome(0, 99, 0))  # whoever was asleep so long
    assert ring.outcome(later) is None


def test_a_late_writer_cannot_spoil_an_outcome_unnoticed() -> None:
    board = new_board()
    ring = board.rings[0]
    ticket = publish(ring, b"a")
    pull_one(board, 0)
    ring.set_outcome(ticket, Outcome(0, 41, 7, "fine"))
    slot = ring._slot(ticket)
    ring._slots[slot + 114] ^= 1  # a byte of the base offset or behind it, from somebody else's hand
    assert ring.outcome(ticket) is None


def test_messages_are_cut_to_what_fits() -> None:
    board = new_board()
    ring = board.rings[0]
    ticket = publish(ring, b"a")
    pull_one(board, 0)
    ring.set_outcome(ticket, Outcome(19, -1, -1, "long " * 100))
    found = ring.outcome(ticket)
    assert found is not None
    assert found.message is not None
    assert len(found.message) <= MESSAGE_BYTES_MAX


def test_records_that_were_overwritten_do_not_check() -> None:
    board = new_board()
    ring = board.rings[0]
    ticket = publish(ring, b"a" * 100)
    ring._arena[50] ^= 1
    assert ring.read(ticket) is None


def test_clearance() -> None:
    board = new_board()
    ring = board.rings[0]
    ticket = publish(ring, b"a", clear=False)
    assert ring.clearance(ticket) is Clearance.WAIT
    ring.set_clear(ticket)
    assert ring.clearance(ticket) is Clearance.CLEAR
    assert ring.clearance(ticket + SHAPE.slot_count) is Clearance.GONE


def test_burying_a_shard_forgets_what_it_held_and_counts_its_life() -> None:
    board = new_board()
    ring = board.rings[1]
    board.set_serving(1, True)
    board.add_arrived_bytes(1, 5)
    ticket = publish(ring, b"a" * 5)
    board.bury(1)
    assert board.life(1) == 1
    assert not board.is_serving(1)
    assert board.load(1).backlog_bytes == 0
    assert ring.head == ring.tail > ticket
    assert publish(ring, b"b") > ticket


def test_groups_that_change_at_once_do_not_undo_each_other() -> None:
    shape = BoardShape(8, slot_count=8, arena_bytes=1024)
    memory = memoryview(bytearray(shape.size_bytes))
    one, other = Board(memory, shape), Board(memory, shape)
    one.set_starts_group(4, True)
    one.set_starts_group(2, True)
    other.set_starts_group(6, True)
    one.set_starts_group(2, False)
    assert one.groups() == other.groups() == [0, 0, 0, 0, 4, 4, 6, 6]


@pytest.mark.parametrize("shard_count", [1, 2, 3, 5, 6, 8, 13])
@given(data=st.data())
def test_whatever_a_reader_sees_is_a_valid_map(shard_count: int, data: st.DataObject) -> None:
    """A reader without a lock may see some words old and others new."""
    board = new_board(BoardShape(shard_count, slot_count=8, arena_bytes=1024))
    for shard in range(1, shard_count):
        board.set_starts_group(shard, data.draw(st.booleans()))
    groups = board.groups()
    check_groups(groups)
    for shard in range(shard_count):
        assert board.members_of(shard) == members(groups, groups[shard])
        assert board.group_of(shard) == groups[shard]


@pytest.mark.parametrize("shard_count", [1, 2, 3, 5, 6, 8, 13])
@given(data=st.data())
def test_one_word_makes_a_split_or_a_merge(shard_count: int, data: st.DataObject) -> None:
    board = new_board(BoardShape(shard_count, slot_count=8, arena_bytes=1024))
    groups = first_groups(shard_count)
    for _ in range(data.draw(st.integers(0, 20))):
        group = data.draw(st.sampled_from(group_ids(groups)))
        parts, other = halves(groups, group), buddy(groups, group)
        if parts is not None and data.draw(st.booleans()):
            groups = split(groups, group)
            board.set_starts_group(parts[1].start, True)
        elif other is not None and other > group:
            groups = merge(groups, group)
            board.set_starts_group(other, False)
        assert board.groups() == groups
        for shard in range(shard_count):
            assert board.is_alone(shard) == (len(members(groups, groups[shard])) == 1)


def test_a_group_starts_at_the_first_shard_for_ever() -> None:
    with pytest.raises(ValueError, match="shard 0"):
        new_board().set_starts_group(0, False)


def test_whoever_dies_while_it_pulls_leaves_a_right_count() -> None:
    board = new_board()
    board.add_arrived_bytes(0, 500)
    publish(board.rings[0], b"x" * 300)
    publish(board.rings[0], b"y" * 100)
    assert board.load(0).backlog_bytes == 500
    board.rings[0].mark_pulled(0, PullerId(2, board.life(2), 77))
    assert board.load(0).backlog_bytes == 500, "marked, and no more"
    pull_one(board, 0)
    assert board.load(0).backlog_bytes == 200
    pull_one(board, 0)
    assert board.load(0).backlog_bytes == 100, "what waits for room"


def test_a_mark_belongs_to_one_ticket_and_is_checked() -> None:
    board = new_board()
    ring = board.rings[0]
    first = publish(ring, b"a")
    assert ring.puller(first) is None
    pull_one(board, 0)
    assert ring.puller(first) == PullerId(2, 0, 77)
    assert ring.puller(first + SHAPE.slot_count) is None
    ring._words[(ring._slot(first) + 64) // 8] ^= 1  # one word of it is seen later than the others
    assert ring.puller(first) is None


def test_a_ticket_that_is_seen_before_its_bytes_does_not_bring_back_older_ones() -> None:
    """Processors may show stores in another order: the slot's ticket is new, and all else in it still the old."""
    board = new_board()
    ring = board.rings[0]
    first = publish(ring, b"a" * 50)
    pull_one(board, 0)
    ring._words[ring._slot(first) // 8] = first + SHAPE.slot_count
    assert ring.read(first + SHAPE.slot_count) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 500)), max_size=80))
def test_what_is_read_is_what_was_published(steps: list[tuple[bool, int]]) -> None:
    board = new_board()
    ring = board.rings[0]
    waiting: dict[int, bytes] = {}
    for number, (pull, size) in enumerate(steps):
        if pull and waiting:
            ticket = ring.head
            found = ring.read(ticket)
            assert found is not None
            assert bytes(found[1]) == waiting.pop(ticket)
            pull_one(board, 0)
        elif len(waiting) < SHAPE.slot_count:
            records = bytes([number % 251]) * size
            new = ring.publish(float(number), b"about", records, clear=True)
            if new is not None:
                waiting[new] = records
        for ticket, records in waiting.items():
            found = ring.read(ticket)
            assert found is not None
            assert bytes(found[1]) == records
