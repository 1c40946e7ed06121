"""A trickle of writes to an agent with several shards, and the PUTs that it costs.

Agents, shards' groups, journal and sequencer are Braidlog's own, and run in virtual time.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from braidlog.agent.agent import Agent
from braidlog.control.interface import CreateTopics, NewTopic
from braidlog.control.metadata.store import open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.keys import DATA_PREFIX, JOURNAL_PREFIX
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.layout import BatchEntry
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes, Store
from braidlog.objects.wrapper import Request, StoreWrapper, T
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.tasks import TaskGroup
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop
from braidlog.sim.virtual.process import Process
from braidlog.sim.virtual.shard_table import SimTables
from braidlog.writing.request import WriteRequest
from braidlog.writing.shards.board import BoardShape

RECORD_BYTES = 1024
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Trickle:
    kinds: tuple[str, ...]
    """Types of the topics that are written to, each at the same rate."""
    duration_s: float
    shard_count: int = 8
    requests_per_s: float = 4.0
    """At each shard."""
    profile: str = "s3"


class CountedStore(StoreWrapper):
    """Counts PUTs of data and of journal files."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.puts: Counter[str] = Counter()

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        self.puts[key.split("/", maxsplit=1)[0]] += 1
        return await self.inner.put(key, data, overwrite=overwrite)


async def count_puts(plan: Trickle, folder: Path, loop: VirtualLoop, entropy: Entropy) -> int:
    """Return how many objects and journal files were uploaded."""
    clock = SimClock(loop)
    plain = MemoryStore(MemoryBucket(), url="memory://bench", clock=clock)
    service = ControlService(
        await open_metadata(f"sqlite://{folder}/{'-'.join(plan.kinds)}.db"),
        plain,
        clock,
        entropy.fork("control"),
        ControlSettings(),
    )
    await service.start()
    store = CountedStore(SlowStore(plain, latency_profile(plan.profile), clock=clock, entropy=entropy.fork("store")))
    shape = BoardShape(plan.shard_count, slot_count=256, arena_bytes=1 << 20)
    tables = SimTables(loop, entropy.fork("tables"), shape)
    agents = []
    for shard in range(plan.shard_count):
        settings = AgentSettings.model_validate(
            {"listen": Address("127.0.0.1", 9092 + shard), "store_price": "s3-standard", "cache_listen": "off"}
        )
        links = tables.sit_down(shard, Process(f"shard-{shard}", "bench"))
        agents.append(Agent(service, store, clock, entropy.fork(f"agent {shard}"), settings, Metrics(), links))
    for agent in agents:
        await agent.start()
    topics = [NewTopic(kind, plan.shard_count, configs={"braidlog.topic.type": kind}) for kind in plan.kinds]
    await service.create_topics(CreateTopics(topics), timeout_s=CALL_TIMEOUT_S)
    producers = TaskGroup("producers")
    for kind in plan.kinds:
        for shard, agent in enumerate(agents):
            while kind not in agent.view.topics_by_name:
                await agent.view.wait_catalog_change()
            # Equal arrivals, so that what differs is what becomes of them.
            producers.spawn(_write(plan, agent, kind, shard, clock, entropy.fork(f"arrivals {shard}")))
    await producers.wait_all()
    for agent in agents:
        await agent.stop()
    await service.close()
    return store.puts[DATA_PREFIX.split("/")[0]] + store.puts[JOURNAL_PREFIX.split("/")[0]]


async def _write(plan: Trickle, agent: Agent, kind: str, partition: int, clock: SimClock, arrivals: Entropy) -> None:
    topic_id = agent.view.topics_by_name[kind].info.topic_id
    until_s = clock.monotonic_s() + plan.duration_s
    while clock.monotonic_s() < until_s:
        await clock.sleep(arrivals.uniform(0.0, 2 / plan.requests_per_s))
        now_ms = clock.wall_ms()
        entry = BatchEntry(RECORD_BYTES, 1, 0, now_ms)
        records = b"\x00" * RECORD_BYTES
        agent.write_path.submit(WriteRequest(topic_id, partition, records, entry, now_ms, -1, _answered))


def _answered(request: WriteRequest) -> None:
    if request.error_code:
        raise RuntimeError(f"a write failed: {request.error_code} {request.error_message}")
