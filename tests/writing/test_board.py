"""The memory that shards share, by itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.writing.board import MESSAGE_BYTES_MAX, Board, BoardShape, Clearance, Outcome, Puller, Ring

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
    ring.mark_pulled(ticket, Puller(by, board.life(by), 77))
    ring.move_head(ticket + 1, ring.records_bytes(ticket))
    return ticket


def test_two_views_of_the_same_memory_agree() -> None:
    memory = memoryview(bytearray(SHAPE.size_bytes))
    one, other = Board(memory, SHAPE), Board(memory, SHAPE)
    one.set_groups([0, 0, 2])
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
    assert ring.outcome(first) is None


def test_a_late_writer_cannot_spoil_an_outcome_unnoticed() -> None:
    board = new_board()
    ring = board.rings[0]
    ticket = publish(ring, b"a")
    pull_one(board, 0)
    ring.set_outcome(ticket, Outcome(0, 41, 7, "fine"))
    slot = ring._slot(ticket)
    ring._slots[slot + 90] ^= 1  # a byte of the base offset or behind it, from somebody else's hand
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


def test_whoever_dies_while_it_regroups_changes_nothing() -> None:
    board = new_board()
    board.set_groups([0, 1, 2])
    other = board._groups_at + (1 - board._words[2]) * board.shard_count
    board._words[other] = 77  # half of a new map, and no more
    assert board.groups() == [0, 1, 2]


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
