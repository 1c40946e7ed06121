"""Long work in slices: others get the loop in between, and everybody in line gets a turn."""

import asyncio
from functools import partial

from tests.fakes import FakeClock

from braidlog.runtime.turns import SLICE_LENGTH, TURN_S, Turns


class Worker:
    """Counts the slices it was given; each takes the whole share of a turn."""

    def __init__(self, clock: FakeClock, turns: Turns) -> None:
        self._clock, self._turns = clock, turns
        self.slices = 0

    async def work(self, slices: int) -> None:
        for _ in range(slices):
            await self._turns.wait()
            self._clock.advance(TURN_S)
            self.slices += 1


async def test_nobody_waits_where_work_takes_no_time() -> None:
    turns = Turns(FakeClock())
    for _ in range(1_000):
        waiting = turns.wait()
        try:
            waiting.send(None)
        except StopIteration:
            continue
        raise AssertionError("it waited")


async def test_one_slice_a_turn_and_each_in_its_turn() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    workers = [Worker(clock, turns) for _ in range(5)]
    tasks = [asyncio.create_task(worker.work(10)) for worker in workers]
    done = asyncio.gather(*tasks)
    before = 0
    while not done.done():
        await asyncio.sleep(0)
        slices = sum(worker.slices for worker in workers)
        assert slices - before <= 1, "no turn of the loop has more than one slice that takes all of it"
        before = slices
        counts = [worker.slices for worker in workers]
        assert max(counts) - min(counts) <= 2, "nobody is passed over"
    assert before == 50


async def test_whoever_gives_up_is_passed_over() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    workers = [Worker(clock, turns) for _ in range(3)]
    tasks = [asyncio.create_task(worker.work(2)) for worker in workers]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert [worker.slices for worker in workers] == [2, 0, 2]
    assert turns.waiting == 0


async def test_a_map_gives_what_it_would_at_once() -> None:
    count = 3 * SLICE_LENGTH + 1
    assert await Turns(FakeClock()).map(str, range(count)) == tuple(map(str, range(count)))


async def test_calls_are_made_in_order_and_as_many_as_a_turn_has_time_for() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    made: list[int] = []

    def call(number: int, takes_s: float) -> None:
        clock.advance(takes_s)
        made.append(number)

    for number, takes_s in enumerate((0.0, 0.0, TURN_S, TURN_S, 0.0)):
        turns.call_later(partial(call, number, takes_s))
    assert made == []
    for expected in ([0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]):
        await asyncio.sleep(0)
        assert made == expected


async def test_calls_and_those_who_wait_do_not_keep_each_other_out() -> None:
    clock = FakeClock()
    turns = Turns(clock)
    worker = Worker(clock, turns)
    working = asyncio.create_task(worker.work(5))
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        clock.advance(TURN_S)
        if not working.done():
            turns.call_later(call)

    turns.call_later(call)
    await working
    assert worker.slices == 5
    assert 5 <= calls <= 20
