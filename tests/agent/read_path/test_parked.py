"""A consumer that asks for the same again while nothing happens."""

import asyncio
import struct
from typing import Any, cast

import pytest

from braidlog.agent.cluster.view import ClusterView, PartitionView
from braidlog.agent.connections.connection import KafkaConnection
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.read_path.parked import REPEATED_MAX, Found, RepeatedFetch, RepeatedFetches
from braidlog.agent.read_path.ticks import FINE_S, Ticks
from braidlog.wire.fetch import FetchPartition

WAIT_S = 4 * FINE_S
ANSWER = b"nothing"


class Sent:
    """A connection that notes what its slots are filled with."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.news = asyncio.Event()

    def slot_filled(self, slot: ResponseSlot, *, at_once: bool = False) -> None:
        self.frames.append(b"".join(map(bytes, slot.framed or [])))
        self.news.set()


class Consumer:
    """A connection's repeated fetches of two partitions, and the whole fetches that they become."""

    def __init__(self) -> None:
        self.view, self.ticks, self.sent = ClusterView(), Ticks(), Sent()
        self.partitions = [PartitionView(number, b"t" * 16, number) for number in range(3)]
        self.repeated = RepeatedFetches(self.view, self.ticks)
        self.resumed: list[tuple[str, int, float]] = []

    def found(self, *indices: int) -> Found:
        return [(FetchPartition(index, 0, 1000), self.partitions[index]) for index in indices]

    def keep(self, name: bytes, *indices: int, turning: range | None = None) -> None:
        consumer = self

        class Whole:
            def __init__(self, correlation_id: int, _slot: ResponseSlot, left_s: float) -> None:
                self.correlation_id, self.left_s = correlation_id, left_s

            def go_on(self) -> None:
                consumer.resumed.append(("go on", self.correlation_id, self.left_s))

            def answer_nothing_new(self, _found: Found) -> None:
                consumer.resumed.append(("nothing new", self.correlation_id, self.left_s))
                consumer.sent.news.set()

        fetch = RepeatedFetch(
            self.view.changes, self.found(*indices), ANSWER, is_flexible=True, wait_s=WAIT_S, resumed=Whole
        )
        self.repeated.add(frame(0, name), fetch, turning)

    def ask(self, correlation_id: int, name: bytes) -> bool:
        slot = ResponseSlot(cast(KafkaConnection, self.sent), 0, 0.0)
        return self.repeated.handle_alike(frame(correlation_id, name), slot)

    async def hear(self) -> None:
        await asyncio.wait_for(self.sent.news.wait(), 60)
        self.sent.news.clear()

    def watches(self) -> list[int]:
        return [len(partition.waiters) for partition in self.partitions]


@pytest.fixture
async def consumer() -> Consumer:
    return Consumer()


def frame(correlation_id: int, name: bytes, api: int = 0x1000C) -> memoryview:
    return memoryview(struct.pack(">ii", api, correlation_id) + name)


async def test_it_is_known_by_all_but_its_number(consumer: Consumer) -> None:
    consumer.keep(b"a, b", 0, 1)
    consumer.keep(b"b, a", 1, 0)
    assert consumer.watches() == [1, 1, 0]
    assert not consumer.ask(1, b"a, c")
    slot: Any = None
    assert not consumer.repeated.handle_alike(frame(1, b"a, b", api=0x1000B), slot)
    assert consumer.ask(7, b"b, a")
    await consumer.hear()
    assert consumer.sent.frames == [struct.pack(">ii", 5 + len(ANSWER), 7) + b"\0" + ANSWER]
    assert consumer.watches() == [1, 1, 0]
    assert consumer.resumed == []


async def test_it_is_known_whose_turn_ever_it_is(consumer: Consumer) -> None:
    turning = range(8 + len(b"of "), 8 + len(b"of a1b1c1"), 2)
    consumer.keep(b"of b1c1a1!", 1, 2, 0, turning=turning)
    for name in (b"of a1b1c1!", b"of b1c1a1!", b"of c1a1b1!"):
        assert consumer.ask(1, name)
    for name in (b"of a1c1b1!", b"of a2b1c1!", b"of 1a1b1c!", b"of a1b1c1?", b"or a1b1c1!", b"of a1b1c1d1!"):
        assert not consumer.ask(2, name), "another order, offset, reading, end, start or length"
    assert consumer.watches() == [1, 1, 1]
    consumer.keep(b"of a1, b1, c1", 0, 1, 2)
    assert consumer.ask(3, b"of a1, b1, c1")
    assert not consumer.ask(4, b"of a1b1c1!"), "it has changed how it asks"


async def test_it_goes_on_when_a_partition_changes_for_as_long_as_it_may_yet_wait(consumer: Consumer) -> None:
    consumer.keep(b"a, b", 0, 1)
    assert consumer.ask(1, b"a, b")
    assert consumer.ask(2, b"a, b")
    consumer.partitions[1].waiters.wake_all()
    assert [(what, number) for what, number, _ in consumer.resumed] == [("go on", 1), ("go on", 2)]
    assert all(0 <= left_s <= WAIT_S + FINE_S for *_, left_s in consumer.resumed)
    assert consumer.watches() == [0, 0, 0]
    assert not consumer.ask(3, b"a, b"), "what it would find is not known any more"
    assert not any(consumer.ticks._due.values())


async def test_a_change_elsewhere_leaves_it_waiting_but_its_answer_is_made_anew(consumer: Consumer) -> None:
    consumer.keep(b"a, b", 0, 1)
    assert consumer.ask(1, b"a, b")
    consumer.view.changes += 1
    assert not consumer.ask(2, b"a, b")
    await consumer.hear()
    assert consumer.resumed == [("nothing new", 1, 0.0)]
    assert consumer.sent.frames == []
    consumer.keep(b"a, b", 0, 1)
    assert consumer.ask(3, b"a, b")
    assert consumer.watches() == [1, 1, 0]


async def test_other_partitions_are_watched_anew_and_who_waits_is_answered(consumer: Consumer) -> None:
    consumer.keep(b"a, b", 0, 1)
    assert consumer.ask(1, b"a, b")
    consumer.keep(b"c", 2)
    assert consumer.watches() == [1, 1, 1]
    assert not consumer.ask(2, b"a, b")
    await consumer.hear()
    assert len(consumer.sent.frames) == 1
    assert consumer.watches() == [0, 0, 1]


async def test_nothing_is_left_of_a_connection_that_ends(consumer: Consumer) -> None:
    consumer.keep(b"a", 0)
    consumer.repeated.leave()
    assert consumer.watches() == [0, 0, 0]
    consumer.keep(b"a", 0)
    assert consumer.ask(1, b"a")
    consumer.repeated.leave()
    await consumer.hear()
    assert consumer.watches() == [0, 0, 0]


async def test_only_so_many_are_kept(consumer: Consumer) -> None:
    for number in range(REPEATED_MAX + 1):
        consumer.keep(b"%d" % number, 0)
    assert not consumer.ask(1, b"0")
    assert consumer.ask(1, b"1")
    consumer.keep(b"x" * 5000, 0)
    assert not consumer.ask(1, b"x" * 5000)
    await consumer.hear()
