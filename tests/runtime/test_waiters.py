"""Whoever waits is woken once, in the order of arrival."""

import asyncio

from braidlog.runtime.waiters import Waiters


class Again:
    """A waiter that waits again as soon as it is woken."""

    def __init__(self, waiters: Waiters) -> None:
        self.waiters = waiters
        self.woken = 0

    def done(self) -> bool:
        return False

    def set_result(self, _result: None, /) -> None:
        self.woken += 1
        self.waiters[self] = None


async def test_all_are_woken_in_the_order_in_which_they_came() -> None:
    waiters = Waiters()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await waiters.wait()
        woken.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert len(waiters) == 3
    waiters.wake_all()
    assert not waiters
    await asyncio.gather(*tasks)
    assert woken == [0, 1, 2]


async def test_who_gives_up_is_forgotten() -> None:
    waiters = Waiters()
    task = asyncio.create_task(waiters.wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert not waiters


async def test_who_waits_again_while_others_are_woken_is_not_woken_twice() -> None:
    waiters = Waiters()
    again = Again(waiters)
    waiters[again] = None
    waiters.wake_all()
    assert again.woken == 1
    waiters.wake_all()
    assert again.woken == 2
