"""The bytes of a response, shared out over its partitions."""

from braidlog.agent.connections.response_memory import ResponseMemory
from braidlog.agent.read_path.response_room import ResponseRoom


def test_the_first_may_exceed_it_and_then_there_is_none_left() -> None:
    room = ResponseRoom(100)
    assert room.takes(0)
    assert room.is_empty
    assert room.takes(250)
    assert (room.is_empty, room.share(1_000), room.takes(1)) == (False, 0, False)
    assert room.takes(0)
    assert room.taken_bytes == 250


def test_others_have_what_remains_but_no_more_than_they_want() -> None:
    room = ResponseRoom(100)
    assert room.takes(40)
    assert [room.share(wanted) for wanted in (-1, 0, 7, 60, 1_000)] == [1, 1, 7, 60, 60]
    assert not room.takes(61)
    assert room.takes(60)
    assert (room.share(10), room.taken_bytes) == (0, 100)


def test_what_was_taken_for_an_answer_is_made_right_once_it_is_there() -> None:
    budget = ResponseMemory(100)
    granted: list[str] = []
    assert budget.try_acquire(10)
    budget.resize(10, 80)
    assert budget.used_bytes == 80
    budget.acquire_later(50, lambda: granted.append("next"))
    budget.resize(80, 90)
    assert (budget.used_bytes, granted) == (90, [])
    budget.resize(90, 20)
    assert (budget.used_bytes, granted) == (70, ["next"])
