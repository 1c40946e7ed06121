"""Frames of one read: who waits for a turn of the loop, what is copied, and how long requests are said to take."""

import asyncio
import struct
from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.agent.connections.connection import FRAMES_PER_LOOK, KafkaConnection
from braidlog.agent.connections.request_memory import RequestMemory
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.entrance.entrance import Entrance
from braidlog.runtime.quantities import Address
from braidlog.runtime.security_settings import Listener
from braidlog.runtime.tally import Tally
from braidlog.runtime.turns import TURN_S, Turns
from braidlog.security.certificates import PrincipalRules

BODY = b"a request"
ENTRANCE = Entrance(
    Listener("PLAINTEXT", "PLAINTEXT", Address("127.0.0.1", 9092), Address("127.0.0.1", 9092)),
    PrincipalRules("DEFAULT"),
)
FRAME = struct.pack(">i", len(BODY)) + BODY


class Transport:
    """Takes everything, and says whether it is read from."""

    def __init__(self) -> None:
        self.is_paused = False
        self.written = b""

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written += data


class Dispatcher:
    """Takes requests, each of which takes `request_s` of the clock, and answers none. Also what connections share."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.turns = Turns(clock)
        self.request_memory = RequestMemory(1 << 20)
        self.response_memory = self.meters = None
        self.tally = Tally()
        self.request_s = 0.0
        self.taken: list[tuple[KafkaConnection, memoryview, ResponseSlot]] = []

    def dispatch(self, connection: KafkaConnection, frame: memoryview, slot: ResponseSlot) -> None:
        self.clock.advance(self.request_s)
        slot.tally = self.tally
        self.taken.append((connection, frame, slot))

    def count_of(self, connection: KafkaConnection) -> int:
        return sum(taken is connection for taken, _, _ in self.taken)


@pytest.fixture
def dispatcher(clock: FakeClock) -> Dispatcher:
    return Dispatcher(clock)


def connect(dispatcher: Dispatcher) -> tuple[KafkaConnection, Transport]:
    connection, transport = KafkaConnection(cast(Any, dispatcher), dispatcher, ENTRANCE), Transport()
    connection._transport = cast(asyncio.Transport, transport)
    return connection, transport


def receive(connection: KafkaConnection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


async def test_connections_wait_in_line_for_a_turn_with_time(dispatcher: Dispatcher) -> None:
    dispatcher.request_s = TURN_S / FRAMES_PER_LOOK
    first, second, third = (connect(dispatcher) for _ in range(3))
    receive(first[0], FRAME * FRAMES_PER_LOOK * 2)
    receive(second[0], FRAME * FRAMES_PER_LOOK * 2)
    receive(third[0], FRAME)
    counts = [dispatcher.count_of(connection) for connection, _ in (first, second, third)]
    assert counts == [FRAMES_PER_LOOK, 1, 1], "the first frame of a read never waits"
    assert [transport.is_paused for _, transport in (first, second, third)] == [True, True, False]
    await asyncio.sleep(0)
    counts = [dispatcher.count_of(connection) for connection, _ in (first, second)]
    assert counts == [2 * FRAMES_PER_LOOK, 1], "who is in line gets all the time that a turn has"
    for _ in range(3):
        await asyncio.sleep(0)
    assert dispatcher.count_of(second[0]) == 2 * FRAMES_PER_LOOK
    assert not first[1].is_paused
    assert not second[1].is_paused


async def test_a_frame_that_is_handled_alone_does_not_hold_those_behind_it(
    dispatcher: Dispatcher, clock: FakeClock
) -> None:
    dispatcher.turns.has_time()
    clock.advance(TURN_S)
    connection, _ = connect(dispatcher)
    receive(connection, FRAME * 100)
    ((_, frame, _),) = dispatcher.taken
    assert frame == BODY
    assert len(cast(bytes, frame.obj)) == len(FRAME)


async def test_a_connection_that_is_closed_while_it_is_in_line_is_passed_over(
    dispatcher: Dispatcher, clock: FakeClock
) -> None:
    dispatcher.turns.has_time()
    clock.advance(TURN_S)
    connection, _ = connect(dispatcher)
    receive(connection, FRAME * 100)
    connection.is_closed = True
    await asyncio.sleep(0)
    assert dispatcher.count_of(connection) == 1


async def test_requests_count_from_their_arrival_and_by_those_that_took_as_long(
    dispatcher: Dispatcher, clock: FakeClock
) -> None:
    connection, transport = connect(dispatcher)
    for _ in range(2):
        receive(connection, FRAME * 3)
        await asyncio.sleep(0)  # the next read is of another turn
        clock.advance(1.0)
    dispatcher.taken[4][2].tally = other = Tally()
    for _, _, slot in dispatcher.taken:
        slot.fill([b"answer"])
    await asyncio.sleep(0)
    assert transport.written.count(b"answer") == 6
    assert (dispatcher.tally.count, dispatcher.tally.sum_s) == (5, pytest.approx(3 * 2.0 + 2 * 1.0))
    assert (other.count, other.sum_s) == (1, pytest.approx(1.0))
    assert dispatcher.request_memory.used_bytes == 0
