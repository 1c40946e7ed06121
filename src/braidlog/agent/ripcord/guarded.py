"""The control plane as an agent calls it.

Outcomes of calls are noted, and during an outage calls fail at once.

So the agent tells a client at once to try again, if it needs the control plane, and no client waits for a deadline.
Handlers know what to answer to an error; this makes the error come early.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from braidlog.agent.ripcord.reachability import Reachability
from braidlog.control.calls import CALLS
from braidlog.control.interface import ControlPlane, Message
from braidlog.runtime.errors import ControlAway, ControlUnavailable, DeadlineExceeded

PROBES = frozenset({"register_agent", "heartbeat_agent", "snapshot", "read_feed"})
"""Calls that are made during an outage, too. They notice its end. They are few, and have a backoff of their own."""


class _GuardedControl:
    def __init__(self, inner: ControlPlane, reachability: Reachability) -> None:
        self._inner = inner
        self._reachability = reachability
        self._waiting: dict[asyncio.Timeout, None] = {}
        reachability.on_away.append(self._give_up_waiting)

    def _give_up_waiting(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for patience in self._waiting:
            patience.reschedule(now_s)

    async def _call_while_there(self, name: str, request: Message, timeout_s: float | None) -> Any:
        """Call, but stop waiting as soon as the control plane is known to be away."""
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._waiting[patience] = None
                return await getattr(self._inner, name)(request, timeout_s=timeout_s)
        except TimeoutError:
            raise DeadlineExceeded(f"{name}: the control plane went away before it answered") from None
        finally:
            self._waiting.pop(patience, None)

    async def close(self) -> None:
        await self._inner.close()


def _guarded_call(name: str) -> Callable[..., Awaitable[Any]]:
    is_probe = name in PROBES

    async def call(self: _GuardedControl, request: Message, *, timeout_s: float | None = None) -> Any:
        reachability = self._reachability
        if not is_probe and reachability.is_away:
            raise ControlAway(
                f"the control plane has been away for {reachability.away_s:.0f} s", help="Try again later."
            )
        try:
            if is_probe:
                answer = await getattr(self._inner, name)(request, timeout_s=timeout_s)
            else:
                answer = await self._call_while_there(name, request, timeout_s)
        except (ControlUnavailable, DeadlineExceeded):
            reachability.failed()
            raise
        except Exception:
            reachability.answered()  # with an error, but it is not away
            raise
        reachability.answered()
        return answer

    call.__name__ = name
    return call


for _name in CALLS:
    setattr(_GuardedControl, _name, _guarded_call(_name))


def guarded(control: ControlPlane, reachability: Reachability) -> ControlPlane:
    return cast(ControlPlane, _GuardedControl(control, reachability))
