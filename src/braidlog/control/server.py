"""Serves the control plane to other processes."""

from typing import Any

import msgspec

from braidlog.control.calls import CALLS, Call
from braidlog.control.interface import ControlPlane
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.rpc.server import Handler, RpcServer

_encode = msgspec.msgpack.Encoder().encode


class BadRequest(BraidError):
    """The body of a call is not the request that the call takes."""

    remedy = Remedy.FIX_INPUT


def _handler(control: ControlPlane, call: Call) -> Handler:
    method: Any = getattr(control, call.name)
    decode = call.request.decode

    async def handle(body: bytes, timeout_s: float | None) -> bytes:
        try:
            request = decode(body)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"{call.name}: {error}", help="Do both sides run the same release?") from error
        return _encode(await method(request, timeout_s=timeout_s))

    return handle


async def serve_control(control: ControlPlane, address: str) -> RpcServer:
    """Serve every call of the interface at `address`.

    The server's `address` says where it listens.
    """
    server = RpcServer({call.name: _handler(control, call) for call in CALLS.values()})
    await server.start(address)
    return server
