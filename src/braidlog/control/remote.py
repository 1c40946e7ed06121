"""The control plane in another process, behind the same interface."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from braidlog.control.calls import CALLS, Call
from braidlog.control.interface import ControlPlane, Message
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.rpc.client import RpcClient

_encode = msgspec.msgpack.Encoder().encode


class BadAnswer(BraidError):
    """The answer is not what this release expects."""

    remedy = Remedy.CHECK_OUTCOME


class _RemoteControl:
    """One connection.

    Its calls come from the table, so that the interface is written down once.
    """

    def __init__(self, address: str, clock: Clock, entropy: Entropy) -> None:
        self._client = RpcClient(address, clock, entropy)

    async def close(self) -> None:
        await self._client.close()


def _remote_call(call: Call) -> Callable[..., Awaitable[Any]]:
    name, decode = call.name, call.answer.decode

    async def send(self: _RemoteControl, request: Message, *, timeout_s: float | None = None) -> Any:
        body = await self._client.call(name, _encode(request), timeout_s)
        try:
            return decode(body)
        except msgspec.MsgspecError as error:
            raise BadAnswer(f"{name}: {error}", help="Do both sides run the same release?") from error

    send.__name__ = name
    return send


for _call in CALLS.values():
    setattr(_RemoteControl, _call.name, _remote_call(_call))


def connect_control(address: str, clock: Clock, entropy: Entropy) -> ControlPlane:
    """Return the control plane at `address`. Its first call connects.

    `runtime.rpc.addresses.parse_address` says what an address is.
    """
    return cast(ControlPlane, _RemoteControl(address, clock, entropy))
