"""The state of a streaming aggregation, as objects in the store.

It holds the groups at the end of each micro-batch.

`state/<query>/<name>/<partition>/<batch>`
    A version of one partition's state: the groups that the micro-batch has changed, and from time to time all groups. A
    version names the earlier versions that it builds on.

`state/<query>/<name>/batch/<batch>`
    The record of a micro-batch over all partitions: their newest versions, and the progress of event time.

Persisted: keep stable. Objects are created once and never changed. The first attempt at a task that writes its version
decides the outcome of the micro-batch. Every other attempt, in the same run or after a restart, finds that version and
emits the same results. States have a folder of their own, because a bucket's rule that deletes batches must not delete
states.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import msgspec
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from fastcrc.crc32 import iscsi as crc32c

from braidlog.objects.store import AlreadyExists, Bytes, NotFound, Store
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle.aggregate.merge import overlay

STATE_PREFIX = "state/"
STATE_VERSIONS_KEPT = 10
CHAIN_MAX = 16
"""The most objects that make up a version."""
WARM_BYTES_MAX = 256 * 1024 * 1024
"""The limit on the states that a Python worker keeps in memory, over all partitions and queries."""

_MAGIC = b"BRAIDST1"
_HEAD = Struct(">8sII")
_READS_AT_ONCE = 8
_RECORDS_KEPT = 16


class VersionHeader(msgspec.Struct, array_like=True, frozen=True):
    """The header of a version. Add fields only at the end."""

    chain: list[int]
    """The micro-batches whose versions make up this one, which is the last. The first one has all groups."""
    older: list[list[int]]
    """Earlier chains whose versions are still in the store."""
    changed_bytes: int
    whole_bytes: int
    """Zero: the object has only the changed groups."""
    chain_bytes: int
    """Bytes of all changes since all groups were last written."""


class BatchRecord(msgspec.Struct, array_like=True, frozen=True):
    """The record of all partitions at the end of a micro-batch.

    Add fields only at the end.
    """

    newest: list[int]
    """The micro-batch of each partition's newest version; -1 if there is none."""
    row_count: int
    """The number of input rows of the micro-batch."""
    watermark_us: int | None
    """Groups that ended before it are removed."""
    event_us_max: int | None
    fingerprint: str
    """Identifies the aggregation. Another aggregation cannot continue with the state."""


@dataclass(frozen=True, slots=True)
class Version:
    header: VersionHeader
    groups: pa.Table


@dataclass(frozen=True, slots=True)
class StoredVersion:
    header: VersionHeader
    changed: pa.Table
    whole: pa.Table | None


def encode_version(
    batch: int, before: VersionHeader | None, changed: pa.Table, groups: pa.Table, *, versions_kept: int
) -> tuple[bytes, VersionHeader, list[int]]:
    """Encode a version.

    Returns the object, its header, and the versions that it makes unnecessary.

    All groups are written when the chain is at its maximum, or its changes exceed half the size of all groups.
    """
    changed_stream = _stream(changed)
    chain = [] if before is None else before.chain
    chain_bytes = len(changed_stream) + (0 if before is None else before.chain_bytes)
    is_whole = before is None or len(chain) >= CHAIN_MAX or chain_bytes > groups.nbytes // 2
    whole_stream = _stream(groups) if is_whole else b""
    older = [] if before is None else list(before.older)
    if is_whole:
        older += [chain] if chain else []
        chain, chain_bytes = [], 0
    chain = [*chain, batch]
    # A chain serves all micro-batches until the next chain begins.
    past = [each for each, after in zip(older, [*older, chain][1:], strict=True) if after[0] <= batch - versions_kept]
    header = VersionHeader(chain, older[len(past) :], len(changed_stream), len(whole_stream), chain_bytes)
    head = msgspec.msgpack.encode(header)
    body = b"".join((head, changed_stream, whole_stream))
    return _HEAD.pack(_MAGIC, len(head), crc32c(body)) + body, header, [each for run in past for each in run]


def decode_version(key: str, data: Bytes) -> StoredVersion:
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise _damaged(key)
    magic, head_bytes, checksum = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    if magic != _MAGIC or crc32c(body) != checksum:
        raise _damaged(key)
    header = msgspec.msgpack.decode(body[:head_bytes], type=VersionHeader)
    changed_end = head_bytes + header.changed_bytes
    whole = body[changed_end : changed_end + header.whole_bytes]
    return StoredVersion(header, _table(body[head_bytes:changed_end]), _table(whole) if len(whole) else None)


def _damaged(key: str) -> DataLoss:
    return DataLoss(f"the state {key} is damaged", help="The store returned different bytes than were written.")


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())


def _table(data: memoryview) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()


class WarmStates:
    """Caches the newest states that this process has seen.

    When it is full, it drops the oldest.
    """

    def __init__(self, bytes_max: int = WARM_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._versions: OrderedDict[tuple[str, int], Version] = OrderedDict()
        self._size_bytes = 0
        self.records: OrderedDict[tuple[str, int], BatchRecord] = OrderedDict()
        """Records of the last micro-batches. All tasks of the next one need the same record."""

    def get(self, folder: str, partition: int) -> Version | None:
        found = self._versions.get((folder, partition))
        if found is not None:
            self._versions.move_to_end((folder, partition))
        return found

    def put(self, folder: str, partition: int, version: Version) -> None:
        self.drop(folder, partition)
        self._versions[(folder, partition)] = version
        self._size_bytes += version.groups.nbytes
        while self._size_bytes > self._bytes_max and self._versions:
            _, oldest = self._versions.popitem(last=False)
            self._size_bytes -= oldest.groups.nbytes

    def drop(self, folder: str, partition: int) -> None:
        before = self._versions.pop((folder, partition), None)
        if before is not None:
            self._size_bytes -= before.groups.nbytes


class StateStore:
    """Reads and writes the states of one aggregation of one query.

    Use from one event loop.
    """

    def __init__(self, store: Store, folder: str, keys: Sequence[str], warm: WarmStates, *, versions_kept: int) -> None:
        self._store = store
        self._folder = folder
        self._keys = keys
        self._warm = warm
        self._versions_kept = versions_kept

    async def load(self, partition: int, batch: int) -> Version:
        """Return the version that this micro-batch has written."""
        warm = self._warm.get(self._folder, partition)
        if warm is not None and warm.header.chain[-1] == batch:
            return warm
        newest = await self._read(partition, batch)
        if newest.whole is not None:
            version = Version(newest.header, newest.whole)
        else:
            version = Version(newest.header, await self._follow(partition, newest, warm))
        self._warm.put(self._folder, partition, version)
        return version

    async def _follow(self, partition: int, newest: StoredVersion, warm: Version | None) -> pa.Table:
        """Rebuild all groups from the nearest version that has them and the changes since."""
        chain = newest.header.chain[:-1]
        groups: pa.Table | None = None
        if warm is not None and warm.header.chain[-1] in chain:
            groups = warm.groups
            chain = chain[chain.index(warm.header.chain[-1]) + 1 :]
        limit = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(batch: int) -> StoredVersion:
            async with limit:
                return await self._read(partition, batch)

        found = list(await asyncio.gather(*(read(batch) for batch in chain)))
        if groups is None:
            first = found.pop(0)
            if first.whole is None:
                raise DataLoss(f"the state of partition {partition} does not begin with all groups")
            groups = first.whole
        return overlay(groups, [each.changed for each in found] + [newest.changed], self._keys)

    async def _read(self, partition: int, batch: int) -> StoredVersion:
        key = self._version_key(partition, batch)
        try:
            return decode_version(key, (await self._store.get(key)).data)
        except NotFound as error:
            raise DataLoss(
                f"the state {key} is not in the store",
                help="A checkpoint needs its state. If the state was removed, start with a new checkpoint.",
            ) from error

    async def write(
        self, partition: int, batch: int, before: Version | None, changed: pa.Table, groups: pa.Table
    ) -> StoredVersion | None:
        """Write a version.

        If another attempt was faster, return its version; None if this one was written.
        """
        data, header, past = encode_version(
            batch, None if before is None else before.header, changed, groups, versions_kept=self._versions_kept
        )
        # Delete first: the new version no longer names them, so later nobody could.
        if past:
            await self._store.delete([self._version_key(partition, each) for each in past])
        try:
            await self._store.put(self._version_key(partition, batch), data)
        except AlreadyExists:
            self._warm.drop(self._folder, partition)
            return await self._read(partition, batch)
        self._warm.put(self._folder, partition, Version(header, groups))
        return None

    async def batch(self, batch: int) -> BatchRecord | None:
        records = self._warm.records
        record = records.get((self._folder, batch))
        if record is None:
            try:
                found = await self._store.get(self._batch_key(batch))
            except NotFound:
                return None
            record = records[(self._folder, batch)] = msgspec.json.decode(found.data, type=BatchRecord)
            while len(records) > _RECORDS_KEPT:
                records.popitem(last=False)
        return record

    async def write_batch(self, batch: int, record: BatchRecord) -> None:
        past = batch - self._versions_kept
        if past >= 0:
            await self._store.delete([self._batch_key(past)])
        try:
            await self._store.put(self._batch_key(batch), msgspec.json.encode(record))
        except AlreadyExists:
            there = await self.batch(batch)
            if there is not None and there != record:
                raise JobError(
                    f"micro-batch {batch} has run before with other rows: with {there.row_count}, and now with"
                    f" {record.row_count}",
                    help="If the checkpoint was restored without its state, start with a new checkpoint. Two"
                    " aggregations of one query need different names: group_by(…, name=…).",
                ) from None

    def _version_key(self, partition: int, batch: int) -> str:
        return f"{self._folder}{partition:05d}/{batch:010d}"

    def _batch_key(self, batch: int) -> str:
        return f"{self._folder}batch/{batch:010d}"


def state_folder(query_id: str, name: str) -> str:
    return f"{STATE_PREFIX}{query_id}/{name}/"


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The input of a micro-batch, over all its map tasks."""

    row_count: int = 0
    partitions: frozenset[int] = frozenset()
    """The partitions that have rows."""
    event_us_max: int | None = None


def next_watermark(before: BatchRecord | None, delay_us: int) -> int | None:
    """Compute a micro-batch's watermark.

    It is the latest event time before the micro-batch, less the delay.
    """
    if before is None or before.event_us_max is None:
        return None if before is None else before.watermark_us
    reached_us = (before.event_us_max - delay_us) // 1000 * 1000
    return reached_us if before.watermark_us is None else max(before.watermark_us, reached_us)


def next_record(
    before: BatchRecord | None, batch: int, brought: BatchInput, watermark_us: int | None, *, partitions: int,
    fingerprint: str,
) -> BatchRecord:  # fmt: skip
    """Make the record of a micro-batch from the previous record and the input."""
    newest = [-1] * partitions if before is None else list(before.newest)
    for partition in brought.partitions:
        newest[partition] = batch
    times = [brought.event_us_max, None if before is None else before.event_us_max]
    event_us_max = max((each for each in times if each is not None), default=None)
    return BatchRecord(newest, brought.row_count, watermark_us, event_us_max, fingerprint)
