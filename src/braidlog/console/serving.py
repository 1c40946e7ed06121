"""Serves the console for a cluster while a context lasts."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from braidlog.clients.errors import CommandError
from braidlog.console.cluster import Cluster
from braidlog.console.desk import Desk
from braidlog.console.guard import Guard
from braidlog.console.sampler import Sampler
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.http import bind_http, serve_app
from braidlog.runtime.quantities import Address


@dataclass(frozen=True, slots=True)
class ConsolePlan:
    """Which cluster to show, where, and to whom."""

    bootstrap: str
    listen: Address
    token: str = ""
    """Whoever has it may use the console; empty: this machine may."""
    control: str | None = None
    metrics: Sequence[str] = ()
    """Metrics of processes that are no agents, such as control planes."""
    any_port: bool = False
    """Take another port if this one is taken."""


@asynccontextmanager
async def run_console(plan: ConsolePlan, clock: Clock, entropy: Entropy) -> AsyncIterator[Address]:
    """Serve the console, and yield its address."""
    from braidlog.console.app import Console

    guard = Guard(plan.listen, plan.token, entropy)
    try:
        listener = bind_http(plan.listen, "the console", "console_listen")
    except Exception:
        if not plan.any_port:
            raise
        listener = bind_http(Address(plan.listen.host, 0), "the console", "console_listen")
    cluster = Cluster(plan.bootstrap, clock, entropy, plan.control)
    sampler = Sampler(cluster, clock, plan.metrics)
    sampler.start()
    try:
        async with serve_app(Console(Desk(cluster, sampler, clock), guard).app, listener) as address:
            try:
                yield address
            finally:
                await sampler.close()  # ends the streams, which the server would wait for
    finally:
        await cluster.close()


def read_token(path: str) -> str:
    """Read the token from a file."""
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", help="console_token_file names a file with a token.") from error
    if len(token) < 16:
        raise CommandError(
            f"{path} holds a token of fewer than 16 characters", help="Make one: openssl rand -hex 16 > FILE"
        )
    return token
