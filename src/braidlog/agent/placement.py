"""Which agent a client is sent to. Any agent can serve any partition, so this is about batching, caches and zones only.

Every agent computes the same answer from the same view (rendezvous hashing), so clients of one partition meet at one
agent, and when an agent goes only its own partitions move.
"""

from hashlib import blake2b
from typing import TYPE_CHECKING

from braidlog.agent.view import ClusterView, PartitionView
from braidlog.control.interface import AgentInfo

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

ZONE_TAG = "zone="
"""Clients that cannot tell their rack in a request name their zone in `client.id`: `orders-writer,zone=eu-1a`."""


def _weight(subject: bytes, node_id: int) -> bytes:
    return blake2b(subject + node_id.to_bytes(4, "big"), digest_size=8).digest()


def pick(candidates: list[AgentInfo], subject: bytes) -> AgentInfo | None:
    return max(candidates, key=lambda agent: (_weight(subject, agent.node_id), agent.node_id), default=None)


def candidates_for(view: ClusterView, zone: str) -> list[AgentInfo]:
    """The agents of a zone, or all of them where the zone has none."""
    agents = list(view.agents.values())
    return [agent for agent in agents if zone and agent.zone == zone] or agents


def zone_of_client(client_id: str) -> str:
    _, tag, rest = client_id.partition(ZONE_TAG)
    return rest.split(",", 1)[0].strip() if tag else ""


def leader_for(view: ClusterView, partition: PartitionView, zone: str) -> int:
    """The agent that clients of this zone are told to be the partition's leader."""
    found = pick(candidates_for(view, zone), partition.partition_id.to_bytes(8, "big"))
    return found.node_id if found is not None else -1


def reader_for(agent: "Agent", partition: PartitionView, rack_id: str) -> int:
    """The agent in the consumer's own zone that it should read from instead; -1 where this one will do."""
    if not rack_id or rack_id == agent.zone:
        return -1
    in_zone = [info for info in agent.view.agents.values() if info.zone == rack_id]
    found = pick(in_zone, partition.partition_id.to_bytes(8, "big"))
    return found.node_id if found is not None else -1
