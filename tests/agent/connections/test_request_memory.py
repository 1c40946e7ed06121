"""Memory for requests: only what has arrived counts, small ones pass, and large ones get through one at a time."""

import random

import pytest

from braidlog.agent.connections.request_memory import (
    BUFFER_BYTES_FIRST,
    BUFFER_BYTES_LEAST,
    STEP_BYTES,
    RequestMemory,
)

MIB = 1024 * 1024


class Client:
    """Sends one large request, as far as it is read, in pieces of its own size."""

    def __init__(self, intake: RequestMemory, length: int, piece_bytes: int) -> None:
        self.intake = intake
        self.piece_bytes = piece_bytes
        self.frame = intake.begin(length, memoryview(b"head"))
        self.is_whole = False
        self._count()

    def _count(self) -> None:
        if not self.intake.count(self.frame):
            self.intake.resume_later(self.frame, lambda: None)

    def send(self) -> None:
        if self.is_whole or self.frame.is_waiting:
            return
        piece = min(self.piece_bytes, len(self.intake.unfilled(self.frame)))
        self.frame.filled_bytes += piece
        if self.frame.filled_bytes == self.frame.length:
            self.is_whole = True
            self.intake.complete(self.frame)
        else:
            self._count()


def test_what_is_announced_takes_nothing() -> None:
    intake = RequestMemory(16 * MIB)
    clients = [Client(intake, 100 * MIB, MIB) for _ in range(60)]
    assert intake.used_bytes == 60 * len(b"head")
    assert intake.try_admit(MIB)
    assert sum(len(client.frame.view) for client in clients) == intake.buffer_bytes
    assert intake.buffer_bytes <= 8 * MIB + 60 * BUFFER_BYTES_LEAST, "nor is much memory reserved for it"
    for client in clients:
        intake.drop(client.frame)
    assert (intake.used_bytes, intake.buffer_bytes) == (MIB, 0)


def test_small_requests_pass_large_ones_that_wait() -> None:
    intake = RequestMemory(16 * MIB)
    clients = [Client(intake, 15 * MIB, STEP_BYTES) for _ in range(40)]
    for _ in range(5):
        for client in clients[1:]:
            client.send()
    assert intake.waiting
    assert intake.try_admit(64 * 1024)
    granted: list[str] = []
    while intake.try_admit(MIB):
        pass
    intake.admit_later(MIB, lambda: granted.append("first"))
    intake.admit_later(MIB, lambda: granted.append("second"))
    assert not intake.try_admit(1), "small ones do not overtake each other"
    intake.release(2 * MIB)
    assert granted == ["first", "second"]


def test_a_request_larger_than_the_budget_goes_alone() -> None:
    intake = RequestMemory(16 * MIB)
    client = Client(intake, 50 * MIB, STEP_BYTES)
    while not client.is_whole:
        assert not client.frame.is_waiting, "there is nothing to wait for"
        client.send()
    assert intake.used_bytes == 50 * MIB
    other = Client(intake, 2 * MIB, STEP_BYTES)
    assert other.frame.is_waiting
    intake.release(50 * MIB)
    assert not other.frame.is_waiting


@pytest.mark.parametrize("seed", range(20))
def test_all_large_requests_get_through_within_bounds(seed: int) -> None:
    entropy = random.Random(seed)
    intake = RequestMemory(16 * MIB)
    clients = [
        Client(intake, entropy.randrange(MIB // 8, 12 * MIB), entropy.randrange(10_000, 2 * MIB)) for _ in range(30)
    ]
    served: list[Client] = []
    overshoot = len(clients) * STEP_BYTES  # what was on its way to each when the budget was full
    turns = 0
    while len(served) < len(clients):
        turns += 1
        assert turns < 100_000, "somebody is stuck"
        entropy.choice(clients).send()
        whole = [client for client in clients if client.is_whole and client not in served]
        assert sum(client.frame.length for client in whole) <= 16 * MIB
        assert intake.used_bytes <= 2 * 16 * MIB + overshoot
        if whole and entropy.random() < 0.1:
            served.append(whole[0])
            intake.release(whole[0].frame.length)
    assert (intake.used_bytes, intake.waiting) == (0, 0)


@pytest.mark.parametrize(("budget_bytes", "first_bytes"), [(64 * MIB, BUFFER_BYTES_FIRST), (MIB, BUFFER_BYTES_LEAST)])
def test_a_buffer_grows_with_what_is_in_it(budget_bytes: int, first_bytes: int) -> None:
    data = random.Random(1).randbytes(3 * BUFFER_BYTES_FIRST + 17)
    intake = RequestMemory(budget_bytes)
    frame = intake.begin(len(data), memoryview(data)[:100])
    assert len(frame.view) == first_bytes
    while frame.filled_bytes < frame.length:
        assert intake.buffer_bytes == len(frame.view) <= max(first_bytes, 2 * frame.filled_bytes)
        room = intake.unfilled(frame)
        room[:] = data[frame.filled_bytes : frame.filled_bytes + len(room)]
        frame.filled_bytes += len(room)
    assert bytes(frame.view) == data


def test_thousands_that_give_their_room_back_at_once_do_not_pile_up() -> None:
    intake = RequestMemory(16 * MIB)
    assert intake.try_admit(16 * MIB)
    for _ in range(5_000):
        intake.admit_later(100, lambda: intake.release(100))
    intake.release(16 * MIB)
    assert (intake.used_bytes, intake.waiting) == (0, 0)


@pytest.mark.parametrize("length", [MIB, 5 * MIB, 40 * MIB])
def test_small_requests_do_not_keep_a_large_one_out(length: int) -> None:
    intake = RequestMemory(16 * MIB)
    small_bytes = 60_000
    in_hand = 0

    def take() -> None:
        nonlocal in_hand
        in_hand += 1

    def ask() -> None:
        if intake.try_admit(small_bytes):
            take()
        else:
            intake.admit_later(small_bytes, take)

    for _ in range(400):  # more than there is room for
        ask()
    large = Client(intake, length, STEP_BYTES)
    for _ in range(2_000):
        large.send()
        if large.is_whole:
            break
        in_hand -= 1
        intake.release(small_bytes)
        ask()
    assert large.is_whole
