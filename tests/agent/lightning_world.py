"""Agents and a control plane on one bucket, in virtual time, with a control plane that can be cut off."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from braidlog.agent.agent import Agent
from braidlog.agent.journal_jobs import JournalExecutor
from braidlog.control.interface import (
    CommitObject,
    ControlPlane,
    CreateTopics,
    FindExtents,
    InitProducerId,
    NewTopic,
    ObjectVerdict,
)
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.metadata.store import open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.format import read_footer
from braidlog.objects.layout import BatchEntry
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings
from braidlog.sim.virtual.clock import EPOCH_MS, SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.network import Network
from braidlog.sim.virtual.process import Process
from braidlog.writing.request import WriteRequest

RECORD_BYTES = 100


class GatedStore(MemoryStore):
    """Each put of an agent first does, and then does, what the test has prepared for it."""

    before: Callable[[str], Awaitable[None]] | None = None
    after: Callable[[str], Awaitable[None]] | None = None

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        before, after = self.before, self.after
        self.before = self.after = None
        if before is not None:
            await before(key)
        etag = await super().put(key, data, overwrite=overwrite)
        if after is not None:
            await after(key)
        return etag


class Cuttable:
    """The control plane as one agent sees it."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self.loses_commits = False
        self.commit_s = 0.0
        """How long the answer to a commit is on its way."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        if self.loses_commits and not request.replayed:
            raise ControlUnavailable("cut off")
        verdict = await self._control.commit_object(request, timeout_s=timeout_s)
        if self.commit_s and not request.replayed:
            await asyncio.sleep(self.commit_s)
        return verdict


class LightningWorld:
    def __init__(self, folder: Path, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.entropy = SeededEntropy(seed)
        self.clock = SimClock(loop)
        self.bucket = MemoryBucket()
        self.plain = MemoryStore(self.bucket, url="memory://", clock=self.clock)
        self.store = GatedStore(self.bucket, url="memory://", clock=self.clock)
        """The agent's own."""
        self._folder = folder
        self.service: ControlService
        self.control: Cuttable
        self.agent: Agent
        self.told: list[tuple[int, int]] = []
        """Numbers and error codes, in the order of the answers."""

    async def start(self, *, topic_type: str = "lightning", **settings: object) -> None:
        metadata = await open_metadata(f"sqlite://{self._folder}/metadata.db")
        journals = JournalSettings(scan_interval_s=5.0, sequence_age_s=60.0, gap_s=30.0, replay_files_per_s=0.0)
        self.service = ControlService(
            metadata, self.plain, self.clock, self.entropy.fork("control"), ControlSettings(journals=journals)
        )
        await self.service.start()
        await self.boot(**settings)
        created = await self.service.create_topics(
            CreateTopics([NewTopic("topic", 1, configs={"braidlog.topic.type": topic_type})])
        )
        topic = created.outcomes[0].topic
        assert topic is not None
        self.topic_id, self.partition_id = topic.topic_id, topic.partition_ids[0]
        while "topic" not in self.agent.view.topics_by_name:
            await self.agent.view.wait_catalog_change()

    async def boot(self, name: str = "agent", **settings: object) -> None:
        """Another agent, as a process of its own; the one before goes on unless it was killed."""
        self.process = Process(name, name)
        self.control = Cuttable(self.service)
        control: Any = self.control
        chosen = AgentSettings.model_validate(
            {
                "listen": Address(name, 9092),
                "upload_interval_ms": 10,
                "request_timeout_ms": 1000,
                "cache_listen": "off",
                "sequence_age_ms": 60_000,  # as in the control plane
                **settings,
            }
        )
        self.agent = Agent(control, self.store, self.clock, self.entropy.fork(name), chosen, Metrics())
        await self.loop.spawn_in(self.process, self.agent.start())

    async def close(self) -> None:
        await self.agent.stop()
        await self.service.close()

    async def new_producer(self) -> int:
        return (await self.service.init_producer_id(InitProducerId(None, 60_000))).producer_id

    async def write(self, number: int, producer_id: int = -1, *, sequence: int | None = None) -> int:
        """One record, known by its number; returns the error code of its answer."""
        answered: asyncio.Future[int] = self.loop.create_future()

        def done(request: WriteRequest) -> None:
            self.told.append((number, request.error_code))
            answered.set_result(request.error_code)

        sequence = number if sequence is None else sequence
        identity = (producer_id, 0, sequence) if producer_id >= 0 else (-1, -1, -1)
        entry = BatchEntry(RECORD_BYTES, 1, 0, EPOCH_MS + number, *identity)
        request = WriteRequest(self.topic_id, 0, b"x" * RECORD_BYTES, entry, EPOCH_MS + number, -1, done)
        self.process.run(self.agent.write_path.submit, request)
        return await answered

    async def read(self) -> list[int]:
        """The numbers of all records, in the order of the log."""
        found = await self.service.find_extents(FindExtents(self.partition_id, 0, 10**9, 10**6))
        keys = {stored.number: stored.key for stored in found.objects}
        numbers: list[int] = []
        for extent in found.extents:
            footer = await read_footer(self.plain, keys[extent.object_number])
            for entry in footer.extents:
                position = entry.position
                for batch in entry.batches:
                    if extent.position <= position < extent.position + extent.length:
                        numbers.append(batch.timestamp_ms_max - EPOCH_MS)
                    position += batch.length
        return numbers

    async def wait_read(self, count: int, timeout_s: float = 300.0) -> list[int]:
        """When there are so many records."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        while len(numbers := await self.read()) < count:
            assert self.clock.monotonic_s() < deadline_s, f"only {numbers} after {timeout_s} s"
            await self.clock.sleep(0.1)
        return numbers

    def replayer(self) -> JournalExecutor:
        """What another agent would do with a replay job."""
        return JournalExecutor(
            self.service, self.plain, self.clock, self.entropy.fork("replayer"), incarnation="replayer"
        )


def run_lightning(folder: Path, test: Callable[[LightningWorld], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a test in a world of its own."""
    entropy = SeededEntropy(seed)
    loop = VirtualLoop(entropy)
    loop.network = Network(loop, entropy)
    try:
        loop.run_until_complete(test(LightningWorld(folder, loop, seed)))
    finally:
        loop.close()
    assert not loop.failures, loop.failures
