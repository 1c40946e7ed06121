"""The state of a cluster: who is active, who stands by, and what is wrong."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braidlog.control.interface import ClusterDescription, ControlPlane

CALL_TIMEOUT_S = 10.0
FEED_LAG_MAX = 10_000
"""An agent that lacks more changes than this serves a view that is too old."""
COPY_AGE_S_MAX = 300


async def describe_cluster(plane: "ControlPlane") -> "ClusterDescription":
    """Ask the control plane for the state of its cluster."""
    from braidlog.control.interface import DescribeCluster

    return await plane.describe_cluster(DescribeCluster(), timeout_s=CALL_TIMEOUT_S)


def cluster_status(answer: "ClusterDescription", now_ms: int) -> dict[str, Any]:
    """Put the state of a cluster into words, with what is wrong with it."""
    agents = [
        {
            "node_id": each.agent.node_id,
            "address": f"{each.agent.host}:{each.agent.port}",
            "zone": each.agent.zone or None,
            "heard_s_ago": round(each.heard_ms_ago / 1000, 1),
            "feed_lag": each.feed_lag if each.feed_lag >= 0 else None,
        }
        for each in answer.agents
    ]
    standbys = [
        {
            "name": each.name,
            "lag": each.lag if each.lag >= 0 else None,
            "heard_s_ago": round(each.heard_ms_ago / 1000, 1),
        }
        for each in answer.standbys
    ]
    zones: dict[str, int] = {}
    for each in answer.agents:
        zones[each.agent.zone] = zones.get(each.agent.zone, 0) + 1
    copy = answer.copy
    return {
        "cluster_id": answer.cluster_id,
        "store": answer.store_url,
        "active": answer.holder,
        "active_since": datetime.fromtimestamp(answer.active_since_ms / 1000, UTC).isoformat(timespec="seconds"),
        "active_s": max(0, now_ms - answer.active_since_ms) // 1000,
        "fencing_epoch": answer.fencing_epoch,
        "standbys": standbys,
        "agents": agents,
        "agents_by_zone": zones,
        "feed_revision": answer.feed_revision,
        "feed_lag_max": max((each.feed_lag for each in answer.agents), default=0),
        "topics": answer.topic_count,
        "partitions": answer.partition_count,
        "jobs": answer.jobs,
        "journal_files_to_replay": answer.journals.unreplayed_files,
        "journal_sequences_open": answer.journals.open_sequences,
        "journal_batches_held": answer.journals.held_batches,
        "copy": copy.kind,
        "copy_age_s": round(copy.age_ms / 1000, 1) if copy.age_ms >= 0 else None,
        "copy_position": copy.position if copy.position >= 0 else None,
        "troubles": cluster_troubles(answer),
    }


def cluster_troubles(answer: "ClusterDescription") -> list[str]:
    """Return the reasons why the cluster is not healthy; none if it is."""
    found: list[str] = []
    if not answer.agents:
        found.append("no agent is registered")
    for each in answer.agents:
        place = f"the agent at {each.agent.host}:{each.agent.port}"
        if each.feed_lag < 0:
            found.append(f"{place} does not follow the feed yet")
        elif each.feed_lag > FEED_LAG_MAX:
            found.append(f"{place} is {each.feed_lag} changes behind")
    if answer.copy.trouble:
        found.append(f"the copy of the metadata does not advance: {answer.copy.trouble}")
    elif answer.copy.age_ms > COPY_AGE_S_MAX * 1000:
        found.append(f"the copy of the metadata is {answer.copy.age_ms // 1000} s old")
    return found
