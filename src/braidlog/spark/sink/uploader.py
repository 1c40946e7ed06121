"""Uploads the rows of one task: gathers, packs and uploads them under a lease.

They are not in the log yet.
"""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.configs.topic import effective_settings
from braidlog.control.interface import CommitObject, LeaseWriteEpoch, Snapshot, WriteLease
from braidlog.objects.keys import data_key
from braidlog.spark.errors import missing_topic
from braidlog.spark.link import Link
from braidlog.spark.options import WriteOptions
from braidlog.spark.sink.packing import PackedExtent, encode_rows, group_extents, pack_object
from braidlog.spark.sink.routing import Router, Topic

ROWS_BYTES_MAX = 16 * 1024 * 1024
"""Larger batches of rows are processed in parts."""
UPLOADS_IN_FLIGHT_MAX = 2
_LEASES_KEPT = 4
_RENEWALS_PER_LEASE = 4


class Lease:
    """Holds a write epoch while a task writes under it.

    It also has the topics as they were when the task began.
    """

    def __init__(self, link: Link, lease_id: str) -> None:
        self._link = link
        self.lease_id = lease_id
        self._granted = link.loop.run(self._ask())
        self._snapshot: Snapshot | None = None
        self._topics: dict[str, Topic] = {}

    @property
    def write_epoch(self) -> int:
        return self._granted.write_epoch

    async def _ask(self) -> WriteLease:
        granted: WriteLease = await self._link.ask("lease_write_epoch", LeaseWriteEpoch(self.lease_id))
        return granted

    async def renew_until_cancelled(self) -> None:
        while True:
            await self._link.clock.sleep(self._granted.expires_in_ms / 1000 / _RENEWALS_PER_LEASE)
            self._granted = await self._ask()

    def renew(self) -> None:
        """Renew for another task. Topics may have changed meanwhile."""
        self._granted = self._link.loop.run(self._ask())
        self._snapshot = None
        self._topics = {}

    def topic(self, name: str) -> Topic:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._find_topic(name)
        return found

    def _find_topic(self, name: str) -> Topic:
        if self._snapshot is None:
            self._snapshot = self._link.loop.run(self._link.snapshot())
        for topic in self._snapshot.topics:
            if topic.name == name:
                settings = effective_settings(topic.configs, self._snapshot.cluster_configs)
                return Topic(name, topic.topic_id, len(topic.partition_ids), settings)
        raise missing_topic(name)


_leases: OrderedDict[tuple[int, int, str], Lease] = OrderedDict()


def lease_of(link: Link, lease_id: str) -> Lease:
    """Return this process's lease.

    Tasks of one batch that run here one after another share it.
    """
    key = (os.getpid(), id(link), lease_id)
    lease = _leases.get(key)
    if lease is None:
        lease = _leases[key] = Lease(link, lease_id)
        while len(_leases) > _LEASES_KEPT:
            _leases.popitem(last=False)
    else:
        # It may have been idle since the previous task.
        lease.renew()
    return lease


@dataclass(slots=True)
class Uploaded:
    """The objects that a task has uploaded, in the order in which to sequence them."""

    objects: list[CommitObject] = field(default_factory=list)
    record_count: int = 0


class TaskUploader:
    """Uploads the rows of one attempt at a task.

    Every attempt uses object names of its own.
    """

    def __init__(self, link: Link, options: WriteOptions, lease_id: str, *, turn: int) -> None:
        self._link = link
        self._options = options
        self._lease_id = lease_id
        self._turn = turn
        self._incarnation = link.entropy.token(16).hex()
        self._number = 0
        self._gathered: dict[tuple[bytes, int], list[pa.RecordBatch]] = {}
        self._topics: dict[bytes, Topic] = {}
        self._gathered_bytes = 0
        self._in_flight: deque[tuple[CommitObject, Future[str | None]]] = deque()
        self._uploaded = Uploaded()

    def upload(self, batches: Iterable[pa.RecordBatch]) -> Uploaded:
        """Upload all rows, and return when they are durable.

        A task without rows needs no lease.
        """
        waiting = (batch for batch in batches if batch.num_rows)
        first = next(waiting, None)
        if first is None:
            return self._uploaded
        lease = lease_of(self._link, self._lease_id)
        renewing = self._link.loop.start(lease.renew_until_cancelled())
        try:
            router = Router(lease.topic, topic=self._options.topic, turn=self._turn)
            self._gather(router, lease, first, renewing)
            for batch in waiting:
                self._gather(router, lease, batch, renewing)
            self._flush(lease)
            while self._in_flight:
                self._finish_oldest()
        finally:
            renewing.cancel()
            for _, upload in self._in_flight:
                upload.cancel()
        return self._uploaded

    def _gather(self, router: Router, lease: Lease, batch: pa.RecordBatch, renewing: "Future[None]") -> None:
        for part in _parts(batch):
            for topic, partition, rows in router.split(part):
                self._topics[topic.topic_id] = topic
                self._gathered.setdefault((topic.topic_id, partition), []).append(rows)
            self._gathered_bytes += part.nbytes
            if self._gathered_bytes >= self._options.object_bytes:
                self._flush(lease)
        if renewing.done():
            _raise_failure(renewing)

    def _flush(self, lease: Lease) -> None:
        now_ms = self._link.clock.wall_ms()
        extents: list[PackedExtent] = []
        for (topic_id, partition), rows in sorted(self._gathered.items(), key=lambda each: each[0]):
            table = pa.Table.from_batches(rows)
            extents.append(
                encode_rows(
                    self._topics[topic_id], partition, table, compression=self._options.compression, now_ms=now_ms
                )
            )
        self._gathered = {}
        self._gathered_bytes = 0
        for group in group_extents(extents):
            self._start_upload(lease, group, now_ms)

    def _start_upload(self, lease: Lease, extents: list[PackedExtent], now_ms: int) -> None:
        while len(self._in_flight) >= UPLOADS_IN_FLIGHT_MAX:
            self._finish_oldest()
        write_epoch = lease.write_epoch
        packed = pack_object(
            extents,
            nonce=self._link.entropy.token(16),
            write_epoch=write_epoch,
            incarnation=self._incarnation,
            created_ms=now_ms,
        )
        key = data_key(write_epoch, self._incarnation, self._number)
        self._number += 1
        request = CommitObject(key, len(packed.data), packed.footer)
        self._in_flight.append((request, self._link.loop.start(self._put(key, packed.data))))
        self._uploaded.record_count += packed.record_count

    async def _put(self, key: str, data: bytes) -> str | None:
        store = await self._link.store()
        return await store.put(key, data)

    def _finish_oldest(self) -> None:
        request, upload = self._in_flight.popleft()
        upload.result()
        self._uploaded.objects.append(request)


def _raise_failure(renewing: "Future[None]") -> None:
    try:
        renewing.result()
    except (CancelledError, asyncio.CancelledError):
        pass


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    count = -(-batch.nbytes // ROWS_BYTES_MAX)
    if count <= 1:
        yield batch
        return
    rows = max(1, batch.num_rows // count)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
