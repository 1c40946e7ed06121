"""Batches that several tasks fill together: each is told of its own rows, whatever becomes of the others."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.cache.layers import StoreLayer
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.open import open_store
from braidlog.objects.store import Bytes, StoreUnavailable
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy, SystemEntropy
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle import BlobShuffle
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings, BatchWriter
from braidlog.spark.shuffle.buffers import Chunk, Splitter
from braidlog.spark.shuffle.debatcher import BatchReader, Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.client import NodeService, ServiceMember
from braidlog.spark.shuffle.service.settings import NodeSettings
from braidlog.spark.shuffle.service.shared_buffers import SharedBuffers, TooMuchHeld, decode_runs, encode_runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 5
ZONES = ["a", "b", "a", "b", "a"]
WAIT_S = 60.0


def rows_of(task: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(count) + 10_000 * task
    return pa.record_batch({"number": numbers, "text": [f"{number:040d}" for number in numbers.tolist()]})


def runs_of(task: int, count: int) -> list[tuple[str, Chunk]]:
    rows = rows_of(task, count)
    partitions = (rows.column("number").to_numpy() % PARTITIONS).astype(np.int32)
    return list(Splitter(ZONES).split(rows, partitions))


def by_zone(runs: list[tuple[str, Chunk]]) -> dict[str, list[Chunk]]:
    found: dict[str, list[Chunk]] = {}
    for zone, chunk in runs:
        found.setdefault(zone, []).append(chunk)
    return found


async def numbers_of(store: BatchReader, notifications: list[Notification]) -> list[int]:
    debatcher = Debatcher(store, DebatcherSettings())
    found: list[int] = []
    for partition in range(PARTITIONS):
        mine = [each for each in notifications if each.partition == partition]
        async for rows in debatcher.rows(mine):
            numbers = rows.column("number").to_pylist()
            assert all(number % PARTITIONS == partition for number in numbers)
            found += numbers
    return sorted(found)


def shared_buffers(store: BatchWriter, batch_bytes: int = 1 << 20, held_bytes_max: int = 1 << 30) -> SharedBuffers:
    chosen = BatcherSettings("test", batch_bytes=batch_bytes, compression="none")
    return SharedBuffers(
        store,
        chosen,
        clock=SystemClock(),
        entropy=SeededEntropy(1),
        wait_s_max=WAIT_S,
        held_bytes_max=held_bytes_max,
    )


def memory_layer() -> StoreLayer:
    return StoreLayer(MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock()))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=6), st.sampled_from([2_000, 20_000, 1 << 20]))
def test_every_task_is_told_of_its_own_rows(counts: list[int], batch_bytes: int) -> None:
    async def work() -> None:
        store = memory_layer()
        buffers = shared_buffers(store, batch_bytes)
        tasks = [str(number) for number in range(len(counts))]
        for task in tasks:
            buffers.join(task)
        async with asyncio.timeout(WAIT_S / 2):
            told = await _shared(buffers, counts)
        for task, notifications in zip([each for each in range(len(counts)) if counts[each]], told, strict=True):
            expected = rows_of(task, counts[task]).column("number").to_pylist()
            assert await numbers_of(store, notifications) == expected
        await buffers.close()

    asyncio.run(work())


async def _shared(buffers: SharedBuffers, counts: list[int]) -> list[list[Notification]]:
    """Tasks without rows just leave."""
    sharing = [
        asyncio.ensure_future(buffers.share(str(task), runs_of(task, count)))
        for task, count in enumerate(counts)
        if count
    ]
    await asyncio.sleep(0)
    for task, count in enumerate(counts):
        if not count:
            buffers.leave(str(task))
    return list(await asyncio.gather(*sharing))


async def test_small_runs_of_many_tasks_fill_batches() -> None:
    store = memory_layer()
    buffers = shared_buffers(store, batch_bytes=64 * 1024)
    for task in range(40):
        buffers.join(str(task))
    async with asyncio.timeout(WAIT_S / 2):
        found = await asyncio.gather(*(buffers.share(str(task), runs_of(task, 100)) for task in range(40)))
    total_bytes = sum(chunk.size_bytes for task in range(40) for _, chunk in runs_of(task, 100))
    statistics = buffers.statistics()
    assert statistics.batches <= total_bytes / (64 * 1024) + 2  # a last one for each zone
    assert statistics.runs == 80
    keys = {each.key for notifications in found for each in notifications}
    assert len(keys) == statistics.batches == store.puts
    # No two notifications name the same bytes.
    ranges = [(each.key, each.position) for notifications in found for each in notifications]
    assert len(set(ranges)) == len(ranges)
    await buffers.close()


async def test_a_task_that_goes_leaves_nothing_behind_for_the_others() -> None:
    store = memory_layer()
    buffers = shared_buffers(store)
    for task in ("one", "two", "three"):
        buffers.join(task)
    killed = asyncio.ensure_future(buffers.share("one", runs_of(1, 50)))
    kept = asyncio.ensure_future(buffers.share("two", runs_of(2, 50)))
    await asyncio.sleep(0)
    killed.cancel()
    await asyncio.wait({killed})
    buffers.leave("one")
    assert not kept.done(), "the third may still come"
    buffers.leave("three")
    assert await numbers_of(store, await kept) == rows_of(2, 50).column("number").to_pylist()
    assert store.puts == 2
    buffers.leave("two")
    assert buffers.is_idle
    assert buffers.statistics().held_bytes == 0
    await buffers.close()


async def test_a_failed_upload_is_told_to_every_task_in_the_batch() -> None:
    class Failing:
        async def put(self, key: str, data: Bytes) -> None:
            raise StoreUnavailable("the store is away")

    buffers = shared_buffers(Failing())
    for task in ("one", "two"):
        buffers.join(task)
    results = await asyncio.gather(
        *(buffers.share(task, runs_of(1, 50)) for task in ("one", "two")), return_exceptions=True
    )
    assert all(isinstance(each, JobError) and "the store is away" in str(each) for each in results)
    with pytest.raises(TooMuchHeld):
        await shared_buffers(memory_layer(), held_bytes_max=100).share("one", runs_of(1, 50))
    await buffers.close()


def test_runs_survive_the_way_to_the_service() -> None:
    runs = runs_of(3, 77)
    found = decode_runs(encode_runs(by_zone(runs)))
    assert [(zone, chunk.rows, chunk.bounds.tolist()) for zone, chunk in found] == [
        (zone, chunk.rows, chunk.bounds.tolist()) for zone, chunk in runs
    ]


# ── the process ──


@asynccontextmanager
async def services(folder: Path, count: int, *, idle_s_max: float = 60.0) -> AsyncIterator[list[NodeService]]:
    """As many processes of Spark would see it, here in one."""
    made = [
        NodeService(
            NodeSettings(f"file://{folder}/store", BatcherSettings("test", batch_bytes=1 << 20, interval_s=WAIT_S)),
            clock=SystemClock(),
            entropy=SystemEntropy(),
            idle_s_max=idle_s_max,
            folder=folder / "run",
        )
        for _ in range(count)
    ]
    yield made
    for each in made:
        await each.close()


@contextmanager
def ended(services: list[NodeService]) -> Iterator[None]:
    """Children of this test do not outlive it."""
    try:
        yield
    finally:
        for each in services:
            if each._child is not None:
                each._child.kill()
                each._child.wait(WAIT_S)


def processes(services: list[NodeService]) -> "list[subprocess.Popen[bytes]]":
    return [each._child for each in services if each._child is not None]


async def all_seated(members: list[ServiceMember]) -> None:
    async with asyncio.timeout(WAIT_S):
        for member in members:
            await member._joined.wait()


async def test_one_process_for_the_node_and_another_when_it_was_killed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    async with services(tmp_path, 3) as nodes:
        with ended(nodes):
            members = [node.member() for node in nodes]
            await all_seated(members)
            [process] = processes(nodes)
            found = await asyncio.gather(
                *(member.share(by_zone(runs_of(task, 60))) for task, member in enumerate(members))
            )
            store = StoreLayer(open_store(f"file://{tmp_path}/store", clock=SystemClock(), entropy=SystemEntropy()))
            for task, notifications in enumerate(found):
                assert notifications is not None
                assert await numbers_of(store, notifications) == rows_of(task, 60).column("number").to_pylist()
            assert len({each.key for told in found for each in told or ()}) == 2  # one for each zone
            for member in members:
                await member.leave()

            # Killed while a task waits in it: the task hears that it is alone with its rows.
            members = [node.member() for node in nodes[:2]]
            await all_seated(members)
            waiting = asyncio.ensure_future(members[0].share(by_zone(runs_of(0, 60))))
            await asyncio.sleep(0)
            process.send_signal(signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                assert await waiting is None
            process.wait(WAIT_S)
            # And what a batcher does then.
            batcher = Batcher(
                store,
                BatcherSettings("test", compression="none"),
                ZONES,
                clock=SystemClock(),
                entropy=SystemEntropy(),
                node=members[1],
            )
            rows = rows_of(7, 60)
            await batcher.add(rows, (rows.column("number").to_numpy() % PARTITIONS).astype(np.int32))
            await batcher.finish()
            assert await numbers_of(store, batcher.take_finished()) == rows.column("number").to_pylist()
            for member in members:
                await member.leave()

            # The next task starts another one.
            member = nodes[2].member()
            await all_seated([member])
            assert await member.share(by_zone(runs_of(4, 60))) is not None
            await member.leave()


async def test_a_service_that_nobody_needs_ends(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    async with services(tmp_path, 1, idle_s_max=2.0) as nodes:
        with ended(nodes):
            member = nodes[0].member()
            await all_seated([member])
            [process] = processes(nodes)
            await member.leave()
            assert await asyncio.to_thread(process.wait, WAIT_S) == 0
            assert not list((tmp_path / "run").glob("*.socket"))


async def test_it_is_done_without_where_the_folder_is_not_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chmod(tmp_path / "run", 0o755)
    async with services(tmp_path, 1) as nodes:
        member = nodes[0].member()
        assert await member.share(by_zone(runs_of(0, 10))) is None
        await member.leave()
        assert not processes(nodes)


def ends_when_both_are_present(node: NodeSettings) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes rows on, and ends when two tasks are members of the node's service."""

    async def wait() -> None:
        service = NodeService(node, clock=SystemClock(), entropy=SystemEntropy())
        async with asyncio.timeout(4 * WAIT_S):
            while (found := await service.statistics()) is None or found.tasks < 2:
                await asyncio.sleep(0.05)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        asyncio.run(wait())

    return work


@pytest.mark.slow
def test_spark_tasks_share_their_batches(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.sql import Observation

    df = spark.range(0, 4_000, 1, 2).selectExpr("id", "sha2(string(id), 256) text")
    batches = {}
    found = {}
    patient = f"{4 * WAIT_S:.0f}s"
    for shared in (False, True):
        shuffle = BlobShuffle(
            f"file://{tmp_path}/{shared}", zones=["a", "b"], shared=shared, share_wait=patient, batch_interval=patient
        )
        # Both tasks run at the same time, and neither comes to its end before the other has begun.
        rows = df.mapInArrow(ends_when_both_are_present(shuffle.plan(6).node_settings), df.schema) if shared else df
        observation = Observation(f"shared {shared}")
        shuffled = shuffle.repartition(rows, 6, "text", observe=observation)
        found[shared] = sorted(
            tuple(row) for row in shuffled.selectExpr("id", "text", "spark_partition_id()").collect()
        )
        batches[shared] = observation.get["batches"]
        shuffle.stop()
    assert found[True] == found[False]
    assert len(found[True]) == 4_000
    assert batches[False] == 4  # of each task one for each zone
    assert batches[True] == 2
