"""Producers of a classic and of a Lightning topic at one agent, and what they and their readers wait for.

Agent, journal, sequencer and feed are Braidlog's own. The store takes as long as a latency profile says, and a commit
may be made to take as long as it would at another control plane. On the simulator's event loop all of that passes in
virtual time; on asyncio's own it is what this machine takes.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braidlog.agent.agent import Agent
from braidlog.control.interface import (
    CommitObject,
    ControlPlane,
    CreateTopics,
    InitProducerId,
    NewTopic,
    ObjectVerdict,
)
from braidlog.control.metadata.store import open_metadata
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.keys import JOURNAL_PREFIX
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.layout import BatchEntry
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes, Store
from braidlog.objects.wrapper import Request, StoreWrapper, T
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import CloseThresholds
from braidlog.writing.arena import Arena
from braidlog.writing.batcher import Batcher, BatchRules
from braidlog.writing.order import Order
from braidlog.writing.packing import Packer, Writer
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.stage import RequestStage
from braidlog.writing.uploader import Uploader
from braidlog.writing.uploads import Uploads

CLASSIC, LIGHTNING, FLOOR = "classic", "lightning", "floor"
"""`floor`: a request waits for its upload and is acknowledged then, with nothing before or after it."""
RECORD_BYTES = 1024
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    duration_s: float
    producers: int = 64
    """The number of producers of each kind. Each is idempotent and has a partition of its own."""
    pause_s: tuple[float, float] | None = (0.15, 0.25)
    """Between a producer's requests, however soon they are answered: longer than it takes to sequence one, so that none
    waits for the one before. None: it sends the next one when it has its answer."""
    interval_ms: int = 25
    profile: str = "s3-express"
    commit_s: float = 0.0
    """The time to add to each commit."""
    kinds: tuple[str, ...] = (CLASSIC, LIGHTNING, FLOOR)
    over_rpc: bool = False
    """Whether the control plane is behind a socket."""


def _column() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Samples:
    acknowledged_s: "array[float]" = field(default_factory=_column)
    """How long each request took."""
    visible_s: "array[float]" = field(default_factory=_column)
    """How long it took until a reader could be told of it."""


class SlowCommits:
    """A control plane whose commits take longer."""

    def __init__(self, control: ControlPlane, clock: Clock, commit_s: float) -> None:
        self._control = control
        self._clock = clock
        self._commit_s = commit_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        await self._clock.sleep(self._commit_s)
        return await self._control.commit_object(request, timeout_s=timeout_s)


class ByPrefix(StoreWrapper):
    """Files of journals are put through a store of their own, so that their latencies do not depend on the rest."""

    def __init__(self, journals: Store, others: Store) -> None:
        super().__init__(others)
        self._journals = journals

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        store = self._journals if key.startswith(JOURNAL_PREFIX) else self.inner
        return await store.put(key, data, overwrite=overwrite)


class Settled:
    """Acknowledges what is uploaded."""

    def submit(self, draft: Draft) -> None:
        draft.settle()
        for requests in draft.partitions.values():
            for request in requests:
                request.way_back(request)


class World:
    def __init__(self, plan: Plan, folder: Path, clock: Clock, entropy: Entropy) -> None:
        self._plan = plan
        self._folder = folder
        self._clock = clock
        self._entropy = entropy
        self._tasks = TaskGroup("producers")
        self.samples = {kind: Samples() for kind in plan.kinds}

    async def run(self) -> None:
        """Everything from the start of the processes to the last answer."""
        plan, clock, entropy = self._plan, self._clock, self._entropy
        bucket = MemoryBucket()
        plain = MemoryStore(bucket, url="memory://bench", clock=clock)
        metadata = await open_metadata(f"sqlite://{self._folder}/metadata.db")
        service = ControlService(metadata, plain, clock, entropy.fork("control"), ControlSettings())
        await service.start()
        control: ControlPlane = service
        server = None
        if plan.over_rpc:
            server = await serve_control(service, "127.0.0.1:0")
            control = connect_control(server.address, clock=clock, entropy=entropy.fork("rpc"))
        slow: Any = SlowCommits(control, clock, plan.commit_s)
        store = ByPrefix(self._slow(plain, "journals"), self._slow(plain, "others"))
        settings = AgentSettings.model_validate(
            {
                "listen": Address("127.0.0.1", 0 if plan.over_rpc else 9092),
                "upload_interval_ms": plan.interval_ms,
                # What is compared is what follows the interval, so all wait for it.
                "upload_budget_usd_month": 0,
                "store_price": "s3-express",
                "cache_listen": "off",
            }
        )
        agent = Agent(slow, store, clock, entropy.fork("agent"), settings, Metrics())
        await agent.start()
        try:
            await self._produce(agent, control)
        finally:
            await agent.stop()
            if server is not None:
                await control.close()
                await server.close()
            await service.close()

    def _slow(self, inner: Store, name: str) -> Store:
        profile = latency_profile(self._plan.profile)
        return SlowStore(inner, profile, clock=self._clock, entropy=self._entropy.fork(f"store of {name}"))

    async def _produce(self, agent: Agent, control: ControlPlane) -> None:
        kinds = [kind for kind in self._plan.kinds if kind != FLOOR]
        topics = [NewTopic(kind, self._plan.producers, configs={"braidlog.topic.type": kind}) for kind in kinds]
        await control.create_topics(CreateTopics(topics), timeout_s=CALL_TIMEOUT_S)
        while not all(kind in agent.view.topics_by_name for kind in kinds):
            await agent.view.wait_catalog_change()
        floor = self._floor()
        readers = TaskGroup("readers")
        producers: list[Producer] = []
        for kind in self._plan.kinds:
            for partition in range(self._plan.producers):
                # Equal arrivals, so that what differs is what becomes of them.
                arrivals = self._entropy.fork(f"arrivals {partition}")
                if kind == FLOOR:
                    producer = Producer(self, kind, floor, b"f" * 16, partition, 1, arrivals)
                else:
                    topic = agent.view.topics_by_name[kind]
                    identity = await control.init_producer_id(InitProducerId(None, 60_000), timeout_s=CALL_TIMEOUT_S)
                    producer = Producer(
                        self, kind, agent.write_path, topic.info.topic_id, partition, identity.producer_id, arrivals
                    )
                    readers.spawn(producer.read(agent))
                producers.append(producer)
        for producer in producers:  # all at once, so that the same requests go into the same objects
            self._tasks.spawn(producer.run(self._plan))
        await self._tasks.wait_all()
        await readers.wait_all()

    def _floor(self) -> RequestStage:
        """The same batcher over a store with the same latencies, in the same order, as those of the journal."""
        plain = MemoryStore(MemoryBucket(), url="memory://floor", clock=self._clock)
        uploads = TaskGroup("floor")
        batcher: Batcher
        uploader = Uploader(
            self._slow(plain, "journals"),
            Packer(Writer("floor", "", lambda: 0), Arena(free_bytes_max=0), self._clock, self._entropy.fork("floor")),
            Uploads(Settled(), uploads, lambda draft: batcher.uploaded(draft), lambda key, data: None),
        )
        thresholds = CloseThresholds(4 << 20, self._plan.interval_ms / 1000, 16, 4)
        batcher = Batcher(Order(uploader), BatchRules(thresholds), PutBudget(0.0, 0.0), self._clock)
        return batcher

    @property
    def clock(self) -> Clock:
        return self._clock


class Producer:
    def __init__(
        self,
        world: World,
        kind: str,
        stage: RequestStage,
        topic_id: bytes,
        partition: int,
        producer_id: int,
        entropy: Entropy,
    ) -> None:
        self._clock = world.clock
        self._samples = world.samples[kind]
        self._stage = stage
        self._topic_id = topic_id
        self._partition = partition
        self._producer_id = producer_id
        self._entropy = entropy
        self._sent_s = _column()
        self._open = 0
        self._is_over = False
        self._waiter: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()

    async def run(self, plan: Plan) -> None:
        until_s = self._clock.monotonic_s() + plan.duration_s
        await self._clock.sleep(self._entropy.uniform(0.0, 0.2))  # so that they do not begin together
        while self._clock.monotonic_s() < until_s:
            self._send()
            if plan.pause_s is not None:
                await self._clock.sleep(self._entropy.uniform(*plan.pause_s))
            else:
                await self._wait_answered()
        await self._wait_answered()
        self._is_over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _send(self) -> None:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        entry = BatchEntry(RECORD_BYTES, 1, 0, now_ms, self._producer_id, 0, len(self._sent_s))
        self._sent_s.append(now_s)
        self._open += 1
        self._stage.submit(
            WriteRequest(
                self._topic_id, self._partition, b"\x00" * RECORD_BYTES, entry, now_ms, -1, self._answered(now_s)
            )
        )

    def _answered(self, sent_s: float) -> Callable[[WriteRequest], None]:
        def answered(request: WriteRequest) -> None:
            if request.error_code:
                raise RuntimeError(f"a write failed: {request.error_code} {request.error_message}")
            self._samples.acknowledged_s.append(self._clock.monotonic_s() - sent_s)
            self._open -= 1
            self._changed.set()

        return answered

    async def _wait_answered(self) -> None:
        while self._open:
            self._changed.clear()
            await self._changed.wait()

    async def read(self, agent: Agent) -> None:
        """As a waiting fetch does: woken by the feed."""
        partition = agent.view.topics_by_id[self._topic_id].partitions[self._partition]
        seen = 0
        while not self._is_over or seen < len(self._sent_s):
            self._waiter = asyncio.get_running_loop().create_future()
            partition.waiters[self._waiter] = None
            await self._waiter
            now_s = self._clock.monotonic_s()
            for offset in range(seen, partition.high_watermark):
                self._samples.visible_s.append(now_s - self._sent_s[offset])
            seen = partition.high_watermark
