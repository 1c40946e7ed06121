"""Agents of one zone over one store: how often they ask it, and what becomes of those that come and go."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from braidlog.agent.agent import Agent
from braidlog.control.interface import ControlPlane, CreateTopics, NewTopic
from braidlog.control.metadata.store import open_metadata
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.service import ControlService
from braidlog.node.assembly import control_settings
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.wrapper import Operation, Request, StoreWrapper, T
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.rpc.server import RpcServer
from braidlog.runtime.settings import load_settings

PARTITIONS = 6
RECORDS = 60
WAIT_S = 60.0


class CountingStore(StoreWrapper):
    """Notes the keys of all reads of objects, of whichever agent."""

    def __init__(self, inner: MemoryStore, gets: Counter[str]) -> None:
        super().__init__(inner)
        self._gets = gets

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        if request.operation is Operation.GET_RANGE:
            self._gets[request.key] += 1
            for _ in range(20):  # so that others come while it is on its way
                await asyncio.sleep(0)
        return await call()


class Zone:
    """A control plane, and agents that come and go, over real sockets."""

    def __init__(self) -> None:
        self.clock, self.entropy = SystemClock(), SystemEntropy()
        self.bucket = MemoryBucket()
        self.gets: Counter[str] = Counter()
        self.agents: list[Agent] = []
        self._controls: list[ControlPlane] = []
        self.service: ControlService
        self.server: RpcServer

    async def start(self, folder: Path) -> None:
        settings = load_settings({"metadata_url": f"sqlite://{folder}/metadata.db"}).control
        metadata = await open_metadata(settings.metadata_url)
        self.service = ControlService(metadata, self._store(), self.clock, self.entropy, control_settings(settings))
        await self.service.start()
        self.server = await serve_control(self.service, "127.0.0.1:0")
        await self.service.create_topics(CreateTopics([NewTopic("events", PARTITIONS)]))

    def _store(self) -> CountingStore:
        return CountingStore(MemoryStore(self.bucket, url="memory://zone", clock=self.clock), self.gets)

    async def join(self, **settings: object) -> Agent:
        given = {"listen": "127.0.0.1:0", "zone": "eu-1a", "upload_interval_ms": 10, **settings}
        control = connect_control(self.server.address, self.clock, self.entropy)
        agent = Agent(
            control,
            self._store(),
            self.clock,
            self.entropy,
            load_settings(given).agent,
            Metrics(process=False),
        )
        await agent.start()
        self._controls.append(control)
        self.agents.append(agent)
        return agent

    async def see_each_other(self) -> None:
        """Until every agent's view has all of them."""
        nodes = {agent.node_id for agent in self.agents}
        async with asyncio.timeout(WAIT_S):
            for agent in self.agents:
                while set(agent.view.agents) != nodes:
                    await agent.view.wait_catalog_change()
            await asyncio.sleep(0)

    async def see_all_records(self) -> None:
        async with asyncio.timeout(WAIT_S):
            for agent in self.agents:
                for partition in agent.view.partitions.values():
                    while partition.high_watermark < RECORDS // PARTITIONS:
                        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                        partition.waiters[changed] = None
                        await changed

    async def leave(self) -> None:
        for agent in self.agents:
            await agent.stop()
        for control in self._controls:
            await control.close()
        self.agents, self._controls = [], []

    async def close(self) -> None:
        await self.leave()
        await self.server.close()
        await self.service.close()

    async def produce(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{self.agents[0].port}")
        await producer.start()
        try:
            for number in range(RECORDS):
                await producer.send_and_wait("events", b"%d" % number, partition=number % PARTITIONS)
        finally:
            await producer.stop()

    async def read(self, agent: Agent) -> list[bytes]:
        """All of the log, partition by partition and all partitions at once, as this agent would send it."""

        async def partition(number: int) -> bytes:
            view = agent.view.partition("events", number)
            assert view is not None
            found, offset = b"", 0
            while offset < view.high_watermark:
                piece = await agent.reader.read(view, offset, 1 << 20)
                assert piece.next_offset > offset
                found += b"".join(bytes(each) for each in piece.buffers)
                offset = piece.next_offset
            return found

        return list(await asyncio.gather(*map(partition, range(PARTITIONS))))


@pytest.fixture
async def zone(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = Zone()
    await made.start(tmp_path)
    yield made
    await made.close()


async def test_three_agents_of_a_zone_read_a_cold_log_with_one_get_per_object(zone: Zone) -> None:
    await zone.join()
    await zone.produce()
    written = await zone.read(zone.agents[0])
    assert all(written)
    await zone.leave()
    zone.gets.clear()
    for _ in range(3):
        await zone.join()
    await zone.see_each_other()
    assert await asyncio.gather(*map(zone.read, zone.agents)) == [written] * 3
    objects = [key for key in zone.gets if key.startswith("data/")]
    assert len(objects) >= RECORDS // 10
    assert set(zone.gets.values()) == {1}
    # Once more costs nothing at all.
    assert await asyncio.gather(*map(zone.read, zone.agents)) == [written] * 3
    assert set(zone.gets.values()) == {1}
    figures = [agent.zone_cache.statistics() for agent in zone.agents if agent.zone_cache is not None]
    assert sum(each.served for each in figures) == sum(each.asked for each in figures) > 0
    assert sum(each.around for each in figures) == 0


async def test_what_was_just_written_is_read_in_the_whole_zone_without_a_get(zone: Zone) -> None:
    for _ in range(3):
        await zone.join()
    await zone.see_each_other()
    await zone.produce()
    await zone.see_all_records()
    found = [await zone.read(agent) for agent in zone.agents]
    assert found[0] == found[1] == found[2]
    assert not zone.gets


async def test_an_agent_that_does_not_answer_costs_a_get_and_no_records(zone: Zone) -> None:
    await zone.join()
    await zone.produce()
    written = await zone.read(zone.agents[0])
    await zone.leave()
    for _ in range(3):
        await zone.join()
    await zone.see_each_other()
    silent = zone.agents[2]
    assert silent.zone_cache is not None
    await silent.zone_cache.close()  # it is still registered
    found = await asyncio.gather(*map(zone.read, zone.agents[:2]))
    assert found == [written] * 2
    assert max(zone.gets.values()) <= 2


async def test_each_for_itself_where_it_is_off_or_in_another_zone(zone: Zone) -> None:
    await zone.join()
    await zone.produce()
    await zone.leave()
    zone.gets.clear()
    await zone.join(cache_listen="off")
    await zone.join(zone="eu-1b")
    await zone.join()
    await zone.see_each_other()
    await asyncio.gather(*map(zone.read, zone.agents))
    assert set(zone.gets.values()) == {3}


async def test_agents_without_a_zone_share_on_one_host(zone: Zone) -> None:
    await zone.join()
    await zone.produce()
    await zone.leave()
    zone.gets.clear()
    await zone.join(zone="")
    await zone.join(zone="")
    await zone.join(zone="", listen="127.0.0.2:0")
    await zone.see_each_other()
    await asyncio.gather(*map(zone.read, zone.agents))
    assert set(zone.gets.values()) == {2}
