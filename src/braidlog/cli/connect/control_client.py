"""Calls to the control plane from the command line."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from braidlog.cli.connect.reachability import check_listens

if TYPE_CHECKING:
    from braidlog.control.interface import ControlPlane

T = TypeVar("T")

CALL_TIMEOUT_S = 15.0
NOT_THERE_HELP = "Is the control plane running? `braid up` has one; name another with --control HOST:PORT."


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
