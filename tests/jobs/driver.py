"""A control plane with real objects behind it, workers for it, and what a consumer would read."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.control.driver import START_MS, Plane, start_plane
from tests.fakes import FakeClock

from braidlog.agent.read_path.reader import Slice, append_batches
from braidlog.control.interface import COMPACT, MERGE, CommitObject, FindExtents, TopicInfo
from braidlog.control.jobs.settings import JobSettings
from braidlog.control.settings import ControlSettings
from braidlog.jobs.parts import PART_BYTES
from braidlog.jobs.rounds import LocalEngine, RoundExecutor
from braidlog.jobs.worker import ONE_JOB, RoundLimits, Worker
from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.objects.store import Bytes, Store
from braidlog.records.batch import has_valid_crc, scan_batches
from braidlog.records.record import Record, decode_batch, encode_batch
from braidlog.runtime.entropy import SeededEntropy

JOBS = JobSettings(
    lease_s=30.0,
    merge_target_bytes=64 * 1024,
    merge_fan_in=4,
    merge_age_s=0.0,
    compaction_bytes_min=0,
    compaction_interval_s=0.0,
)
SETTINGS = ControlSettings(grace_epochs=2, unreferenced_grace_s=60.0, full_sweep_interval_s=10_000.0, jobs=JOBS)


@dataclass(frozen=True)
class Read:
    """A record as a consumer sees it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


async def start(url: str = "sqlite://", *, settings: ControlSettings = SETTINGS, plane: Plane | None = None) -> Plane:
    clock, bucket = (plane.clock, plane.bucket) if plane is not None else (FakeClock(sleepers_wait=True), None)
    return await start_plane(url, clock=clock, bucket=bucket, settings=settings)


class Writer:
    """Uploads and commits objects of real record batches, as an agent would."""

    def __init__(self, plane: Plane, name: str = "writer", store: Store | None = None) -> None:
        self._plane = plane
        self._store = store or plane.store
        self._entropy = SeededEntropy(name)
        self._name = name
        self._number = 0

    async def write(
        self,
        topic: TopicInfo,
        records: dict[int, Sequence[tuple[bytes | None, bytes | None]]],
        *,
        timestamp_ms: int | None = None,
        batches: int = 1,
    ) -> str:
        """One object with one extent for each partition that has (key, value) pairs. Returns its key."""
        at_ms = START_MS if timestamp_ms is None else timestamp_ms
        pieces: list[bytes] = []
        extents: list[ExtentEntry] = []
        position = 0
        for partition, pairs in sorted(records.items()):
            entries: list[BatchEntry] = []
            start = position
            share = -(-len(pairs) // batches)
            for first in range(0, len(pairs), share):
                some = pairs[first : first + share]
                data = encode_batch([Record(at, at_ms, key, value, ()) for at, (key, value) in enumerate(some)])
                pieces.append(data)
                entries.append(BatchEntry(len(data), len(some), 0, at_ms))
                position += len(data)
            extents.append(
                ExtentEntry(
                    topic.topic_id,
                    partition,
                    start,
                    position - start,
                    len(pairs),
                    at_ms,
                    at_ms,
                    KAFKA_BATCHES,
                    entries,
                )
            )
        epoch = self._plane.service.parts.epochs.current
        footer = Footer(self._entropy.token(16), epoch, self._name, at_ms, "", extents)
        encoded = encode_footer(footer)
        whole = b"".join([*pieces, encoded, encode_trailer(encoded, footer.nonce)])
        key = data_key(epoch, self._name, self._number)
        self._number += 1
        await self._store.put(key, whole)
        verdict = await self._plane.service.commit_object(CommitObject(key, len(whole), encoded))
        assert verdict.error_code == 0, verdict
        return key


def worker(
    plane: Plane,
    name: str = "worker",
    store: Store | None = None,
    *,
    limits: RoundLimits = ONE_JOB,
    part_bytes: int = PART_BYTES,
) -> Worker:
    entropy, store = SeededEntropy(name), store or plane.store
    executor = RoundExecutor(
        LocalEngine(store, plane.clock, entropy.fork("jobs")), store, entropy, part_bytes=part_bytes
    )
    return Worker(plane.service, executor, plane.clock, entropy, name=name, kinds=[MERGE, COMPACT], limits=limits)


async def work_off(plane: Plane, name: str = "worker", *, part_bytes: int = PART_BYTES) -> int:
    """Plan, and do everything that is on the board. Returns how many jobs were done."""
    await plane.service.parts.planner.plan_once()
    some = worker(plane, name, part_bytes=part_bytes)
    while await some.run_once():
        pass
    statistics = some.statistics()
    assert (statistics.refused, statistics.failed) == (0, 0), plane.service.parts.jobs.list
    return statistics.done


async def read_all(plane: Plane, topic: TopicInfo, partition: int = 0, *, store: Store | None = None) -> list[Read]:
    """Everything that a consumer gets from the log's start on, through the code that agents serve with."""
    store = store or plane.store
    partition_id = topic.partition_ids[partition]
    found: list[Read] = []
    offset = 0
    while True:
        answer = await plane.service.find_extents(FindExtents(partition_id, offset, 1 << 20))
        offset = max(offset, answer.bounds.log_start_offset)
        if offset >= answer.bounds.high_watermark:
            return found
        objects = {stored.number: stored for stored in answer.objects}
        served = Slice([], 0, offset)
        for extent in answer.extents:
            data: Bytes | None = extent.inline
            if data is None:
                key = objects[extent.object_number].key
                data = await store.get_range(key, extent.position, extent.position + extent.length)
            if not append_batches(served, memoryview(data), extent.base_offset, 1 << 20):
                break
        assert served.next_offset > offset, "a consumer would be stuck here"
        found += decode(b"".join(served.buffers), offset)
        offset = served.next_offset


def decode(data: bytes, from_offset: int) -> list[Read]:
    view = memoryview(data)
    found: list[Read] = []
    for position, header in scan_batches(view):
        whole = view[position : position + header.total_bytes]
        assert has_valid_crc(whole, header)
        found += [
            Read(record.offset, record.key, record.value, record.timestamp_ms)
            for record in decode_batch(whole, bytes_max=1 << 24)
            if record.offset >= from_offset
        ]
    return found
