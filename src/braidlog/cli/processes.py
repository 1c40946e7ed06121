"""`braid up`, `braid agent`, `braid control`: the processes of a Braidlog."""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.errors import CommandError
from braidlog.cli.options import Config, Format, ReadyFile, Set, StoreUrl, pairs
from braidlog.cli.output import OutputFormat, emit_json, say

if TYPE_CHECKING:
    from braidlog.cli.assembly import Endpoints
    from braidlog.runtime.settings import CommonSettings, Settings

Listen = Annotated[str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Port 0 takes any free one.")]
Advertised = Annotated[
    str | None, typer.Option("--advertised", metavar="HOST:PORT", help="What clients are told to use.")
]
MetricsListen = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Where /metrics is served, or off.")
]
MetadataUrl = Annotated[str | None, typer.Option("--metadata", metavar="URL", help="sqlite:///path/to/file.")]
Zone = Annotated[str | None, typer.Option("--zone", help="The zone this agent is in.")]


def gather(config: Path | None, set: list[str] | None, flags: Mapping[str, str | None]) -> "Settings":
    """All settings: flags (and --set, which is a flag for everything), the environment, the file, the defaults."""
    from braidlog.runtime.settings import load_settings

    given = {name: value for name, value in flags.items() if value is not None}
    return load_settings({**pairs(set, "--set"), **given}, config=config, environ=os.environ)


Shards = Annotated[
    int | None, typer.Option("--shards", min=1, max=256, help="Processes that serve clients, each at its own port.")
]

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
    zone: Zone = None,
    shards: Shards = None,
    ripcord: Ripcord = None,
    metrics: MetricsListen = None,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run a whole Braidlog in one process: control plane and agent.

    Example: braid up --store s3://bucket/prefix --listen 0.0.0.0:9092 --advertised broker-1.example.com:9092
    """
    settings = gather(
        config,
        set,
        {
            "listen": listen,
            "advertised": advertised,
            "store_url": store,
            "metadata_url": metadata,
            "zone": zone,
            "shards": str(shards) if shards is not None else None,
            "ripcord": ripcord,
            "metrics_listen": metrics,
        },
    )

    def start() -> "AbstractAsyncContextManager[Endpoints]":
        from braidlog.cli.assembly import run_embedded

        return run_embedded(settings)

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
    """Run an agent, which serves Kafka clients, against a control plane that runs elsewhere.

    Example: braid agent --control 10.0.0.5:9190 --store s3://bucket/prefix --zone us-east-1a
    """
    settings = gather(
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
        from braidlog.cli.assembly import run_agent

        return run_agent(settings.agent)

    serve("braid agent", settings.agent, start, ready_file, format)


def shard() -> None:
    """Run one shard of an agent. Its supervisor starts it, and tells it the rest on its standard input."""
    _do_without_hypothesis()
    from braidlog.cli.shards import ShardOrders

    orders = ShardOrders(json.loads(sys.stdin.readline()))

    @asynccontextmanager
    async def start() -> "AsyncIterator[Endpoints]":
        from braidlog.cli.assembly import run_shard

        async with run_shard(orders.settings, orders.seat) as endpoints:
            assert endpoints.agent is not None
            orders.report(endpoints.agent.port, endpoints.metrics)
            orders.stop_with_supervisor()
            yield endpoints

    serve(f"braid shard {orders.shard}", orders.settings, start, None, OutputFormat.TEXT)


def control(
    listen: Listen = None,
    store: StoreUrl = None,
    metadata: MetadataUrl = None,
    metrics: MetricsListen = None,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run the control plane: catalog, sequencer, index and groups.

    Example: braid control --listen 0.0.0.0:9190 --metadata sqlite:///var/lib/braidlog/metadata.db
    """
    settings = gather(
        config,
        set,
        {
            "control_listen": listen,
            "store_url": store,
            "metadata_url": metadata,
            "control_metrics_listen": metrics,
        },
    )

    def start() -> "AbstractAsyncContextManager[Endpoints]":
        from braidlog.cli.assembly import run_control

        return run_control(settings.control)

    serve("braid control", settings.control, start, ready_file, format)


_READY_FILE_HELP = "Name a file in a folder that is there and that this user may write to."


def serve(
    name: str,
    settings: "CommonSettings",
    start: "Callable[[], AbstractAsyncContextManager[Endpoints]]",
    ready_file: Path | None,
    output: OutputFormat,
) -> None:
    """Run until a signal asks to stop: cleanly at the first, at once at the second."""
    from braidlog.runtime.logs import configure_logs

    _check_ready_file(ready_file)
    configure_logs(settings.log_level, settings.log_format)
    _do_without_hypothesis()

    async def run() -> None:
        stop = _stop_on_signals(name)
        _unready(ready_file)
        running = start()
        starting = asyncio.ensure_future(running.__aenter__())
        stopping = asyncio.ensure_future(stop.wait())
        lost: asyncio.Future[str] | None = None
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                return
            endpoints = starting.result()
            try:
                _tune_garbage_collection()
                _announce(name, endpoints, settings, ready_file, output)
                lost = asyncio.ensure_future(endpoints.wait_lost())
                await asyncio.wait({stopping, lost}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                _unready(ready_file)
                await running.__aexit__(None, None, None)
        finally:
            stopping.cancel()
            if lost is not None:
                lost.cancel()
        if not stop.is_set() and lost is not None:
            raise CommandError(lost.result(), help="Two control planes must not share one metadata store; stop one.")
        say(f"{name}: stopped")

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())


def _do_without_hypothesis() -> None:
    """The Kafka codec loads it wherever it is installed, which doubles the time that an agent takes to start."""
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


def _tune_garbage_collection() -> None:
    """What was loaded to start with stays for good, and a server makes many objects that die young: looking through all
    of them every few hundred allocations took a quarter of the time of small requests, in pauses of up to 90 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not everywhere; asyncio's own loop does the same, more slowly
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _stop_on_signals(name: str) -> asyncio.Event:
    stop = asyncio.Event()

    def asked(number: signal.Signals) -> None:
        if stop.is_set():
            say(f"{name}: stopping at once")
            os._exit(128 + number)
        say(f"{name}: stopping; once more to stop at once")
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
    return stop


def _check_ready_file(ready_file: Path | None) -> None:
    """Whoever waits for the file would wait for ever: what keeps it from being written is told before the start."""
    if ready_file is None:
        return
    folder = ready_file.parent
    if not folder.is_dir():
        why = f"there is no folder {folder}"
    elif ready_file.is_dir():
        why = "it is a folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        why = f"nothing may be written to {folder}"
    else:
        return
    raise CommandError(f"--ready-file {ready_file} cannot be written: {why}", help=_READY_FILE_HELP)


def _unready(ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


def _announce(
    name: str, endpoints: "Endpoints", settings: "CommonSettings", ready_file: Path | None, output: OutputFormat
) -> None:
    from braidlog.objects.open import redacted

    facts: dict[str, Any] = {"pid": os.getpid(), **endpoints.as_dict()}
    if ready_file is not None:
        # Whoever waits for the file must never see half of it.
        unfinished = ready_file.with_name(f"{ready_file.name}.{os.getpid()}")
        try:
            unfinished.write_text(json.dumps(facts))
            unfinished.rename(ready_file)
        except OSError as error:
            raise CommandError(
                f"--ready-file {ready_file} cannot be written: {error.strerror}", help=_READY_FILE_HELP
            ) from error
    if output is OutputFormat.JSON:
        emit_json({"ready": name, **facts})
    parts = [f"{what} {where}" for what, where in endpoints.as_dict().items()]
    say(f"{name}: ready, {', '.join(parts)}, store {redacted(settings.store_url)}")
