"""`braid cluster`: who runs the cluster, and whether it is well."""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.connect.control_client import ask_control
from braidlog.cli.options import DEFAULT_CONTROL, Control, Format
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows, say

if TYPE_CHECKING:
    from braidlog.control.interface import ClusterDescription, ControlPlane

app = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)

CALL_TIMEOUT_S = 10.0
ASK_INTERVAL_S = 1.0
FEED_LAG_MAX = 10_000
"""An agent that lacks more changes than this serves a view that is too old."""
COPY_AGE_S_MAX = 300
AGENT_COLUMNS = ["node_id", "address", "zone", "heard_s_ago", "feed_lag"]
STANDBY_COLUMNS = ["name", "lag", "heard_s_ago"]


@app.callback()
def cluster() -> None:
    pass


@app.command()
def status(
    control: Control = DEFAULT_CONTROL,
    exit_when_healthy: Annotated[
        bool, typer.Option("--exit-when-healthy", help="Ask again until the cluster is healthy.")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for a healthy cluster.")
    ] = "5m",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show who is active, who stands by, the agents and the copy in the bucket.

    Exits with 1 if the cluster is not healthy.

    \b
    Example: braid cluster status --exit-when-healthy
    """
    from braidlog.cli.options import duration_s

    found = asyncio.run(_ask(control, duration_s("--timeout", timeout) if exit_when_healthy else None))
    _show(found, format)
    if found["troubles"]:
        raise typer.Exit(1)


async def _ask(control: str, patience_s: float | None) -> dict[str, Any]:
    """Describe the cluster, at once or as soon as it is healthy."""
    from braidlog.cli.errors import CommandError
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.errors import BraidError

    clock = SystemClock()
    give_up_s = clock.monotonic_s() + (patience_s or 0.0)
    told = ""
    while True:
        try:
            found = _described(await ask_control(control, _describe), clock.wall_ms())
            trouble = "; ".join(found["troubles"])
            if not trouble or clock.monotonic_s() >= give_up_s:
                return found
        except (BraidError, CommandError) as error:
            if clock.monotonic_s() >= give_up_s:
                raise
            trouble = str(error)
        if trouble != told:
            say(f"waiting: {trouble}")
            told = trouble
        await clock.sleep(ASK_INTERVAL_S)


async def _describe(plane: "ControlPlane") -> "ClusterDescription":
    from braidlog.control.interface import DescribeCluster

    return await plane.describe_cluster(DescribeCluster(), timeout_s=CALL_TIMEOUT_S)


def _described(answer: "ClusterDescription", now_ms: int) -> dict[str, Any]:
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
        "troubles": _troubles(answer),
    }


def _troubles(answer: "ClusterDescription") -> list[str]:
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


def _show(found: dict[str, Any], format: OutputFormat) -> None:
    if format is OutputFormat.JSON:
        emit_json({"healthy": not found["troubles"], **found})
        return
    agents, standbys, troubles = found.pop("agents"), found.pop("standbys"), found.pop("troubles")
    zones = found.pop("agents_by_zone")
    found["agents_by_zone"] = [f"{zone or 'no zone'}: {count}" for zone, count in sorted(zones.items())]
    found["jobs"] = [f"{state}: {count}" for state, count in sorted(found["jobs"].items())]
    emit_fields(format, {"healthy": not troubles, **found})
    for trouble in troubles:
        emit(f"trouble: {trouble}")
    for columns, rows, title in ((STANDBY_COLUMNS, standbys, "standbys"), (AGENT_COLUMNS, agents, "agents")):
        if rows:
            emit(f"\n{title}")
            emit_rows(format, columns, rows)
