"""`braid ripcord`: show how agents work without the control plane.

It reads the bucket, so it works in an outage, too.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import AnyAgent, Config, Format, Set, StoreUrl
from braidlog.cli.output import OutputFormat, emit, emit_fields, emit_json, emit_rows
from braidlog.clients.control_client import ask_control

if TYPE_CHECKING:
    from braidlog.control.interface import ControlPlane, JournalDescription
    from braidlog.objects.store import Store
    from braidlog.runtime.settings import Settings

app = typer.Typer(help="Agents that go on without the control plane.", no_args_is_help=True)

CALL_TIMEOUT_S = 3.0
AGENT_COLUMNS = ["node_id", "address", "zone", "mode", "state", "away_s", "said_s_ago", "incarnation"]


@app.callback()
def ripcord() -> None:
    pass


@app.command()
def status(
    bootstrap: AnyAgent = None,
    control: Annotated[str | None, typer.Option("--control", metavar="HOST:PORT", help="The control plane.")] = None,
    store: StoreUrl = None,
    config: Config = None,
    set: Set = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Show how agents work without the control plane.

    It reads from the store what agents reported, and their snapshot. In an
    outage agents do not answer --bootstrap: give --store.

    \b
    Example: braid ripcord status --store s3://bucket/prefix
    """
    from braidlog.cli.settings import read_settings
    from braidlog.clients.agent_facts import find_agent

    if bootstrap is not None:
        facts = find_agent(bootstrap)
        control, store = control or facts.control, store or facts.store_url
    found = asyncio.run(_look(read_settings(config, set, {"control": control, "store_url": store})))
    if format is OutputFormat.JSON:
        emit_json(found)
        return
    agents = found.pop("agents")
    emit_fields(format, {name: value for part in found.values() for name, value in part.items()})
    if agents:
        emit("")
        emit_rows(format, AGENT_COLUMNS, agents)


async def _look(settings: "Settings") -> dict[str, Any]:
    from braidlog.objects.open import open_store
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy

    store = open_store(settings.agent.store_url, clock=SystemClock(), entropy=SystemEntropy())
    try:
        return {
            "control": await _ask_control(str(settings.agent.control)),
            "snapshot": await _snapshot(store),
            "agents": await _agents(store),
        }
    finally:
        await store.close()


async def _ask_control(address: str) -> dict[str, Any]:
    """Ask the control plane about journals, if it is there."""
    from braidlog.clients.errors import CommandError
    from braidlog.control.interface import DescribeJournals
    from braidlog.runtime.errors import BraidError

    async def ask(plane: "ControlPlane") -> "JournalDescription":
        return await plane.describe_journals(DescribeJournals(0), timeout_s=CALL_TIMEOUT_S)

    found: dict[str, Any] = {"control_plane": address, "control_state": "away"}
    try:
        answer = await ask_control(address, ask)
    except (BraidError, CommandError) as error:
        return {**found, "control_trouble": str(error)}
    figures = answer.statistics
    return {
        **found,
        "control_state": "present",
        "files_sequenced_at_once": figures.fast_files,
        "files_replayed": figures.slow_files,
        "files_to_replay": figures.unreplayed_files,
        "open_sequences": figures.open_sequences,
        "held_batches": figures.held_batches,
    }


async def _snapshot(store: "Store") -> dict[str, Any]:
    from braidlog.agent.ripcord.snapshot import CorruptSnapshot, SnapshotKeeper
    from braidlog.objects.store import NotFound
    from braidlog.runtime.clock import SystemClock

    try:
        snapshot = await SnapshotKeeper(store).read()
    except NotFound:
        return {"snapshot": "none"}
    except CorruptSnapshot as error:
        return {"snapshot": f"damaged: {error}"}
    return {
        "snapshot": "good",
        "snapshot_age_s": max(0, SystemClock().wall_ms() - snapshot.taken_ms) // 1000,
        "snapshot_topics": len(snapshot.topics),
        "snapshot_agents": len(snapshot.agents),
    }


async def _agents(store: "Store") -> list[dict[str, Any]]:
    from braidlog.agent.ripcord.discovery import Discovery
    from braidlog.runtime.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    return [
        {
            "node_id": notice.agent.node_id,
            "address": f"{notice.agent.host}:{notice.agent.port}",
            "zone": notice.agent.zone or None,
            "mode": notice.mode,
            "state": notice.state,
            "away_s": round(notice.away_s, 1),
            "said_s_ago": max(0, now_ms - written_ms) // 1000,
            "incarnation": notice.agent.incarnation,
        }
        for written_ms, notice in await Discovery(store).read_all()
    ]
