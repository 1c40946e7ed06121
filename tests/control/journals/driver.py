"""Journals to test with: files as agents write them, and an agent's part in scans and replays."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tests.control.driver import Plane, batch, find_job, make_object, start_plane

from braidlog.control.interface import (
    REPLAY,
    SCAN,
    BatchVerdict,
    BoundsRequest,
    CommitObject,
    CompleteJob,
    ControlPlane,
    FindExtents,
    JobVerdict,
    RegisterAgent,
    ReplayDone,
    ReplayTask,
    RequestScan,
    ScanDone,
    ScanTask,
    SequenceName,
    TakenJob,
    TopicInfo,
)
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.settings import ControlSettings
from braidlog.objects.format import decode_footer_bytes
from braidlog.objects.keys import (
    JOURNAL_PREFIX,
    SLOTS_IN_FLIGHT_MAX,
    SLOTS_PER_SEQUENCE_MAX,
    journal_key,
    parse_journal_key,
    sequence_prefix,
)
from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import AlreadyExists

LIGHTNING = {"braidlog_topic_type": "lightning"}


def journal_file(
    extents: Sequence[tuple[bytes, int, Sequence[BatchEntry]]],
    slot: int,
    *,
    incarnation: str = "agent-a",
    sequence: int = 0,
) -> CommitObject:
    """A file with these (topic id, partition, batches), written while the control plane may have been away."""
    made = make_object(extents, write_epoch=0, incarnation=incarnation)
    return CommitObject(journal_key(incarnation, sequence, slot), made.size, made.footer)


def fence(slot: int, *, incarnation: str = "agent-a", sequence: int = 0) -> CommitObject:
    return journal_file([], slot, incarnation=incarnation, sequence=sequence)


@dataclass
class ReplayingAgent:
    """Scans and replays as an agent does. Footers stand for the files: the store has them whole."""

    plane: Plane
    lists: int = 0
    gets: int = 0
    sealed: int = 0

    async def put(self, file: CommitObject) -> None:
        """Journal a file, and tell nobody."""
        await self.plane.store.put(file.key, msgspec.msgpack.encode((file.size, file.footer)))

    async def read(self, key: str) -> CommitObject:
        self.gets += 1
        size, footer = msgspec.msgpack.decode(bytes((await self.plane.store.get(key)).data), type=tuple[int, bytes])
        return CommitObject(key, size, footer, replayed=True)

    async def work(self, control: ControlPlane | None = None) -> int:
        """Do all jobs that there are. Returns how many there were."""
        control = control or self.plane.service
        count = 0
        while (job := await find_job(control, "agent", [SCAN, REPLAY])) is not None:
            verdict = await self.do(control, job)
            assert verdict.accepted, verdict
            count += 1
        return count

    async def do(self, control: ControlPlane, job: TakenJob) -> JobVerdict:
        if job.task.scan is not None:
            found = await self.scan(job.task.scan)
            return await control.complete_job(CompleteJob(job.job_id, job.token, [], [], scan=ScanDone(found)))
        assert job.task.replay is not None
        done = await self.replay(control, job.task.replay)
        return await control.complete_job(CompleteJob(job.job_id, job.token, [], [], replay=done))

    async def scan(self, task: ScanTask) -> list[SequenceName]:
        found: list[SequenceName] = []
        after: str | None = None
        while True:
            self.lists += 1
            page = await self.plane.store.list(JOURNAL_PREFIX, after=after, limit=1)
            if not page.objects:
                return found
            place = parse_journal_key(page.objects[0].key)
            below = task.known_below.get(place.incarnation, 0)
            if place.sequence < below:
                after = sequence_prefix(place.incarnation, below)
            else:
                found.append(SequenceName(place.incarnation, place.sequence))
                after = sequence_prefix(place.incarnation, place.sequence) + "~"

    async def replay(self, control: ControlPlane, task: ReplayTask) -> ReplayDone:
        known = {slot for start, end in task.known for slot in range(start, end)} | set(range(task.watermark))
        listed = await self._list(task)
        if task.seal:
            lowest = next(slot for slot in range(SLOTS_PER_SEQUENCE_MAX + 1) if slot not in known | set(listed))
            window = range(lowest, min(lowest + SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX))
            for slot in window:
                if slot not in known and slot not in listed:
                    self.sealed += 1
                    try:
                        await self.put(fence(slot, incarnation=task.incarnation, sequence=task.number))
                    except AlreadyExists:
                        pass
            listed = await self._list(task)
        fenced: list[int] = []
        for slot in listed:
            if slot in known:
                continue
            file = await self.read(journal_key(task.incarnation, task.number, slot))
            if not decode_footer_bytes(file.footer).extents:
                fenced.append(slot)
            else:
                await control.commit_object(file)
        return ReplayDone(task.incarnation, task.number, task.seal, listed, fenced)

    async def _list(self, task: ReplayTask) -> list[int]:
        self.lists += 1
        prefix = sequence_prefix(task.incarnation, task.number)
        after = f"{prefix}{task.watermark - 1:010d}" if task.watermark else None
        page = await self.plane.store.list(prefix, after=after, limit=SLOTS_PER_SEQUENCE_MAX)
        return [parse_journal_key(meta.key).slot for meta in page.objects]


async def read_log(control: ControlPlane, partition_id: int, footers: dict[str, CommitObject]) -> list[BatchEntry]:
    """Every batch of the partition in the order of offsets, found by where the index says that it lies."""
    found = await control.find_extents(FindExtents(partition_id, 0, 10**9))
    keys = {stored.number: stored.key for stored in found.objects}
    log: list[BatchEntry] = []
    next_offset = 0
    for extent in found.extents:
        assert extent.base_offset == next_offset
        footer = decode_footer_bytes(footers[keys[extent.object_number]].footer)
        for entry in footer.extents:
            position = entry.position
            for each in entry.batches:
                if extent.position <= position < extent.position + extent.length:
                    log.append(each)
                    next_offset += each.offset_count
                position += each.length
        assert next_offset == extent.end_offset
    return log


SETTINGS = ControlSettings(
    grace_epochs=2,
    session_timeout_s=10**6,
    unreferenced_grace_s=60.0,
    producer_expiration_s=3600.0,
    journals=JournalSettings(
        sequence_age_s=60.0, gap_s=60.0, gap_s_max=600.0, held_batches_max=20, replay_files_per_s=0
    ),
)


class Journal:
    """One agent's sequence, committed file by file."""

    def __init__(self, plane: Plane, topic: TopicInfo, incarnation: str = "agent-a") -> None:
        self.plane = plane
        self.topic = topic
        self.incarnation = incarnation
        self.slot = 0
        self.files: dict[str, CommitObject] = {}

    def file(self, *batches: BatchEntry, partition: int = 0) -> CommitObject:
        extents = [(self.topic.topic_id, partition, batches)]
        made = journal_file(extents, self.slot, incarnation=self.incarnation)
        self.slot += 1
        self.files[made.key] = made
        return made

    async def commit(self, *batches: BatchEntry, partition: int = 0) -> list[BatchVerdict]:
        verdict = await self.plane.service.commit_object(self.file(*batches, partition=partition))
        assert verdict.error_code == 0, verdict
        return verdict.extents[0].verdicts

    async def log(self, partition: int = 0) -> list[tuple[int, int]]:
        """Epoch and sequence of each batch, by offset."""
        found = await read_log(self.plane.service, self.topic.partition_ids[partition], self.files)
        return [(each.producer_epoch, each.base_sequence) for each in found]


async def restarted(plane: Plane, tmp_path: Path) -> Plane:
    await plane.service.close()
    again = await start_plane(
        f"sqlite://{tmp_path}/metadata.db", clock=plane.clock, bucket=plane.bucket, settings=SETTINGS
    )
    plane.service, plane.metadata = again.service, again.metadata
    return plane


async def replay_all(plane: Plane) -> None:
    """So that the control plane knows that nothing is left to replay."""
    await plane.service.request_scan(RequestScan("test"))
    await ReplayingAgent(plane).work()


def file(topic: TopicInfo, slot: int, *, incarnation: str = "agent-a", sequence: int = 0) -> CommitObject:
    return journal_file([(topic.topic_id, 0, [batch()])], slot, incarnation=incarnation, sequence=sequence)


async def record_count(plane: Plane, topic: TopicInfo) -> int:
    [bounds] = (await plane.service.current_bounds(BoundsRequest(topic.partition_ids))).bounds
    return bounds.high_watermark


async def register(plane: Plane, incarnation: str = "agent-a", port: int = 9092) -> None:
    await plane.service.register_agent(RegisterAgent(incarnation, "127.0.0.1", port, ""))
