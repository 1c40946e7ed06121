"""The cluster that the console shows: agents by Kafka, control plane by RPC."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from braidlog.clients.errors import CommandError
from braidlog.clients.kafka_client import CALL_TIMEOUT_S
from braidlog.clients.topics import topic_sizes
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.quantities import Address

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from braidlog.clients.agent_facts import AgentFacts
    from braidlog.control.interface import ControlPlane

T = TypeVar("T")

THREADS_MAX = 4
WAITING_MAX = 32
"""Calls that wait for a thread. Further ones are refused, so that a flood of them cannot pile up."""
TOPICS_AGE_S = 2.0
SIZES_AGE_S = 5.0
FACTS_AGE_S_MAX = 30.0
EFFORT_MAX = 0.05
"""An answer that took long is kept longer: asking again and again takes at most this share of the time."""


class Busy(CommandError):
    """The console has too much to do."""


class _Kept(Generic[T]):
    """An answer that is kept for a while, and for longer if it took long."""

    def __init__(self, age_s: float) -> None:
        self._age_s = age_s
        self._found: list[T] = []
        self._until_s = float("-inf")

    async def fresh(self, clock: Clock, ask: Callable[[], Awaitable[T]]) -> T:
        started_s = clock.monotonic_s()
        if not self._found or started_s > self._until_s:
            self._found = [await ask()]
            ended_s = clock.monotonic_s()
            self._until_s = ended_s + max(self._age_s, (ended_s - started_s) / EFFORT_MAX)
        return self._found[0]

    def forget(self) -> None:
        self._until_s = float("-inf")


class Cluster:
    """Asks a running cluster, with few threads and a bounded queue."""

    def __init__(self, bootstrap: str, clock: Clock, entropy: Entropy, control: str | None = None) -> None:
        """`control`: the control plane, if no agent should be asked where it is."""
        self.bootstrap = bootstrap
        self.clock = clock
        self._entropy = entropy
        self._control = control
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="console")
        self._waiting = 0
        self._admin: AdminClient | None = None
        self._plane: ControlPlane | None = None
        self._topics: _Kept[tuple[dict[str, int], dict[int, Address]]] = _Kept(TOPICS_AGE_S)
        self._sizes: _Kept[dict[str, int]] = _Kept(SIZES_AGE_S)
        self._facts: tuple[float, list[AgentFacts]] | None = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._plane is not None:
            await self._plane.close()

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run blocking work in a thread."""
        if self._waiting >= WAITING_MAX:
            raise Busy("the console is busy", help="Try again in a moment.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        finally:
            self._waiting -= 1

    async def admin(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run work with the cluster's admin client, which is its first argument."""
        from braidlog.clients import kafka_client

        async with self._lock:
            if self._admin is None:
                self._admin = await self.run(kafka_client.admin, self.bootstrap)
        return await self.run(work, self._admin, *arguments)

    async def plane(self, ask: "Callable[[ControlPlane], Awaitable[T]]") -> T:
        """Ask the control plane."""
        from braidlog.clients.control_client import find_control
        from braidlog.control.remote import connect_control

        async with self._lock:
            if self._plane is None:
                address = await self.run(find_control, self._control, self.bootstrap)
                self._plane = connect_control(address, clock=self.clock, entropy=self._entropy.fork("control"))
        return await ask(self._plane)

    async def topics(self) -> dict[str, int]:
        """Give the names of all topics with their numbers of partitions, in order."""
        return (await self._listing())[0]

    async def brokers(self) -> dict[int, Address]:
        return (await self._listing())[1]

    async def _listing(self) -> tuple[dict[str, int], dict[int, Address]]:
        return await self._topics.fresh(self.clock, lambda: self.admin(_list_topics))

    async def sizes(self) -> dict[str, int]:
        """Give the bytes that the store holds of each topic."""
        brokers = await self.brokers()
        return await self._sizes.fresh(self.clock, lambda: self.run(topic_sizes, list(brokers.values())))

    def forget_topics(self) -> None:
        """Ask again for the topics, because they have changed."""
        self._topics.forget()

    async def facts(self) -> "list[AgentFacts]":
        """Give what every agent says of itself; agents that do not answer are left out."""
        now_s = self.clock.monotonic_s()
        brokers = await self.brokers()
        known = self._facts
        if known is None or now_s - known[0] > FACTS_AGE_S_MAX or {each.node_id for each in known[1]} != set(brokers):
            self._facts = known = (now_s, await self.admin(_ask_all, sorted(brokers)))
        return known[1]


def _list_topics(client: "AdminClient") -> tuple[dict[str, int], dict[int, Address]]:
    metadata = client.list_topics(timeout=CALL_TIMEOUT_S)
    topics = {name: len(topic.partitions) for name, topic in sorted(metadata.topics.items())}
    brokers = {number: Address(broker.host, broker.port) for number, broker in metadata.brokers.items()}
    return topics, brokers


def _ask_all(client: "AdminClient", node_ids: list[int]) -> "list[AgentFacts]":
    from confluent_kafka import KafkaException

    from braidlog.clients.agent_facts import ask_agent

    found = []
    for node_id in node_ids:
        try:
            found.append(ask_agent(client, node_id))
        except (KafkaException, CommandError):
            continue
    return found
