"""Placement: which agent a client is sent to.

Any agent can serve any partition, so this is only a hint.

It makes clients of one partition meet at one agent, which fills batches and shares caches, and keeps traffic within a
zone. Every agent computes the same answer from the same view. Each topic deals its partitions out to the agents of a
zone one by one, so no agent leads more than one partition more than another. When an agent comes or goes, few
partitions move besides its own.
"""

from hashlib import blake2b
from math import gcd

from braidlog.agent.cluster.view import ClusterView, PartitionView, Place, TopicView
from braidlog.control.interface import AgentInfo

ZONE_TAG = "zone="
"""Clients whose requests have no rack name their zone in `client.id`: `orders-writer,zone=eu-1a`."""


def _weight(subject: bytes, node_id: int) -> bytes:
    return blake2b(subject + node_id.to_bytes(4, "big"), digest_size=8).digest()


def pick(candidates: list[AgentInfo], subject: bytes) -> AgentInfo | None:
    """Pick an agent by rendezvous hashing.

    An agent that goes moves its own subjects and no others.
    """
    return max(candidates, key=lambda agent: (_weight(subject, agent.node_id), agent.node_id), default=None)


def candidates_for(view: ClusterView, zone: str) -> list[AgentInfo]:
    """The agents of a zone, or all agents if the zone has none."""
    agents = list(view.agents.values())
    return [agent for agent in agents if zone and agent.zone == zone] or agents


def zone_of_client(client_id: str) -> str:
    _, tag, rest = client_id.partition(ZONE_TAG)
    return rest.split(",", 1)[0].strip() if tag else ""


def coordinator_of(key: str, view: ClusterView) -> AgentInfo | None:
    """The live agent that a group or a transactional id is sent to."""
    return pick(list(view.agents.values()), key.encode())


def coordinates(node_id: int, key: str, view: ClusterView) -> bool:
    """Whether an agent is the one that the group or the transactional id is sent to.

    Only that one lists it: clients ask every agent and put the answers together.
    """
    found = coordinator_of(key, view)
    return found is not None and found.node_id == node_id


def leader_for(view: ClusterView, partition: PartitionView, zone: str) -> int:
    """The partition's leader for clients of this zone; -1 if there is none."""
    topic = view.topics_by_id.get(partition.topic_id)
    return places_of(view, topic, zone)[partition.index].leader if topic is not None else -1


def reader_for(view: ClusterView, own_zone: str, partition: PartitionView, rack_id: str) -> int:
    """The agent in the consumer's zone to read from instead; -1: this one will do."""
    if not rack_id or rack_id == own_zone:
        return -1
    found = leader_for(view, partition, rack_id)
    return found if found >= 0 and view.agents[found].zone == rack_id else -1


def places_of(view: ClusterView, topic: TopicView, zone: str) -> list[Place]:
    """The place of each partition of a topic, for clients of a zone.

    Computed again only when agents change.
    """
    if not any(agent.zone == zone for agent in view.agents.values()):
        zone = ""  # one entry for all zones without agents: clients can name any number of those
    revision, places = topic.places.get(zone, (-1, []))
    if revision != view.agents_revision or len(places) != len(topic.partitions):
        places = _place(view, topic, zone)
        topic.places[zone] = view.agents_revision, places
    return places


def _place(view: ClusterView, topic: TopicView, zone: str) -> list[Place]:
    topic_id, agents = topic.info.topic_id, view.agents
    if not agents:
        return [Place(-1, (), ())] * len(topic.partitions)
    ring = sorted(agents, key=lambda node_id: (_weight(topic_id, node_id), node_id), reverse=True)
    near = {agent.node_id for agent in candidates_for(view, zone)}
    leaders = _deal(topic_id, len(topic.partitions), [node_id for node_id in ring if node_id in near])
    factor = max(1, topic.info.replication_factor)
    from_leader = {leader: _around(ring, leader)[:factor] for leader in frozenset(leaders)}
    places = [Place(leader, from_leader[leader], from_leader[leader]) for leader in leaders]
    for index, replicas in topic.info.assignments.items():
        live = tuple(node_id for node_id in replicas if node_id in agents)
        # Replicas named by hand are used for clients of other zones, too. If all of them are gone, any agent does.
        leader = next((node_id for node_id in live if node_id in near), live[0] if live else leaders[index])
        offline = tuple(node_id for node_id in replicas if node_id not in agents)
        places[index] = Place(leader, tuple(replicas), live or (leader,), offline)
    return places


def _around(ring: list[int], start: int) -> tuple[int, ...]:
    at = ring.index(start)
    return (*ring[at:], *ring[:at])


def _deal(topic_id: bytes, count: int, node_ids: list[int]) -> list[int]:
    """Deal `count` partitions out to the nodes in turn.

    Each node takes the next free partition of its own walk.

    Each walk visits every partition, in an order that other nodes do not change. So all nodes get equally many, give or
    take one, and most partitions stay where they are when a node comes or goes.
    """
    walks: list[tuple[int, int]] = []
    for node_id in node_ids:
        seed = int.from_bytes(_weight(b"walk" + topic_id, node_id), "big")
        step = seed // count % count + 1
        while gcd(step, count) != 1:
            step += 1
        walks.append((seed % count, step))
    dealt = [-1] * count
    at = [start for start, _ in walks]
    for turn in range(count):
        who = turn % len(node_ids)
        while dealt[at[who]] >= 0:
            at[who] = (at[who] + walks[who][1]) % count
        dealt[at[who]] = node_ids[who]
    return dealt
