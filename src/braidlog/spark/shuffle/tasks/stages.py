"""The two Python stages of a shuffle, around the exchange of notifications."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError, readable_errors
from braidlog.spark.shuffle.buffers import PARTITIONS_MAX
from braidlog.spark.shuffle.notification import Notification, from_arrow, to_arrow
from braidlog.spark.shuffle.tasks.map_task import MapTask
from braidlog.spark.shuffle.tasks.placement import is_hint
from braidlog.spark.shuffle.tasks.plan import ShufflePlan
from braidlog.spark.shuffle.tasks.python_worker import python_worker
from braidlog.spark.shuffle.tasks.reduce_task import ReduceTask

ArrowFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of one partition to the results."""
PairFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From the rows of one partition on the left and on the right to the results."""
SIDE_COLUMN = "side"


def check_shuffle(keys: Sequence[object], partitions: int) -> None:
    if not keys:
        raise JobError("a shuffle needs a key", help='For example shuffle.group_by(df, "key").')
    check_partitions(partitions)


def check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise JobError(f"a shuffle cannot have {partitions} partitions", help=f"Use 1 to {PARTITIONS_MAX}.")


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

    At the end, all have finished. The last notifications are hints (`placement`).
    """
    with readable_errors("shuffle"):
        worker = python_worker(plan.store_url)
        task = worker.loop.run(MapTask.begin(plan, worker))
        try:
            for each, partitions in rows:
                if each.num_rows and (finished := worker.loop.run(task.add(each, partitions))):
                    yield finished
            if finished := worker.loop.run(task.finish()):
                yield finished
        finally:
            worker.loop.run(task.close())


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
    notifications = [each for each in notifications if not is_hint(each)]
    if not notifications:
        return
    # Sorted by key, not in the order of arrival, so that every attempt yields the same batches.
    notifications.sort(key=lambda each: (each.key, each.position))
    with readable_errors("shuffle"):
        worker = python_worker(plan.store_url)
        task = worker.loop.run(ReduceTask.begin(plan, worker, notifications))
        try:
            yield from task.rows()
        finally:
            worker.loop.run(task.end())
