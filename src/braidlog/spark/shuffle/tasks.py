"""What runs in Spark's tasks: the two Python stages on either side of the exchange of notifications."""

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.objects.store import Bytes
from braidlog.spark.errors import JobError, told_to_people
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.buffers import PARTITIONS_MAX
from braidlog.spark.shuffle.caching import ShuffleCache
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings, Read
from braidlog.spark.shuffle.joining import Seat
from braidlog.spark.shuffle.local_debatcher import LocalDebatcher
from braidlog.spark.shuffle.notifying import Notification, from_arrow, to_arrow
from braidlog.spark.shuffle.worker import Worker, worker_for

ZONE_VARIABLE = "BRAIDLOG_ZONE"
"""Names an executor's zone: spark.executorEnv.BRAIDLOG_ZONE."""

LINGER = 0.5
"""A task's input ends soon."""

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of one partition to what becomes of them."""
PairFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The same, from the rows of a partition on the left and on the right."""
SIDE_COLUMN = "side"


@dataclass(frozen=True, slots=True)
class ShufflePlan:
    """All that tasks must know. It travels to them with the plan."""

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
    """Whether tasks of a node fill their last batches together."""

    @property
    def zone_of_partition(self) -> list[str]:
        """The destination zone of each partition: they take turns."""
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
    def debatcher_settings(self) -> DebatcherSettings:
        return DebatcherSettings(ahead_bytes_max=self.ahead_bytes_max)


def check_shuffle(keys: Sequence[object], partitions: int) -> None:
    if not keys:
        raise JobError("a shuffle needs a key", help='For example shuffle.repartition(df, 64, "key").')
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise JobError(f"{partitions} partitions", help=f"1 to {PARTITIONS_MAX} are possible.")


def own_zone(plan: ShufflePlan) -> str:
    return plan.zone if plan.zone is not None else os.environ.get(ZONE_VARIABLE, "")


@dataclass(frozen=True, slots=True)
class MapSide:
    """Rows, with their partition in the last column, into notifications."""

    plan: ShufflePlan
    names: tuple[str, ...]
    """Of all columns but the last."""

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
    """Rows, with the partition of each, into the store: notifications of uploads as they finish. When it ends, all
    have."""
    with told_to_people("shuffle"):
        worker = worker_for(plan.store_url)
        batcher, seat = worker.run(_begin(plan, worker))
        try:
            for each, partitions in rows:
                if each.num_rows and (finished := worker.run(_add(batcher, each, partitions))):
                    yield finished
            if finished := worker.run(_finish(batcher)):
                yield finished
        finally:
            worker.run(batcher.close())
            if seat is not None:
                worker.run(seat.leave())


async def _begin(plan: ShufflePlan, worker: Worker) -> tuple[Batcher, Seat | None]:
    seat = (await worker.node_service(plan.batcher_settings, plan.cache)).seat() if plan.shared else None
    batcher = Batcher(
        await worker.layer(plan.cache, own_zone(plan)),
        plan.batcher_settings,
        plan.zone_of_partition,
        clock=worker.clock,
        entropy=worker.entropy,
        arena=worker.arena(plan.batch_bytes),
        sharer=seat,
    )
    return batcher, seat


async def _add(batcher: Batcher, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> list[Notification]:
    await batcher.add(rows, partitions)
    return batcher.take_finished()


async def _finish(batcher: Batcher) -> list[Notification]:
    await batcher.finish()
    return batcher.take_finished()


@dataclass(frozen=True, slots=True)
class ReduceSide:
    """Notifications of one partition into its rows, and what a function makes of them."""

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
    """Notifications of one partition of two shuffles, told apart by the column `side`, into what a function makes of
    the rows of both."""

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
    # In the order of their names, and not of their arrival: the same rows are then the same batches, every time.
    notifications.sort(key=lambda each: (each.key, each.position))
    with told_to_people("shuffle"):
        worker = worker_for(plan.store_url)
        store = worker.local_store(plan.cache, own_zone(plan))
        if store is None:
            yield from worker.iterate(_read(plan, worker, notifications))
        else:
            settings = plan.debatcher_settings
            again = partial(_again, plan, worker)
            debatcher = LocalDebatcher(
                store, settings, again, clock=worker.clock, memory=worker.read_memory.take, read_in=worker.read_in
            )
            yield from debatcher.rows(notifications)


async def _read(
    plan: ShufflePlan, worker: Worker, notifications: list[Notification]
) -> AsyncGenerator[pa.RecordBatch, None]:
    layer = await worker.layer(plan.cache, own_zone(plan))
    debatcher = Debatcher(layer, plan.debatcher_settings)
    async for rows in debatcher.rows(notifications):
        yield rows


def _again(plan: ShufflePlan, worker: Worker, read: Read) -> Bytes:
    layer = worker.run(worker.layer(plan.cache, own_zone(plan)))
    return worker.run(layer.read(read.key, read.object_bytes, read.start, read.end))
