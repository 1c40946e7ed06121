"""Consumers read in their own zone: an agent of another zone names one there, and sends nothing itself."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.lightning_world import LightningWorld, run_lightning

from braidlog.agent.agent import Agent
from braidlog.records.record import Record, encode_batch
from braidlog.sim.clients.wire_client import WireClient, request_types
from braidlog.sim.virtual.clock import EPOCH_MS

PRODUCE, FETCH, METADATA = 0, 1, 3
RACK_FROM, IDS_FROM, NEWEST = 11, 13, 18
WAIT_S = 10.0
BATCH = encode_batch([Record(0, EPOCH_MS, b"key", b"value", ())])


class Zones:
    """Agents of two zones on one log with one topic of one partition, and who is connected to them."""

    def __init__(self, world: LightningWorld) -> None:
        self.loop = world.loop
        self.topic_id = UUID(bytes=world.topic_id)
        self.agents: dict[str, Agent] = {}
        self.clients: dict[str, WireClient] = {}

    def node_ids(self, zone: str) -> set[int]:
        return {agent.node_id for agent in self.agents.values() if agent.settings.zone == zone}

    async def produce(self, name: str) -> None:
        types = request_types(PRODUCE, 7)
        partition = types.PartitionProduceData(index=0, records=BATCH)
        request = types.ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout=_duration(10.0),
            topic_data=(types.TopicProduceData(name="topic", partition_data=(partition,)),),
        )
        (topic,) = (await self.clients[name].call(PRODUCE, 7, request)).responses
        assert topic.partition_responses[0].error_code == ErrorCode.none
        end_offset = topic.partition_responses[0].base_offset + 1
        for agent in self.agents.values():
            while agent.view.topics_by_name["topic"].partitions[0].high_watermark < end_offset:
                await asyncio.sleep(0.01)

    async def fetch(self, name: str, rack: str, *, version: int = NEWEST, offset: int = 0) -> Any:
        """What this agent says of the partition to a consumer in a rack."""
        types = request_types(FETCH, version)
        name_or_id = {"topic_id": self.topic_id} if version >= IDS_FROM else {"topic": "topic"}
        partition = types.FetchPartition(
            partition=0,
            current_leader_epoch=-1,
            fetch_offset=offset,
            log_start_offset=-1,
            partition_max_bytes=1 << 20,
            **({"last_fetched_epoch": -1} if version >= 12 else {}),
        )
        topic = types.FetchTopic(**name_or_id, partitions=(partition,))
        request = types.FetchRequest(
            max_wait=_duration(WAIT_S),
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=(topic,),
            forgotten_topics_data=(),
            rack_id=rack,
        )
        answer = await self.clients[name].call(FETCH, version, request)
        assert answer.error_code == ErrorCode.none
        (found,) = answer.responses[0].partitions
        assert found.error_code == ErrorCode.none
        return found

    async def leader(self, name: str, client_id: str) -> int:
        """Whom Metadata names to this client."""
        address = self.agents[name].settings.listen
        client = await WireClient.connect(address.host, address.port, client_id)
        types = request_types(METADATA, 9)
        request = types.MetadataRequest(
            topics=(types.MetadataRequestTopic(name="topic"),),
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
        )
        answer = await client.call(METADATA, 9, request)
        client.close()
        assert {broker.node_id: broker.rack for broker in answer.brokers} == {
            agent.node_id: agent.settings.zone for agent in self.agents.values()
        }
        return int(answer.topics[0].partitions[0].leader_id)


def _duration(seconds: float) -> i32Timedelta:
    return i32Timedelta.parse(timedelta(seconds=seconds))


Check = Callable[[Zones], Awaitable[None]]


@pytest.fixture
def in_zones(tmp_path: Path) -> Callable[[Check], None]:
    """Runs a check with one agent in zone a, two in zone b, and one record in the log."""

    def run(check: Check) -> None:
        async def test(world: LightningWorld) -> None:
            await world.start(topic_type="classic", zone="a")
            zones = Zones(world)
            zones.agents["agent"] = world.agent
            for name in ("b-1", "b-2"):
                await world.boot(name, zone="b")
                zones.agents[name] = world.agent
            for name, agent in zones.agents.items():
                while len(agent.view.agents) < 3:
                    await agent.view.wait_catalog_change()
                zones.clients[name] = await WireClient.connect(name, 9092, "consumer")
            await zones.produce("agent")
            await check(zones)
            for agent in zones.agents.values():
                await agent.stop()
            await world.service.close()

        run_lightning(tmp_path, test)

    return run


@pytest.mark.parametrize("version", [RACK_FROM, IDS_FROM - 1, IDS_FROM, NEWEST])
def test_an_agent_of_another_zone_names_one_of_the_consumers_and_sends_nothing(
    version: int, in_zones: Callable[[Check], None]
) -> None:
    async def check(zones: Zones) -> None:
        for asked, rack in [("agent", "b"), ("b-1", "a"), ("b-2", "a")]:
            found = await zones.fetch(asked, rack, version=version)
            assert found.preferred_read_replica in zones.node_ids(rack)
            assert not found.records
            assert (found.high_watermark, found.log_start_offset) == (1, 0)

    in_zones(check)


@pytest.mark.parametrize("version", [RACK_FROM, IDS_FROM - 1, IDS_FROM, NEWEST])
def test_every_agent_of_the_consumers_zone_sends_records(version: int, in_zones: Callable[[Check], None]) -> None:
    async def check(zones: Zones) -> None:
        for asked, rack in [("agent", "a"), ("b-1", "b"), ("b-2", "b")]:
            found = await zones.fetch(asked, rack, version=version)
            assert found.preferred_read_replica == -1
            assert len(found.records) == len(BATCH)

    in_zones(check)


@pytest.mark.parametrize("rack", ["", "nowhere"])
def test_a_consumer_without_a_zone_of_ours_reads_wherever_it_asks(rack: str, in_zones: Callable[[Check], None]) -> None:
    async def check(zones: Zones) -> None:
        for asked in zones.agents:
            found = await zones.fetch(asked, rack)
            assert found.preferred_read_replica == -1
            assert len(found.records) == len(BATCH)

    in_zones(check)


def test_whoever_is_named_sends_the_records(in_zones: Callable[[Check], None]) -> None:
    async def check(zones: Zones) -> None:
        named = (await zones.fetch("agent", "b")).preferred_read_replica
        (name,) = [name for name, agent in zones.agents.items() if agent.node_id == named]
        found = await zones.fetch(name, "b")
        assert (found.preferred_read_replica, len(found.records)) == (-1, len(BATCH))

    in_zones(check)


def test_a_consumer_at_the_end_is_sent_to_its_zone_at_once_and_waits_there(in_zones: Callable[[Check], None]) -> None:
    async def check(zones: Zones) -> None:
        started_s = zones.loop.time()
        found = await zones.fetch("agent", "b", offset=1)
        assert zones.loop.time() - started_s < 1.0
        assert found.preferred_read_replica in zones.node_ids("b")
        started_s = zones.loop.time()
        found = await zones.fetch("b-1", "b", offset=1)
        assert zones.loop.time() - started_s >= WAIT_S
        assert (found.preferred_read_replica, found.records) in [(-1, b""), (-1, None)]

    in_zones(check)


def test_an_agent_that_leaves_is_named_no_more(in_zones: Callable[[Check], None]) -> None:
    async def check(zones: Zones) -> None:
        for left in ({"b-1"}, set[str]()):
            for name in zones.agents.keys() - {"agent"} - left:
                await zones.agents.pop(name).stop()
            while len(zones.agents["agent"].view.agents) > len(zones.agents):
                await zones.agents["agent"].view.wait_catalog_change()
            found = await zones.fetch("agent", "b")
            if left:
                assert {found.preferred_read_replica} == zones.node_ids("b")
            else:
                assert (found.preferred_read_replica, len(found.records)) == (-1, len(BATCH))

    in_zones(check)


def test_metadata_names_a_leader_in_the_zone_of_the_client_id(in_zones: Callable[[Check], None]) -> None:
    async def check(zones: Zones) -> None:
        everyone = {agent.node_id for agent in zones.agents.values()}
        for asked in zones.agents:
            assert await zones.leader(asked, "orders,zone=a") in zones.node_ids("a")
            assert await zones.leader(asked, "orders,zone=b,x=y") in zones.node_ids("b")
            assert await zones.leader(asked, "orders,zone=nowhere") in everyone
        leaders = {
            await zones.leader(asked, client) for asked in zones.agents for client in ("orders", "o,zone=nowhere")
        }
        assert len(leaders) == 1, "all agents say the same"

    in_zones(check)
