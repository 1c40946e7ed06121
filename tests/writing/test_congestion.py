"""A control plane that is slower than objects are closed, in virtual time: they get larger, and none of them fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from braidlog.control.interface import BatchVerdict, CommitObject, ControlPlane, ExtentVerdict, ObjectVerdict
from braidlog.objects.layout import BatchEntry
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import DeadlineExceeded
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import CloseThresholds
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.writing.batcher import Batcher, BatchRules
from braidlog.writing.order import Order
from braidlog.writing.order_node import OrderNode
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.sequencing import TIMEOUTS_LOG_INTERVAL_S, Sequencing

PARTITION = (b"t" * 16, 0)
DEADLINE_S = 10.0
INTERVAL_S = 0.25


class SlowControl:
    def __init__(self, clock: SimClock, commit_s: float) -> None:
        self._clock = clock
        self.commit_s = commit_s
        self.batch_counts: list[int] = []

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        await self._clock.sleep(min(self.commit_s, timeout_s or 0.0))
        if timeout_s is None or timeout_s < self.commit_s:
            raise DeadlineExceeded("no answer")
        count = int(request.footer)
        self.batch_counts.append(count)
        return ObjectVerdict(0, [ExtentVerdict(0, [BatchVerdict(0, 40)] * count)])


class StoredAtOnce:
    """Takes the place of the upload."""

    def __init__(self, next_stage: Sequencing) -> None:
        self._next = next_stage
        self.batcher: Batcher | None = None

    def submit(self, draft: Draft) -> None:
        draft.footer = str(len(draft.partitions[PARTITION])).encode()
        asyncio.get_running_loop().call_soon(self._stored, draft)

    def _stored(self, draft: Draft) -> None:
        assert self.batcher is not None
        self.batcher.uploaded(draft)
        self._next.submit(draft)


class World:
    def __init__(self, loop: VirtualLoop, commit_s: float) -> None:
        self.clock = SimClock(loop)
        self.control = SlowControl(self.clock, commit_s)
        self.tasks = TaskGroup("test")
        self.done: list[WriteRequest] = []
        self.sequencing = Sequencing(
            cast(ControlPlane, self.control), self.clock, SeededEntropy(1), deadline_s=DEADLINE_S, tasks=self.tasks
        )
        stored = StoredAtOnce(self.sequencing)
        self.batcher = stored.batcher = Batcher(
            Order(stored),
            BatchRules(
                CloseThresholds(1 << 20, INTERVAL_S, in_flight_max=16, early_in_flight_max=1),
                wait_s_max=3 * DEADLINE_S,
                is_congested=lambda: self.sequencing.is_congested,
            ),
            PutBudget(1e9, 1e9),
            self.clock,
        )

    async def write(self, count: int, pause_s: float) -> None:
        for _ in range(count):
            entry = BatchEntry(100, 1, 0, 0)
            self.batcher.submit(WriteRequest(*PARTITION, b"x" * 100, entry, 0, -1, self.done.append))
            await self.clock.sleep(pause_s)


def run(test: Coroutine[Any, Any, None], loop: VirtualLoop) -> None:
    try:
        loop.run_until_complete(test)
    finally:
        loop.close()


@pytest.mark.parametrize("commit_s", [0.01, 0.4, 1.0])
def test_no_object_times_out_in_a_line_that_moves(commit_s: float) -> None:
    loop = VirtualLoop(SeededEntropy(1))
    world = World(loop, commit_s)

    async def test() -> None:
        await world.write(6_000, 0.01)
        await world.batcher.flush()
        await world.tasks.wait_all()
        assert [request.error_code for request in world.done] == [0] * 6_000
        assert sum(world.control.batch_counts) == 6_000

    run(test(), loop)


def test_what_waits_in_vain_is_answered_in_time_and_told_of_once_in_a_while(logs: list[dict[str, Any]]) -> None:
    """The control plane has stopped."""
    loop = VirtualLoop(SeededEntropy(1))
    world = World(loop, commit_s=3600.0)

    async def test() -> None:
        await world.write(300, INTERVAL_S)
        await world.batcher.flush()
        await world.tasks.wait_all()
        codes = [request.error_code for request in world.done]
        assert len(codes) == 300
        assert set(codes) <= {ErrorCode.not_enough_replicas_after_append, ErrorCode.not_enough_replicas}
        told = [entry for entry in logs if entry["event"] == "objects were not sequenced in time"]
        assert 1 < len(told) <= 300 * INTERVAL_S / TIMEOUTS_LOG_INTERVAL_S + 3
        assert {entry["waited_for"] for entry in told} <= {"objects before it", "the control plane"}

    run(test(), loop)


def test_what_was_never_sent_to_the_control_plane_was_not_sequenced_and_its_producer_hears_so() -> None:
    loop = VirtualLoop(SeededEntropy(1))
    world = World(loop, commit_s=0.1)

    async def test() -> None:
        request = WriteRequest(*PARTITION, b"", BatchEntry(61, 1, 0, 0), 0, -1, world.done.append)
        draft = Draft({PARTITION: [request]}, 61)
        draft.follow(OrderNode())  # which is never settled
        world.sequencing.submit(draft)
        await world.tasks.wait_all()
        assert [each.error_code for each in world.done] == [ErrorCode.not_enough_replicas]
        assert not world.control.batch_counts
        assert not draft.is_released  # or what follows would overtake what it waited for

    run(test(), loop)
