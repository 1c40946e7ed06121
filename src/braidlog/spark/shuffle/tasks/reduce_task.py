"""One attempt at a reduce task: reads the rows of one partition."""

from collections.abc import AsyncGenerator, Iterator
from functools import partial

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.cache.layers import StoreLayer
from braidlog.objects.store import Bytes
from braidlog.spark.shuffle.debatcher import BatchReader, Debatcher, Read
from braidlog.spark.shuffle.local_debatcher import LocalDebatcher
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.client import ServiceMember
from braidlog.spark.shuffle.service.node_reader import NodeReader
from braidlog.spark.shuffle.service.usage import ShuffleUsage
from braidlog.spark.shuffle.tasks.plan import ShufflePlan
from braidlog.spark.shuffle.tasks.python_worker import PythonWorker


class ReduceTask:
    """Turns the notifications of a partition into rows. Use `begin`."""

    def __init__(
        self,
        plan: ShufflePlan,
        worker: PythonWorker,
        notifications: list[Notification],
        bottom: StoreLayer,
        node: ServiceMember | None,
    ) -> None:
        self._plan = plan
        self._worker = worker
        self._notifications = notifications
        self._bottom = bottom
        self._node = node

    @classmethod
    async def begin(cls, plan: ShufflePlan, worker: PythonWorker, notifications: list[Notification]) -> "ReduceTask":
        node = None
        if plan.uses_node:
            node = (await worker.node_service(plan.node_settings)).member(shares=False)
            if plan.cache.is_of_nodes:
                await node.wait_joined()
        return cls(plan, worker, notifications, StoreLayer(worker.store), node)

    def rows(self) -> Iterator[pa.RecordBatch]:
        worker, plan = self._worker, self._plan
        store = worker.local_store(plan.cache, plan.own_zone)
        if store is None:
            yield from worker.loop.iterate(self._rows())
            return
        debatcher = LocalDebatcher(
            store,
            plan.debatcher_settings,
            partial(_read_with_retries, worker, self._bottom),
            clock=worker.clock,
            memory=worker.read_memory.take,
            read_in=worker.read_in,
        )
        yield from debatcher.rows(self._notifications)

    async def _rows(self) -> AsyncGenerator[pa.RecordBatch, None]:
        plan = self._plan
        reader: BatchReader = self._bottom
        if self._node is not None and plan.cache.is_of_nodes:
            reader = NodeReader(self._node, self._bottom, self._notifications)
        elif plan.cache.members_of(plan.own_zone):
            reader = await self._worker.layer(plan.cache, plan.own_zone)
        async for rows in Debatcher(reader, plan.debatcher_settings).rows(self._notifications):
            yield rows

    async def end(self) -> None:
        """Tell the node what was used."""
        if self._node is not None:
            await self._node.report(self._usage())
            await self._node.leave()

    def _usage(self) -> ShuffleUsage:
        zones = self._plan.zone_of_partition
        is_zoned = len(self._plan.zones) > 1
        is_in_zone = is_zoned and zones[self._notifications[0].partition] == self._plan.own_zone
        return ShuffleUsage(
            gets=self._bottom.gets,
            get_bytes=self._bottom.get_bytes,
            reduce_tasks=int(is_zoned),
            reduce_tasks_in_zone=int(is_in_zone),
        )


def _read_with_retries(worker: PythonWorker, bottom: StoreLayer, read: Read) -> Bytes:
    return worker.loop.run(bottom.read(read.key, read.object_bytes, read.start, read.end))
