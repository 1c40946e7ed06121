"""A control plane to test against, and objects to commit to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from tests.fakes import FakeClock

from braidlog.control.interface import (
    CommitObject,
    ControlPlane,
    CreateTopics,
    InitProducerId,
    NewTopic,
    ObjectVerdict,
    TakeJobs,
    TakenJob,
    TopicInfo,
)
from braidlog.control.metadata.store import BucketParts, MetadataStore, open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.keys import OWNER_KEY, PROBE_KEY, data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.owner import claim
from braidlog.runtime.entropy import SeededEntropy

BATCH_BYTES = 100
START_MS = 1_700_000_000_000

_numbers = count(1)


@dataclass
class Plane:
    """One running control plane and what it stands on."""

    service: ControlService
    metadata: MetadataStore
    clock: FakeClock
    bucket: MemoryBucket
    store: MemoryStore

    @property
    def keys(self) -> list[str]:
        """The keys of all objects in the store, except the one that names its owner."""
        return [key for key in self.bucket.keys if key not in (OWNER_KEY, PROBE_KEY)]


async def start_plane(
    url: str = "sqlite://",
    *,
    clock: FakeClock | None = None,
    bucket: MemoryBucket | None = None,
    settings: ControlSettings | None = None,
) -> Plane:
    clock = clock or FakeClock(sleepers_wait=True)
    bucket = bucket or MemoryBucket()
    store = MemoryStore(bucket, url="memory://", clock=clock)
    metadata = await open_metadata(url, BucketParts(store, clock, SeededEntropy(f"{url}/metadata"), url))
    # What tests commit they do not store, so a store that is new after a restart has to say whose it is by itself.
    await claim(store, str(SeededEntropy(url).uuid()))
    service = ControlService(metadata, store, clock, SeededEntropy(url), settings or ControlSettings())
    await service.start()
    return Plane(service, metadata, clock, bucket, store)


def batch(
    count: int = 1,
    pid: int = -1,
    epoch: int = 0,
    sequence: int = 0,
    *,
    attributes: int = 0,
    timestamp_ms: int = START_MS,
) -> BatchEntry:
    if pid < 0:
        return BatchEntry(BATCH_BYTES, count, attributes, timestamp_ms)
    return BatchEntry(BATCH_BYTES, count, attributes, timestamp_ms, pid, epoch, sequence)


def make_object(
    extents: Sequence[tuple[bytes, int, Sequence[BatchEntry]]],
    *,
    write_epoch: int = 1,
    nonce: bytes | None = None,
    incarnation: str = "test",
) -> CommitObject:
    """An object with these (topic id, partition, batches), as an agent would commit it."""
    number = next(_numbers)
    entries = []
    position = 0
    for topic_id, partition, batches in sorted(extents, key=lambda extent: extent[:2]):
        length = sum(entry.length for entry in batches)
        timestamps = [entry.timestamp_ms_max for entry in batches]
        records = sum(entry.offset_count for entry in batches)
        entries.append(
            ExtentEntry(
                topic_id,
                partition,
                position,
                length,
                records,
                min(timestamps),
                max(timestamps),
                KAFKA_BATCHES,
                list(batches),
            )
        )
        position += length
    footer = Footer(nonce or number.to_bytes(16, "big"), write_epoch, incarnation, START_MS, "", entries)
    encoded = encode_footer(footer)
    size = position + len(encoded) + len(encode_trailer(encoded, footer.nonce))
    return CommitObject(data_key(write_epoch, incarnation, number), size, encoded)


async def create_topic(control: ControlPlane, name: str = "events", partitions: int = 1, **configs: str) -> TopicInfo:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    answer = await control.create_topics(CreateTopics([NewTopic(name, partitions, configs=named)]))
    topic = answer.outcomes[0].topic
    assert topic is not None, answer
    return topic


async def new_producer(control: ControlPlane) -> int:
    identity = await control.init_producer_id(InitProducerId(None, 0))
    assert identity.error_code == 0
    return identity.producer_id


async def commit(
    control: ControlPlane, topic: TopicInfo, batches: Sequence[BatchEntry], partition: int = 0
) -> list[tuple[int, int, bool]]:
    """Commit one extent; returns (error code, base offset, duplicate) of each batch."""
    verdict = await control.commit_object(make_object([(topic.topic_id, partition, batches)]))
    return outcomes(verdict)


def outcomes(verdict: ObjectVerdict) -> list[tuple[int, int, bool]]:
    assert verdict.error_code == 0, verdict
    return [
        (each.error_code, each.base_offset, each.duplicate) for extent in verdict.extents for each in extent.verdicts
    ]


async def upload(plane: Plane, topic: TopicInfo) -> CommitObject:
    request = make_object([(topic.topic_id, 0, [batch()])], write_epoch=plane.service.parts.epochs.current)
    await plane.store.put(request.key, b"x" * request.size)
    return request


async def pass_epochs(plane: Plane, count: int) -> None:
    for _ in range(count):
        await plane.service.parts.epochs.advance()


async def find_job(control: ControlPlane, worker: str, kinds: list[str]) -> TakenJob | None:
    """Take a round of one job, if there is one."""
    taken = (await control.take_jobs(TakeJobs(worker, kinds))).jobs
    return taken[0] if taken else None


async def take_job(control: ControlPlane, worker: str, kinds: list[str]) -> TakenJob:
    job = await find_job(control, worker, kinds)
    assert job is not None
    return job
