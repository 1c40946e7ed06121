"""`braid cluster`: who runs the cluster, and whether it is well."""

import asyncio
from typing import Annotated, Any

import typer

from braidlog.cli.options import AnyAgent, Control, Format
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows, say
from braidlog.clients.cluster_status import cluster_status, describe_cluster
from braidlog.clients.control_client import ask_control, find_control

app = typer.Typer(help="The cluster as a whole.", no_args_is_help=True)

ASK_INTERVAL_S = 1.0
AGENT_COLUMNS = ["node_id", "address", "zone", "heard_s_ago", "feed_lag"]
STANDBY_COLUMNS = ["name", "lag", "heard_s_ago"]


@app.callback()
def cluster() -> None:
    pass


@app.command()
def status(
    bootstrap: AnyAgent = None,
    control: Control = None,
    exit_when_healthy: Annotated[
        bool, typer.Option("--exit-when-healthy", help="Ask again until the cluster is healthy.")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for a healthy cluster.")
    ] = "5m",
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show who is active, who stands by, the agents and the copy.

    Exits with 1 if the cluster is not healthy.

    \b
    Example: braid cluster status --exit-when-healthy
    """
    from braidlog.cli.options import duration_s

    found = asyncio.run(_ask(control, bootstrap, duration_s("--timeout", timeout) if exit_when_healthy else None))
    _show(found, format)
    if found["troubles"]:
        raise typer.Exit(1)


async def _ask(control: str | None, bootstrap: str | None, patience_s: float | None) -> dict[str, Any]:
    """Describe the cluster, at once or as soon as it is healthy."""
    from braidlog.clients.errors import CommandError
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.errors import BraidError

    clock = SystemClock()
    give_up_s = clock.monotonic_s() + (patience_s or 0.0)
    told = ""
    while True:
        try:
            found = cluster_status(
                await ask_control(find_control(control, bootstrap), describe_cluster), clock.wall_ms()
            )
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
