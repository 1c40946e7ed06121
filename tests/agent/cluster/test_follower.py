"""Following the change feed through errors."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from tests.fakes import FakeClock

from braidlog.agent.cluster.follower import FEED_BACKOFF, FeedFollower
from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import (
    AgentChanged,
    AgentInfo,
    ControlPlane,
    FeedPage,
    FeedPosition,
    FeedRequest,
    Snapshot,
    SnapshotRequest,
)
from braidlog.runtime.entropy import SeededEntropy

ONE, TWO = AgentInfo(1, "one", "host-1", 9092, ""), AgentInfo(2, "two", "host-2", 9092, "")
NOWHERE = FeedPosition(-1, -1)


class ScriptedControl:
    """Its feed has one change, which the snapshot contains; after it, readers wait."""

    def __init__(self) -> None:
        self.asked: list[FeedPosition] = []
        self.snapshots = 0
        self.idle = asyncio.Event()
        self.next_page: Callable[[FeedPosition], FeedPage] = self._page

    async def snapshot(self, request: SnapshotRequest, *, timeout_s: float | None = None) -> Snapshot:
        self.snapshots += 1
        return Snapshot(FeedPosition(1, 8), "cluster", [], [], [ONE, TWO], {})

    async def read_feed(self, request: FeedRequest, *, timeout_s: float | None = None) -> FeedPage:
        self.asked.append(request.after)
        if request.after == FeedPosition(1, 8) and self.next_page == self._page:
            self.idle.set()
            await asyncio.get_running_loop().create_future()
        return self.next_page(request.after)

    @staticmethod
    def _page(after: FeedPosition) -> FeedPage:
        if after == NOWHERE:
            return FeedPage(FeedPosition(1, 8), [], reload=True)
        return FeedPage(FeedPosition(1, 8), [AgentChanged(ONE), AgentChanged(TWO)])


@pytest.fixture
async def control() -> ScriptedControl:
    return ScriptedControl()


async def run_until(follower: FeedFollower, reached: asyncio.Event) -> None:
    running = asyncio.create_task(follower.run())
    waiting = asyncio.create_task(reached.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), "the follower has ended"
    running.cancel()
    waiting.cancel()
    await asyncio.wait([running, waiting])
    assert running.cancelled()


async def test_a_change_that_cannot_be_taken_in_reloads_the_view(
    control: ScriptedControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = ClusterView()
    view.load(Snapshot(FeedPosition(1, 7), "cluster", [], [], [], {}))

    def apply_half(events: list[AgentChanged], position: FeedPosition) -> None:
        view.agents[1] = ONE
        raise KeyError("a mistake")

    monkeypatch.setattr(view, "apply", apply_half)
    follower = FeedFollower(cast(ControlPlane, control), view, clock, SeededEntropy(1))
    await run_until(follower, control.idle)
    assert control.asked == [FeedPosition(1, 7), NOWHERE, FeedPosition(1, 8)]
    assert (sorted(view.agents), view.position) == ([1, 2], FeedPosition(1, 8))
    assert follower.reloads == 1
    assert len(clock.slept_s) == 1


async def test_errors_that_do_not_end_are_met_ever_more_slowly(control: ScriptedControl, clock: FakeClock) -> None:
    """Each change fails, and each reload succeeds."""
    enough = asyncio.Event()

    def next_page(after: FeedPosition) -> FeedPage:
        if after == NOWHERE:
            return control._page(after)
        if control.snapshots == 40:
            enough.set()
        raise ZeroDivisionError

    control.next_page = next_page
    follower = FeedFollower(cast(ControlPlane, control), ClusterView(), clock, SeededEntropy(1))
    await run_until(follower, enough)
    assert len(clock.slept_s) >= control.snapshots - 1
    assert clock.slept_s[0] <= FEED_BACKOFF.first_s
    assert sum(clock.slept_s) > 20 * FEED_BACKOFF.max_s / 2
