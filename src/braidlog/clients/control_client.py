"""Calls to the control plane, which is found through any agent."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from braidlog.clients.errors import CommandError
from braidlog.clients.reachability import check_listens

if TYPE_CHECKING:
    from braidlog.control.interface import ControlPlane

T = TypeVar("T")

CALL_TIMEOUT_S = 15.0
DEFAULT_CONTROL = "127.0.0.1:9190"
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
NOT_THERE_HELP = "Is the control plane running? `braid up` has one; name another with --control HOST:PORT."


def find_control(control: str | None, bootstrap: str | None) -> str:
    """Give the control plane's address: the one named, or the one an agent names.

    Without either, ask an agent at the usual address. If there is none, take the control plane's usual address.
    """
    from braidlog.clients.agent_facts import find_agent

    if control is not None:
        return control
    try:
        found = find_agent(bootstrap or DEFAULT_BOOTSTRAP).control
    except CommandError:
        if bootstrap is not None:
            raise
        found = DEFAULT_CONTROL
    if not found:
        raise CommandError(
            f"the agent at {bootstrap} does not say where its control plane is",
            help="Name it with --control HOST:PORT.",
        )
    return found


def with_control(address: str, ask: "Callable[[ControlPlane], Awaitable[T]]") -> T:
    """Ask the control plane at `address`. Fails at once if nothing listens there."""
    return asyncio.run(ask_control(address, ask))


async def ask_control(address: str, ask: "Callable[[ControlPlane], Awaitable[T]]") -> T:
    from braidlog.control.remote import connect_control
    from braidlog.runtime.clock import SystemClock
    from braidlog.runtime.entropy import SystemEntropy

    check_listens(address, "--control", "no control plane answers at", NOT_THERE_HELP)
    plane = connect_control(address, clock=SystemClock(), entropy=SystemEntropy())
    try:
        return await ask(plane)
    finally:
        await plane.close()
