"""The state of the whole cluster, for the people who run it."""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.feed import AgentInfo
from braidlog.control.interface.journals import JournalStatistics


class DescribeCluster(Message, frozen=True):
    pass


class AgentStatus(Message, frozen=True):
    agent: AgentInfo
    heard_ms_ago: int
    """How long ago the agent sent its last heartbeat."""
    feed_lag: int
    """How many changes of the feed it has not asked for yet; -1: it has not asked for any."""


class StandbyStatus(Message, frozen=True):
    """A control plane that waits to take over."""

    name: str
    lag: int
    """How many deltas of the metadata it lacked when it last reported; -1: it copies none, because it needs none."""
    heard_ms_ago: int


class CopyStatus(Message, frozen=True):
    """The copy of the metadata in the bucket."""

    kind: str
    """`itself`: the metadata is in the bucket. `shipped`: a copy follows it. `none`: there is no copy."""
    age_ms: int
    """How old the oldest change is that the copy lacks; 0: it lacks none; -1: unknown, or there is no copy."""
    position: int = -1
    trouble: str = ""
    """Why the copy does not advance; empty: it does."""


class ClusterDescription(Message, frozen=True):
    cluster_id: str
    store_url: str
    holder: str
    """The name of the active control plane."""
    active_since_ms: int
    fencing_epoch: int
    feed_revision: int
    agents: list[AgentStatus]
    standbys: list[StandbyStatus]
    jobs: dict[str, int]
    """How many jobs are in each state."""
    journals: JournalStatistics
    copy: CopyStatus
    topic_count: int = 0
    partition_count: int = 0


class ClusterPlane(Protocol):
    async def describe_cluster(
        self, request: DescribeCluster, *, timeout_s: float | None = None
    ) -> ClusterDescription: ...
