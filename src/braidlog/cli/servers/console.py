"""`braid console`, and the console of `braid up`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Config, Control, Format, ReadyFile, Set
from braidlog.cli.output import OutputFormat
from braidlog.cli.servers.process import serve
from braidlog.cli.settings import read_settings

if TYPE_CHECKING:
    from braidlog.node.assembly import Endpoints
    from braidlog.runtime.settings import Settings


def console(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    control: Control = None,
    listen: Annotated[
        str | None, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to serve it; 127.0.0.1:9480.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="PATH", help="A file with the token that users must give.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Metrics of a control plane; repeat for more."),
    ] = None,
    config: Config = None,
    set: Set = None,
    ready_file: ReadyFile = None,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Serve pages that show a running cluster and its bill.

    \b
    Example: braid console --bootstrap 10.0.0.7:9092
    """
    settings = read_settings(config, set, {"console_listen": listen, "console_token_file": token_file})

    @asynccontextmanager
    async def start() -> "AsyncIterator[Endpoints]":
        from braidlog.console.serving import ConsolePlan, read_token, run_console
        from braidlog.node.assembly import Endpoints
        from braidlog.runtime.clock import SystemClock
        from braidlog.runtime.entropy import SystemEntropy
        from braidlog.runtime.quantities import Address

        given = settings.agent
        plan = ConsolePlan(
            bootstrap,
            given.console_listen or Address("127.0.0.1", 9480),
            read_token(given.console_token_file) if given.console_token_file else "",
            control,
            tuple(metrics or ()),
        )
        async with run_console(plan, SystemClock(), SystemEntropy()) as address:
            yield Endpoints(console=address)

    serve("braid console", settings.agent, start, ready_file, format)


@asynccontextmanager
async def serve_with_console(settings: "Settings") -> "AsyncIterator[Endpoints]":
    """Run a whole Braidlog, and its console unless it is off."""
    from braidlog.node.serving import serve as serve_all

    async with serve_all(settings) as endpoints:
        listen = settings.agent.console_listen
        if listen is None:
            yield endpoints
            return
        from braidlog.console.serving import ConsolePlan, read_token, run_console
        from braidlog.runtime.clock import SystemClock
        from braidlog.runtime.entropy import SystemEntropy

        token_file = settings.agent.console_token_file
        plan = ConsolePlan(
            str(endpoints.kafka),
            listen,
            read_token(token_file) if token_file else "",
            str(endpoints.control),
            (str(endpoints.metrics),) if endpoints.metrics is not None else (),
            any_port="console_listen" not in settings.origins,
        )
        async with run_console(plan, SystemClock(), SystemEntropy()) as address:
            yield replace(endpoints, console=address)
