"""`braid up`, `braid agent`, `braid control`: the processes of a Braidlog."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import Config, Format, ReadyFile, Set, StoreUrl
from braidlog.cli.output import OutputFormat
from braidlog.cli.servers import restoring
from braidlog.cli.servers.process import serve, skip_hypothesis
from braidlog.cli.settings import read_settings

if TYPE_CHECKING:
    from braidlog.node.assembly import Endpoints

Listen = Annotated[str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Port 0 takes any free one.")]
Advertised = Annotated[
    str | None, typer.Option("--advertised", metavar="HOST:PORT", help="The address that clients are told to use.")
]
MetricsListen = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Where /metrics is served, or off.")
]
ConsoleListen = Annotated[
    str | None, typer.Option("--console", metavar="HOST:PORT", help="Where the console is served, or off.")
]
MetadataUrl = Annotated[
    str | None,
    typer.Option(
        "--metadata", metavar="URL", help="sqlite:///path/to/file, bucket:// for the store, or postgresql://…"
    ),
]
Standby = Annotated[
    bool, typer.Option("--standby", help="Wait until no other process holds the metadata, then take over.")
]
TakeOver = Annotated[bool, typer.Option("--take-over", help="End the process that holds the metadata, if any.")]
Zone = Annotated[str | None, typer.Option("--zone", metavar="ZONE", help="The zone this agent is in.")]


def _shards_option(default: str) -> Any:
    what = f"Processes that serve clients, each at its own port; by default {default}."
    return typer.Option("--shards", metavar="N", min=1, max=256, help=what)


Shards = Annotated[int | None, _shards_option("one per core")]
UpShards = Annotated[int | None, _shards_option("this one")]
"""With everything in one process there is one port to open, calls to the control plane stay in the process, and the
store may be in memory: the easiest way to try Braidlog. If the load needs more cores, separate agents are better."""

Ripcord = Annotated[
    str | None,
    typer.Option(
        "--ripcord",
        metavar="off|on|auto",
        help="on: journal all topics, so that writes never wait for the control plane. auto: while it is away.",
    ),
]


def up(
    listen: Listen = None,
    advertised: Advertised = None,
    store: StoreUrl = None,
    metadata: MetadataUrl = None,
    take_over: TakeOver = False,
    zone: Zone = None,
    shards: UpShards = None,
    ripcord: Ripcord = None,
    metrics: MetricsListen = None,
    console: ConsoleListen = None,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run a whole Braidlog in one process, with a console.

    \b
    Example: braid up --store s3://bucket/prefix --zone us-east-1a
    """
    settings = read_settings(
        config,
        set,
        {
            "listen": listen,
            "advertised": advertised,
            "store_url": store,
            "metadata_url": metadata,
            "take_over": "true" if take_over else None,
            "zone": zone,
            "shards": str(shards) if shards is not None else None,
            "ripcord": ripcord,
            "metrics_listen": metrics,
            "console_listen": console,
        },
    )

    def start() -> "AbstractAsyncContextManager[Endpoints]":
        from braidlog.cli.servers.console import serve_with_console

        return serve_with_console(settings)

    serve("braid up", settings.agent, start, ready_file, format)


def agent(
    control: Annotated[str | None, typer.Option("--control", metavar="HOST:PORT", help="The control plane.")] = None,
    listen: Listen = None,
    advertised: Advertised = None,
    store: StoreUrl = None,
    zone: Zone = None,
    shards: Shards = None,
    ripcord: Ripcord = None,
    metrics: MetricsListen = None,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run an agent, which serves Kafka clients. Its control plane runs elsewhere.

    \b
    Example: braid agent --control 10.0.0.5:9190 --store s3://bucket/prefix
    """
    settings = read_settings(
        config,
        set,
        {
            "control": control,
            "listen": listen,
            "advertised": advertised,
            "store_url": store,
            "zone": zone,
            "shards": str(shards) if shards is not None else None,
            "ripcord": ripcord,
            "metrics_listen": metrics,
        },
    )

    def start() -> "AbstractAsyncContextManager[Endpoints]":
        from braidlog.node.assembly import run_agent

        return run_agent(settings.agent)

    serve("braid agent", settings.agent, start, ready_file, format)


def shard() -> None:
    """Run one shard of an agent.

    Its supervisor starts it and sends its orders on standard input.
    """
    skip_hypothesis()
    from braidlog.node.shards import ShardOrders

    orders = ShardOrders(json.loads(sys.stdin.readline()))

    @asynccontextmanager
    async def start() -> "AsyncIterator[Endpoints]":
        from braidlog.node.assembly import run_shard

        async with run_shard(orders.settings, orders.links) as endpoints:
            assert endpoints.agent is not None
            orders.report(endpoints.agent.port, endpoints.metrics)
            orders.stop_with_supervisor()
            yield endpoints

    serve(f"braid shard {orders.shard}", orders.settings, start, None, OutputFormat.TEXT)


control_app = typer.Typer()
control_app.command("restore")(restoring.restore)
control_app.command("move")(restoring.move)
control_app.command("backup")(restoring.backup)
control_app.command("verify")(restoring.verify)


@control_app.callback(invoke_without_command=True)
def control(
    context: typer.Context,
    listen: Listen = None,
    store: StoreUrl = None,
    metadata: MetadataUrl = None,
    take_over: TakeOver = False,
    standby: Standby = False,
    metrics: MetricsListen = None,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run the control plane: catalog, sequencer, index and groups.

    \b
    Example: braid control --listen 0.0.0.0:9190 --metadata bucket:// --standby
    """
    if context.invoked_subcommand is not None:
        return
    settings = read_settings(
        config,
        set,
        {
            "control_listen": listen,
            "store_url": store,
            "metadata_url": metadata,
            "take_over": "true" if take_over else None,
            "standby": "true" if standby else None,
            "control_metrics_listen": metrics,
        },
    )

    def start() -> "AbstractAsyncContextManager[Endpoints]":
        from braidlog.node.assembly import run_control

        return run_control(settings.control)

    serve("braid control", settings.control, start, ready_file, format)
