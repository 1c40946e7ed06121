"""The two Python stages of a shuffle, around the exchange of notifications."""

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.store import Bytes
from braidlog.spark.errors import JobError, readable_errors
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.buffers import PARTITIONS_MAX
from braidlog.spark.shuffle.caches import ShuffleCache
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings, Read
from braidlog.spark.shuffle.local_debatcher import LocalDebatcher
from braidlog.spark.shuffle.notification import Notification, from_arrow, to_arrow
from braidlog.spark.shuffle.service.client import ServiceMember
from braidlog.spark.shuffle.service.server import NodeSettings
from braidlog.spark.shuffle.tasks.python_worker import PythonWorker, python_worker

ZONE_VARIABLE = "BRAIDLOG_ZONE"
"""The environment variable that names an executor's zone. Set it with spark.executorEnv.BRAIDLOG_ZONE."""

LINGER = 0.5
"""How much longer than a full batch a task waits for rows: its input ends soon, and no small batch should be left."""

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of one partition to the results."""
PairFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of one partition on the left and on the right to the results."""
SIDE_COLUMN = "side"


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """Everything that tasks must know. It travels to them with Spark's plan."""

    store_url: str
    job: str
    zones: tuple[str, ...]
    partitions: int
    batch_bytes: int
    interval_s: float
    compression: str
    uploads_in_flight_max: int
    ahead_bytes_max: int
    zone: str | None
    cache: ShuffleCache
    shared: bool = False
    """Whether the tasks of a node pack their last rows together."""
    share_wait_s: float = 1.0

    @property
    def zone_of_partition(self) -> list[str]:
        """The destination zone of each partition.

        Partitions are dealt out to the zones in turn.
        """
        return [self.zones[partition % len(self.zones)] for partition in range(self.partitions)]

    @property
    def batcher_settings(self) -> BatcherSettings:
        return BatcherSettings(
            job=self.job,
            batch_bytes=self.batch_bytes,
            interval_s=self.interval_s,
            compression=self.compression,
            uploads_in_flight_max=self.uploads_in_flight_max,
            linger=LINGER,
            zone=own_zone(self),
        )

    @property
    def node_settings(self) -> NodeSettings:
        """What the process beside this node's tasks must know."""
        return NodeSettings(self.store_url, self.batcher_settings, self.cache, self.share_wait_s)

    @property
    def debatcher_settings(self) -> DebatcherSettings:
        return DebatcherSettings(ahead_bytes_max=self.ahead_bytes_max)


def check_shuffle(keys: Sequence[object], partitions: int) -> None:
    if not keys:
        raise JobError("a shuffle needs a key", help='For example shuffle.group_by(df, "key").')
    check_partitions(partitions)


def check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise JobError(f"a shuffle cannot have {partitions} partitions", help=f"Use 1 to {PARTITIONS_MAX}.")


def own_zone(plan: ShufflePlan) -> str:
    return plan.zone if plan.zone is not None else os.environ.get(ZONE_VARIABLE, "")


@dataclass(frozen=True, slots=True)
class MapSide:
    """Turns rows, with their partition in the last column, into notifications."""

    plan: ShufflePlan
    names: tuple[str, ...]
    """The names of all columns but the last."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (to_arrow(finished) for finished in write_rows(self.plan, self._split(batches)))

    def _split(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]:
        for batch in batches:
            last = batch.num_columns - 1
            rows = batch.select(list(range(last))).rename_columns(self.names)
            yield rows, batch.column(last).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)


def write_rows(
    plan: ShufflePlan, rows: Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int32]]]
) -> Iterator[list[Notification]]:
    """Write rows to the store and yield the notifications of uploads as they finish.

    At the end, all have finished.
    """
    with readable_errors("shuffle"):
        worker = python_worker(plan.store_url)
        batcher, member = worker.loop.run(_begin(plan, worker))
        try:
            for each, partitions in rows:
                if each.num_rows and (finished := worker.loop.run(_add(batcher, each, partitions))):
                    yield finished
            if finished := worker.loop.run(_finish(batcher)):
                yield finished
        finally:
            worker.loop.run(batcher.close())
            if member is not None:
                worker.loop.run(member.leave())


async def _begin(plan: ShufflePlan, worker: PythonWorker) -> tuple[Batcher, ServiceMember | None]:
    member = (await worker.node_service(plan.node_settings)).member() if plan.shared else None
    batcher = Batcher(
        await worker.layer(plan.cache, own_zone(plan)),
        plan.batcher_settings,
        plan.zone_of_partition,
        clock=worker.clock,
        entropy=worker.entropy,
        arena=worker.arena(plan.batch_bytes),
        sharer=member,
    )
    return batcher, member


async def _add(batcher: Batcher, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> list[Notification]:
    await batcher.add(rows, partitions)
    return batcher.take_finished()


async def _finish(batcher: Batcher) -> list[Notification]:
    await batcher.finish()
    return batcher.take_finished()


@dataclass(frozen=True, slots=True)
class ReduceSide:
    """Turns a partition's notifications into rows, and applies a function to them."""

    plan: ShufflePlan
    function: ArrowFunction | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = self._rows(batches)
        return rows if self.function is None else iter(self.function(rows))

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        notifications = [each for batch in batches for each in from_arrow(batch)]
        return read_rows(self.plan, notifications)


@dataclass(frozen=True, slots=True)
class CogroupedSide:
    """Applies a function to one partition of two shuffles.

    The column `side` of a notification says which.
    """

    plan: ShufflePlan
    function: PairFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sides: tuple[list[Notification], list[Notification]] = ([], [])
        for batch in batches:
            for each, side in zip(from_arrow(batch), batch.column(SIDE_COLUMN).to_pylist(), strict=True):
                sides[side].append(each)
        return iter(self.function(read_rows(self.plan, sides[0]), read_rows(self.plan, sides[1])))


def read_rows(plan: ShufflePlan, notifications: list[Notification]) -> Iterator[pa.RecordBatch]:
    if not notifications:
        return
    # Sorted by key, not in the order of arrival, so that every attempt yields the same batches.
    notifications.sort(key=lambda each: (each.key, each.position))
    with readable_errors("shuffle"):
        worker = python_worker(plan.store_url)
        store = worker.local_store(plan.cache, own_zone(plan))
        if store is None:
            yield from worker.loop.iterate(_read(plan, worker, notifications))
        else:
            settings = plan.debatcher_settings
            otherwise = partial(_read_with_retries, plan, worker)
            debatcher = LocalDebatcher(
                store, settings, otherwise, clock=worker.clock, memory=worker.read_memory.take, read_in=worker.read_in
            )
            yield from debatcher.rows(notifications)


async def _read(
    plan: ShufflePlan, worker: PythonWorker, notifications: list[Notification]
) -> AsyncGenerator[pa.RecordBatch, None]:
    layer = await worker.layer(plan.cache, own_zone(plan))
    debatcher = Debatcher(layer, plan.debatcher_settings)
    async for rows in debatcher.rows(notifications):
        yield rows


def _read_with_retries(plan: ShufflePlan, worker: PythonWorker, read: Read) -> Bytes:
    layer = worker.loop.run(worker.layer(plan.cache, own_zone(plan)))
    return worker.loop.run(layer.read(read.key, read.object_bytes, read.start, read.end))
