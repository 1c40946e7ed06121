"""The node's shuffle service: packs the last rows of its tasks together.

It is a process of its own.

The first task that needs it starts it, and it ends when no task has used it for a while. It reads its settings from
standard input. It inherits a locked file, so that only one process can be the node's service. It listens on a Unix
socket that only its own user may open.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from braidlog.objects.open import open_store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.rpc.server import Handler, RpcServer
from braidlog.spark.shuffle.batcher import BatcherSettings
from braidlog.spark.shuffle.caches import ShuffleCache
from braidlog.spark.shuffle.service.shared_buffers import WAIT_S_MAX, SharedBuffers, decode_runs, encode_notifications

SEEN_METHOD = "shuffle_seen"
STAY_METHOD = "shuffle_stay"
SHARE_METHOD = "shuffle_share"
STATISTICS_METHOD = "shuffle_statistics"
TOKEN_BYTES = 16
IDLE_S_MAX = 60.0
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What tasks and the service of a node have in common.

    Tasks with other settings have another service.
    """

    store_url: str
    batcher: BatcherSettings
    cache: ShuffleCache
    share_wait_s: float = WAIT_S_MAX
    """How long a finished task waits for others to fill its batch."""


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    node: NodeSettings
    socket_path: str
    idle_s_max: float = IDLE_S_MAX


def handlers(buffers: SharedBuffers) -> dict[str, Handler]:
    """Make the handlers of the service's calls.

    A call's body begins with the task's token.

    `stay` lasts as long as the task: the connection ends with the task, however it ends, and the call with the
    connection. `seen` answers once a `stay` that was sent before it has begun.
    """

    async def seen(_body: bytes, _: float | None) -> bytes:
        return b""

    async def stay(body: bytes, _: float | None) -> bytes:
        buffers.join(body.hex())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            buffers.leave(body.hex())
        return b""

    async def share(body: bytes, _: float | None) -> bytes:
        runs = decode_runs(body[TOKEN_BYTES:])
        return encode_notifications(await buffers.share(body[:TOKEN_BYTES].hex(), runs))

    async def statistics(_body: bytes, _: float | None) -> bytes:
        return msgspec.json.encode(buffers.statistics())

    return {SEEN_METHOD: seen, STAY_METHOD: stay, SHARE_METHOD: share, STATISTICS_METHOD: statistics}


async def serve(settings: ServiceSettings, clock: Clock) -> None:
    """Serve until no task was there for `idle_s_max`, or a signal comes."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    entropy = SystemEntropy()
    node = settings.node
    store = open_store(node.store_url, clock=clock, entropy=entropy.fork("store"))
    layer = node.cache.build(store, node.batcher.zone, clock=clock, entropy=entropy.fork("cache"))
    server = RpcServer({})
    # Each Python process of Spark runs one task at a time, and stays connected between tasks.
    buffers = SharedBuffers(
        layer,
        node.batcher,
        clock=clock,
        entropy=entropy.fork("batches"),
        wait_s_max=node.share_wait_s,
        slots=lambda: len(server.connections),
    )
    with suppress(FileNotFoundError):
        os.unlink(settings.socket_path)  # left by a service that was killed: the lock says that it is gone
    server.handlers.update(handlers(buffers))
    await server.start(settings.socket_path)
    idle_since_s = clock.monotonic_s()
    try:
        while not stop.is_set() and clock.monotonic_s() - idle_since_s < settings.idle_s_max:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(_LOOK_S, settings.idle_s_max))
            if not buffers.is_idle:
                idle_since_s = clock.monotonic_s()
    finally:
        await server.close()
        await buffers.close()
        await layer.close()
        await store.close()


def main() -> None:
    """Run the service. `client` starts this."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=ServiceSettings)
    asyncio.run(serve(settings, SystemClock()))
