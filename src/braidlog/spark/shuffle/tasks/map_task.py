"""One attempt at a map task: writes rows to the store."""

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.cache.layers import StoreLayer
from braidlog.spark.shuffle.batcher import Batcher
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.client import ServiceMember
from braidlog.spark.shuffle.service.usage import ShuffleUsage
from braidlog.spark.shuffle.tasks.placement import hint, hint_bytes, hinted_partitions
from braidlog.spark.shuffle.tasks.plan import ShufflePlan
from braidlog.spark.shuffle.tasks.python_worker import PythonWorker


class MapTask:
    """Packs and uploads rows, and makes their notifications. Use `begin`."""

    def __init__(
        self, plan: ShufflePlan, worker: PythonWorker, batcher: Batcher, bottom: StoreLayer, node: ServiceMember | None
    ) -> None:
        self._plan = plan
        self._worker = worker
        self._batcher = batcher
        self._bottom = bottom
        self._node = node
        self._written: Counter[int] = Counter()

    @classmethod
    async def begin(cls, plan: ShufflePlan, worker: PythonWorker) -> "MapTask":
        node = None
        if plan.uses_node:
            node = (await worker.node_service(plan.node_settings)).member(shares=plan.shared)
            if plan.cache.is_of_nodes:
                await node.wait_joined()  # batches of this zone are kept only if the node is known
        bottom = StoreLayer(worker.store)
        has_members = bool(plan.cache.members_of(plan.own_zone))
        batcher = Batcher(
            await worker.layer(plan.cache, plan.own_zone) if has_members else bottom,
            plan.batcher_settings,
            plan.zone_of_partition,
            clock=worker.clock,
            entropy=worker.entropy,
            arena=worker.arena(plan.batch_bytes),
            node=node,
        )
        return cls(plan, worker, batcher, bottom, node)

    async def add(self, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> list[Notification]:
        """Add rows, and return the notifications of uploads that have finished."""
        await self._batcher.add(rows, partitions)
        return self._take_finished()

    async def finish(self) -> list[Notification]:
        """Wait until everything is in the store.

        The last notifications are hints to Spark.
        """
        await self._batcher.finish()
        return self._take_finished() + self._hints()

    def _take_finished(self) -> list[Notification]:
        finished = self._batcher.take_finished()
        self._written.update(each.partition for each in finished)
        return finished

    def _hints(self) -> list[Notification]:
        facts = self._node.facts if self._node is not None else None
        name, names, count = (facts.name, facts.zone_names, facts.node_count) if facts is not None else ("", [], 1)
        partitions = hinted_partitions(self._plan.zone_of_partition, self._plan.own_zone, name, names)
        sizes = hint_bytes(partitions, self._written, self._bottom.put_bytes, count)
        return [
            hint(partition, self._worker.entropy.token(size // 2).hex(), self._plan.own_zone)
            for partition, size in zip(partitions, sizes, strict=True)
        ]

    async def close(self) -> None:
        """End the task, also in the middle."""
        await self._batcher.close()
        if self._node is not None:
            await self._node.report(ShuffleUsage(puts=self._bottom.puts, put_bytes=self._bottom.put_bytes))
            await self._node.leave()
