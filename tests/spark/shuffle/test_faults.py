"""Attempts at tasks over a store that is slow and fails, in virtual time, as Spark would make them: killed at any
moment, made twice at once, and made again until one succeeds. Of each task, the first attempt that ends is taken."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.objects.faulty_store import FaultyStore

from braidlog.cache.layers import StoreLayer
from braidlog.objects.faults import FaultPlan, FaultRates
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes
from braidlog.runtime.entropy import Entropy, SeededEntropy
from braidlog.runtime.errors import BraidError
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.buffers import Chunk
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.shared_buffers import SharedBuffers, TooMuchHeld

T = TypeVar("T")
TASKS = 6
PARTITIONS = 7
ROWS = 300
ZONES = ["a", "b", "c"]
SETTINGS = BatcherSettings("test", batch_bytes=8 * 1024, interval_s=0.5, compression="none", uploads_in_flight_max=3)
FAULTS = FaultRates(error=0.03, slow_down=0.02, timeout_before=0.02, timeout_after=0.02)
ATTEMPTS_MAX = 200


def rows_of(task: int) -> tuple[pa.RecordBatch, npt.NDArray[np.int32]]:
    numbers = np.arange(ROWS) + ROWS * task
    rows = pa.record_batch({"number": numbers, "text": [f"{number:060d}" for number in numbers.tolist()]})
    return rows, (numbers % PARTITIONS).astype(np.int32)


class SharedSeat:
    """A task's place in buffers that are killed now and then, and all that they hold with them."""

    def __init__(self, node: "Node", name: str) -> None:
        self._node = node
        self._name = name
        self._buffers = node.buffers
        self._buffers.join(name)

    @property
    def name(self) -> str:
        return ""

    async def keep(self, key: str, data: Bytes) -> None:
        """Nothing is kept."""

    async def share(self, runs: Mapping[str, Sequence[Chunk]], *, is_last: bool) -> list[Notification] | None:
        chunks = [(zone, chunk) for zone, found in runs.items() for chunk in found]
        sharing = asyncio.ensure_future(self._buffers.share(self._name, chunks, is_last=is_last))
        killed = asyncio.ensure_future(self._node.killed.wait())
        try:
            await asyncio.wait({sharing, killed}, return_when=asyncio.FIRST_COMPLETED)
            return sharing.result() if sharing.done() else None
        except TooMuchHeld:
            return None
        finally:
            for each in (sharing, killed):
                each.cancel()
            await asyncio.wait({sharing, killed})

    def leave(self) -> None:
        self._buffers.leave(self._name)


class Node:
    def __init__(self, store: StoreLayer, clock: SimClock, entropy: Entropy) -> None:
        self._parts = (store, clock, entropy)
        self.start()

    def start(self) -> None:
        store, clock, entropy = self._parts
        self.buffers = SharedBuffers(store, SETTINGS, clock=clock, entropy=entropy, held_bytes_max=100_000)
        self.killed = asyncio.Event()

    async def kill_now_and_then(self, clock: SimClock, entropy: Entropy) -> None:
        while True:
            await clock.sleep(entropy.uniform(0.1, 2.0))
            killed, buffers = self.killed, self.buffers
            self.start()
            killed.set()
            await buffers.close()


class Job:
    def __init__(self, seed: int, loop: VirtualLoop, *, shared: bool) -> None:
        self.clock = SimClock(loop)
        self.entropy = SeededEntropy(seed).fork("job")
        self.inner = MemoryStore(MemoryBucket(), url="memory://", clock=self.clock)
        slow = SlowStore(self.inner, latency_profile("s3"), clock=self.clock, entropy=self.entropy.fork("slow"))
        plan = FaultPlan(self.entropy.fork("faults"), FAULTS)
        faulty = FaultyStore(slow, plan, clock=self.clock)
        self.store = StoreLayer(faulty)
        self.node = Node(self.store, self.clock, self.entropy.fork("node")) if shared else None
        self.failures = 0

    async def attempt(self, task: int, name: str) -> list[Notification]:
        member = SharedSeat(self.node, name) if self.node is not None else None
        batcher = Batcher(
            self.store,
            SETTINGS,
            [ZONES[partition % len(ZONES)] for partition in range(PARTITIONS)],
            clock=self.clock,
            entropy=self.entropy.fork(name),
            node=member,
        )
        try:
            rows, partitions = rows_of(task)
            finished: list[Notification] = []
            for start in range(0, ROWS, 50):
                await batcher.add(rows.slice(start, 50), partitions[start : start + 50])
                finished += batcher.take_finished()
                await self.clock.sleep(self.entropy.uniform(0.0, 0.2))
            await batcher.finish()
            return finished + batcher.take_finished()
        finally:
            await batcher.close()
            if member is not None:
                member.leave()

    async def task(self, task: int) -> list[Notification]:
        for number in range(ATTEMPTS_MAX):
            copies = 1 + (self.entropy.below(3) == 0)
            attempts = {asyncio.ensure_future(self.attempt(task, f"{task}-{number}-{copy}")) for copy in range(copies)}
            timeout_s = self.entropy.uniform(0.0, 1.0) if self.entropy.below(4) == 0 else None
            try:
                done, _ = await asyncio.wait(attempts, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    if each.exception() is None:
                        return each.result()
                    assert isinstance(each.exception(), BraidError)
                self.failures += 1
            finally:
                for each in attempts:
                    each.cancel()
                await asyncio.wait(attempts)
        raise AssertionError(f"task {task} never succeeded")

    async def run(self) -> tuple[list[int], int]:
        """All rows as readers get them, and how often attempts failed or were killed."""
        killing = asyncio.ensure_future(self.node.kill_now_and_then(self.clock, self.entropy)) if self.node else None
        told = await asyncio.gather(*map(self.task, range(TASKS)))
        if killing is not None:
            killing.cancel()
            await asyncio.wait({killing})
        debatcher = Debatcher(StoreLayer(self.inner), DebatcherSettings())
        found: list[int] = []
        for partition in range(PARTITIONS):
            mine = [each for notifications in told for each in notifications if each.partition == partition]
            async for rows in debatcher.rows(mine):
                numbers = rows.column("number").to_pylist()
                assert all(number % PARTITIONS == partition for number in numbers)
                found += numbers
        return sorted(found), self.failures


def run_virtually(loop: VirtualLoop, work: Coroutine[Any, Any, T]) -> T:
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_comes_out_once_whatever_fails(seed: int, shared: bool) -> None:
    loop = VirtualLoop(SeededEntropy(seed))

    async def work() -> tuple[list[int], int]:
        return await Job(seed, loop, shared=shared).run()

    found, failures = run_virtually(loop, work())
    assert found == list(range(TASKS * ROWS))
    assert failures > 0
