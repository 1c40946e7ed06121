"""A backlog of small objects, written straight into a folder and its metadata, and what must be left of it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from braidlog.control.interface import CommitObject, ControlPlane, CreateTopics, FindExtents, NewTopic, TopicInfo
from braidlog.control.jobs.settings import JobSettings
from braidlog.control.metadata.store import open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.records.batch import has_valid_crc, scan_batches
from braidlog.records.placement import place_batches
from braidlog.records.record import Record, decode_batch, encode_batch
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

EVENTS, STATE = "events", "state"
CALL_TIMEOUT_S = 60.0
_EXTENTS_BYTES = 1 << 40
_BATCH_BYTES_MAX = 1 << 26

Row = tuple[int, bytes | None, bytes | None]
"""The offset, key and value of a record."""


@dataclass(frozen=True, slots=True)
class Shape:
    objects: int
    partitions: int
    """The partitions of the topic to merge."""
    compacted_partitions: int
    """The partitions of the topic to compact."""
    extents_per_object: int
    """How many partitions of each topic an object has records of."""
    value_bytes: int
    keys: int = 20
    seed: int = 1


@dataclass(slots=True)
class Backlog:
    """What was written, and what a reader must find after all jobs."""

    size_bytes: int = 0
    rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)

    def expected(self, topic: str, partition: int) -> list[Row]:
        rows = self.rows.get((topic, partition), [])
        if topic != STATE:
            return rows
        newest = {key: (offset, key, value) for offset, key, value in rows}
        return sorted(newest.values())


async def write_backlog(folder: Path, shape: Shape) -> Backlog:
    """Write it through a control plane of this process, which plans nothing."""
    clock, entropy = SystemClock(), SystemEntropy()
    store = open_store(f"file://{folder}/store", clock=clock, entropy=entropy.fork("store"))
    metadata = await open_metadata(f"sqlite://{folder}/metadata.db")
    jobs = JobSettings(plan_interval_s=86_400.0)
    service = ControlService(metadata, store, clock, entropy, ControlSettings(jobs=jobs))
    await service.start()
    try:
        keep = {"retention.ms": "-1"}
        compact = {**keep, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
        topics = await service.create_topics(
            CreateTopics(
                [
                    NewTopic(EVENTS, shape.partitions, configs=keep),
                    NewTopic(STATE, shape.compacted_partitions, configs=compact),
                ]
            )
        )
        made = [outcome.topic for outcome in topics.outcomes if outcome.topic is not None]
        return await _Writer(service, store, shape, made).run()
    finally:
        await service.close()
        await store.close()


class _Writer:
    def __init__(self, service: ControlService, store: Store, shape: Shape, topics: Sequence[TopicInfo]) -> None:
        self._service = service
        self._store = store
        self._shape = shape
        self._topics = sorted(topics, key=lambda topic: topic.topic_id)
        self._random = random.Random(shape.seed)
        self._entropy = SystemEntropy()
        self._now_ms = SystemClock().wall_ms()
        self._backlog = Backlog()

    async def run(self) -> Backlog:
        for number in range(self._shape.objects):
            await self._write(number)
        return self._backlog

    async def _write(self, number: int) -> None:
        pieces: list[bytes] = []
        extents: list[ExtentEntry] = []
        position = 0
        for topic in self._topics:
            count = len(topic.partition_ids)
            first = number * self._shape.extents_per_object
            for at in sorted({(first + step) % count for step in range(min(count, self._shape.extents_per_object))}):
                data = self._batch(topic.name, at, number)
                entry = BatchEntry(len(data), 2, 0, self._now_ms)
                extents.append(
                    ExtentEntry(
                        topic.topic_id, at, position, len(data), 2, self._now_ms, self._now_ms, KAFKA_BATCHES, [entry]
                    )
                )
                pieces.append(data)
                position += len(data)
        epoch = self._service.parts.epochs.current
        nonce = self._entropy.token(16)
        footer = encode_footer(Footer(nonce, epoch, "backlog", self._now_ms, "", extents))
        whole = b"".join([*pieces, footer, encode_trailer(footer, nonce)])
        key = data_key(epoch, "backlog", number)
        await self._store.put(key, whole)
        verdict = await self._service.commit_object(CommitObject(key, len(whole), footer))
        if verdict.error_code:
            raise RuntimeError(f"object {number} was refused: {verdict}")
        self._backlog.size_bytes += position

    def _batch(self, topic: str, partition: int, number: int) -> bytes:
        """Two records, of random bytes, so that nothing shrinks on its way."""
        rows = self._backlog.rows.setdefault((topic, partition), [])
        records: list[Record] = []
        for at in range(2):
            key = b"k%d" % self._random.randrange(self._shape.keys)
            value = b"%d " % number + self._random.randbytes(self._shape.value_bytes)
            rows.append((len(rows), key, value))
            records.append(Record(at, self._now_ms, key, value, ()))
        return encode_batch(records)


async def read_partition(control: ControlPlane, store: Store, partition_id: int) -> list[Row]:
    """Everything that a consumer gets, in the order of offsets."""
    found: list[Row] = []
    offset = 0
    while True:
        answer = await control.find_extents(FindExtents(partition_id, offset, _EXTENTS_BYTES), timeout_s=CALL_TIMEOUT_S)
        keys = {stored.number: stored.key for stored in answer.objects}
        for extent in answer.extents:
            key = keys[extent.object_number]
            data = bytearray(await store.get_range(key, extent.position, extent.position + extent.length))
            for position, header, base_offset in place_batches(memoryview(data), extent.base_offset):
                whole = memoryview(data)[position : position + header.total_bytes]
                if not has_valid_crc(whole, header):
                    raise RuntimeError(f"the batch at {base_offset} of partition {partition_id} is damaged")
                [(_, own)] = scan_batches(whole)
                found += [
                    (base_offset + record.offset - own.base_offset, record.key, record.value)
                    for record in decode_batch(whole, bytes_max=_BATCH_BYTES_MAX)
                ]
            offset = extent.end_offset
        if not answer.extents or offset >= answer.bounds.high_watermark:
            return found
