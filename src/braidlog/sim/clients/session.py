"""The connections and retries of a simulated client."""

import asyncio
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.runtime.entropy import Entropy
from braidlog.sim.clients.wire_client import Disconnected, WireClient, request_types
from braidlog.sim.history import History

METADATA = 3
METADATA_VERSION = 12
FIND_COORDINATOR = 10
FIND_COORDINATOR_VERSION = 3


class ClientSession:
    """A client's view of the cluster.

    It holds bootstrap addresses, metadata, and one connection per agent.
    """

    def __init__(self, name: str, addresses: list[tuple[str, int]], history: History, entropy: Entropy) -> None:
        self.name = name
        self.history = history
        self.entropy = entropy
        self._addresses = addresses
        self._nodes: dict[int, tuple[str, int]] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self.topic_ids: dict[str, UUID] = {}
        self._connections: dict[tuple[str, int], WireClient] = {}
        self._connects = 0

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float = 0.2) -> None:
        """Wait between two attempts, with jitter."""
        await asyncio.sleep(self.entropy.uniform(0.5 * seconds, 1.5 * seconds))

    async def connection(self, address: tuple[str, int]) -> WireClient:
        known = self._connections.get(address)
        if known is not None and known.is_open:
            return known
        connection = self._connections[address] = await WireClient.connect(*address, self.name)
        self._connects += 1
        connection.label = f"{address[0]}#{self._connects}"
        return connection

    async def any_connection(self) -> WireClient:
        known = list(dict.fromkeys([*self._nodes.values(), *self._addresses]))
        first = self.entropy.below(len(known))
        for address in known[first:] + known[:first]:
            try:
                return await self.connection(address)
            except (Disconnected, TimeoutError):
                continue
        raise Disconnected("no agent can be reached")

    async def refresh(self, topic: str) -> bool:
        """Ask for the topic's leaders. Gives False if the topic is not known (yet)."""
        types = request_types(METADATA, METADATA_VERSION)
        connection = await self.any_connection()
        answer = await connection.call(
            METADATA,
            METADATA_VERSION,
            types.MetadataRequest(
                topics=(types.MetadataRequestTopic(topic_id=None, name=topic),),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
        )
        self._nodes = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        [found] = answer.topics
        if found.error_code != ErrorCode.none:
            return False
        self.topic_ids[topic] = found.topic_id
        for partition in found.partitions:
            self._leaders[topic, partition.partition_index] = partition.leader_id
        return True

    async def leader(self, topic: str, partition: int) -> WireClient:
        """Connect to the agent that leads the partition, as far as is known."""
        for _ in range(2):
            address = self._nodes.get(self._leaders.get((topic, partition), -1))
            if address is not None:
                return await self.connection(address)
            await self.refresh(topic)
        raise Disconnected(f"no leader is known for {topic}/{partition}")

    def forget(self, topic: str, partition: int) -> None:
        """Forget the partition's leader, to ask for it again."""
        self._leaders.pop((topic, partition), None)

    async def coordinator(self, group: str) -> WireClient:
        types = request_types(FIND_COORDINATOR, FIND_COORDINATOR_VERSION)
        connection = await self.any_connection()
        answer = await connection.call(
            FIND_COORDINATOR, FIND_COORDINATOR_VERSION, types.FindCoordinatorRequest(key=group, key_type=0)
        )
        if answer.error_code != ErrorCode.none:
            raise Disconnected(f"no coordinator: {answer.error_code.name}")
        return await self.connection((answer.host, answer.port))

    async def retry(self, what: Any, *, tries: int = 50) -> Any:
        """Call until it works, for a limited time."""
        for _ in range(tries):
            try:
                return await what()
            except (Disconnected, TimeoutError):
                await self.pause()
        raise Disconnected(f"{self.name} gave up after {tries} tries")

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
