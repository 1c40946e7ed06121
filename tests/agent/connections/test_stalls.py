"""Only who holds memory that somebody waits for, and does not move, is disconnected."""

import pytest

from braidlog.agent.connections.request_memory import ArrivingFrame, RequestMemory
from braidlog.agent.connections.response_memory import ResponseMemory
from braidlog.agent.connections.stalls import FRAME_INTERVALS_MAX, Progress, Stalls

FRAME = ArrivingFrame(12_000, memoryview(b""), 12_000)
PACE = FRAME.length // FRAME_INTERVALS_MAX
"""Bytes an interval that are just enough."""


class Client:
    """A connection that gets so much further each time it is looked at."""

    def __init__(self, *, arriving: int | None = None, leaving: int | None = None) -> None:
        self._arriving, self._leaving = arriving, leaving
        self._filled, self._unsent = 0, 1_000_000
        self.is_closed = False

    def progress(self) -> Progress:
        frame = FRAME if self._arriving is not None else None
        now = Progress(frame, self._filled, self._unsent if self._leaving is not None else 0)
        self._filled += self._arriving or 0
        self._unsent -= self._leaving or 0
        return now

    def close(self, reason: str, *, at_once: bool = False) -> None:
        assert at_once
        self.is_closed = True


CLIENTS = {
    "idle": {},
    "a frame that stands still": {"arriving": 0},
    "a frame that hardly moves": {"arriving": PACE - 1},
    "a frame that arrives": {"arriving": PACE},
    "a response that stands still": {"leaving": 0},
    "a response that leaves": {"leaving": 1},
}


@pytest.mark.parametrize(
    ("wanted", "closed"),
    [
        ("nothing", set()),
        ("requests", {"a frame that stands still", "a frame that hardly moves"}),
        ("answers", {"a response that stands still"}),
    ],
)
async def test_who_is_in_the_way(wanted: str, closed: set[str]) -> None:
    clients = {name: Client(**progress) for name, progress in CLIENTS.items()}
    watching = Stalls(clients.values())
    requests = RequestMemory(10, watching.request_waits)
    answers = ResponseMemory(10, watching.response_waits)
    assert requests.try_admit(10)
    assert answers.try_acquire(10)
    if wanted == "requests":
        requests.admit_later(1, lambda: None)
    elif wanted == "answers":
        answers.acquire_later(1, lambda: None)
    for _ in range(3):
        assert (watching._look_handle is not None) == (wanted != "nothing")
        watching._look()  # as the timer would
    assert {name for name, client in clients.items() if client.is_closed} == closed
    requests.release(10)
    answers.release(10)
    watching.close()
