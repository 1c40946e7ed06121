"""The node's shuffle service: the process that all tasks of a node share.

It packs rows of several tasks together, keeps batches in memory, and is the node's place in the zone's ring.

The first task that needs it starts it, and it ends when nobody has used it for a while. It reads its settings from
standard input. It inherits a locked file, so that only one process can be the node's service. It listens on a Unix
socket that only its own user may open, and for other nodes on a port that answers sealed calls only.
"""

import asyncio
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from braidlog.cache.membership import Node
from braidlog.cache.ranges import decode_range
from braidlog.objects.keys import NODE_NAME_BYTES, shuffle_usage_key
from braidlog.objects.open import open_store
from braidlog.objects.store import Store, StoreError
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.rpc.server import Handler, RpcServer
from braidlog.spark.shuffle.service.node_layers import KeepingWriter, NodeLayers
from braidlog.spark.shuffle.service.node_ring import NodeRing
from braidlog.spark.shuffle.service.settings import NodeSettings, ServiceSettings
from braidlog.spark.shuffle.service.shared_buffers import SharedBuffers, decode_runs, encode_notifications
from braidlog.spark.shuffle.service.usage import ShuffleUsage, decode_usage, encode_usage

log = structlog.get_logger(__name__)

SEEN_METHOD = "shuffle_seen"
STAY_METHOD = "shuffle_stay"
SHARE_METHOD = "shuffle_share"
KEEP_METHOD = "shuffle_keep"
READ_METHOD = "shuffle_read"
REPORT_METHOD = "shuffle_report"
STATISTICS_METHOD = "shuffle_statistics"
TOKEN_BYTES = 16
LAST = b"\x01"
"""Behind a token: the task has no more rows. Otherwise it is `NOT_LAST`."""
NOT_LAST = b"\x00"
_LOOK_S = 1.0


class NodeFacts(msgspec.Struct, frozen=True):
    """What a task learns of its node."""

    name: str
    zone_names: list[str]
    """The nodes of the zone, this one included."""
    node_count: int
    """The nodes of all zones."""
    cached_bytes_max: int
    """What the caches of the zone hold together."""


class NodeStatistics(msgspec.Struct, frozen=True):
    facts: NodeFacts
    tasks: int
    """Tasks that are present now."""
    held_bytes: int
    usage: ShuffleUsage


class KeptBatch(msgspec.Struct, array_like=True, frozen=True):
    key: str
    data: bytes


_decode_kept = msgspec.msgpack.Decoder(KeptBatch).decode


class NodeParts:
    """The parts of a node's service, and its answers to tasks."""

    def __init__(self, node: NodeSettings, store: Store, folder: Path, *, clock: Clock, entropy: Entropy) -> None:
        """`folder` is for pieces of batches on disk."""
        self._settings = node
        self._store = store
        self._job = node.batcher.job
        self._reported = ShuffleUsage()
        self._uses = 0
        self.name = entropy.token(NODE_NAME_BYTES).hex()
        self.layers = NodeLayers(store, node.cache, folder)
        self.ring: NodeRing | None = None
        if node.ring is not None:
            own = Node(self.name, node.batcher.zone, "")
            self.ring = NodeRing(
                node.ring,
                self.layers,
                store,
                own,
                job=self._job,
                usage=self.usage,
                clock=clock,
                entropy=entropy.fork("ring"),
            )
        self.server = RpcServer(self._handlers())
        # Each Python process of Spark runs one task at a time, and stays connected between tasks.
        self.buffers = SharedBuffers(
            self.layers.bottom,
            node.batcher,
            clock=clock,
            entropy=entropy.fork("batches"),
            wait_s_max=node.share_wait_s,
            slots=lambda: len(self.server.connections),
            near=KeepingWriter(self.layers, self.name),
        )

    async def start(self, socket_path: str) -> None:
        if self.ring is not None:
            try:
                await self.ring.start()
            except OSError as error:
                # The node then reads for itself alone, as with no other nodes.
                log.warning("the node has no place in a ring", error=str(error))
                self.ring = None
        await self.server.start(socket_path)

    @property
    def uses(self) -> int:
        """Changes whenever somebody uses the service."""
        return self._uses + (self.ring.answered if self.ring is not None else 0)

    def usage(self) -> ShuffleUsage:
        bottom = self.layers.bottom
        own = ShuffleUsage(bottom.puts, bottom.put_bytes, bottom.gets, bottom.get_bytes)
        if self.ring is not None:
            asked = self.ring.layer.statistics()
            own += ShuffleUsage(ring_reads=asked.through_owner, ring_around=asked.around)
        return own + self._reported

    def facts(self) -> NodeFacts:
        zone, cache = self._settings.batcher.zone, self._settings.cache
        nodes = self.ring.nodes.values() if self.ring is not None else ()
        names = sorted(node.name for node in nodes if node.zone == zone) or [self.name]
        each_bytes = cache.memory_bytes + cache.disk_bytes
        return NodeFacts(self.name, names, max(1, len(nodes)), each_bytes * len(names))

    def _handlers(self) -> dict[str, Handler]:
        """Make the handlers of the service's calls.

        `stay` lasts as long as the task: the connection ends with the task, however it ends, and the call with the
        connection. `seen` answers once a `stay` that was sent before it has begun.
        """

        async def seen(_body: bytes, _: float | None) -> bytes:
            return msgspec.json.encode(self.facts())

        async def stay(body: bytes, _: float | None) -> bytes:
            self.buffers.join(body.hex())
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.buffers.leave(body.hex())
            return b""

        async def share(body: bytes, _: float | None) -> bytes:
            rows_start = TOKEN_BYTES + len(LAST)
            is_last = body[TOKEN_BYTES:rows_start] == LAST
            runs = decode_runs(body[rows_start:])
            return encode_notifications(await self.buffers.share(body[:TOKEN_BYTES].hex(), runs, is_last=is_last))

        async def keep(body: bytes, _: float | None) -> bytes:
            kept = _decode_kept(body)
            self.layers.keep(kept.key, kept.data)
            return b""

        async def read(body: bytes, _: float | None) -> bytes:
            self._uses += 1
            asked = decode_range(body)
            layer = self.ring.layer if self.ring is not None else self.layers.top
            return bytes(await layer.read(asked.key, asked.object_size, asked.start, asked.end))

        async def report(body: bytes, _: float | None) -> bytes:
            self._uses += 1
            self._reported += decode_usage(body)
            return b""

        async def statistics(_body: bytes, _: float | None) -> bytes:
            found = self.buffers.statistics()
            return msgspec.json.encode(NodeStatistics(self.facts(), found.tasks, found.held_bytes, self.usage()))

        return {
            SEEN_METHOD: seen,
            STAY_METHOD: stay,
            SHARE_METHOD: share,
            KEEP_METHOD: keep,
            READ_METHOD: read,
            REPORT_METHOD: report,
            STATISTICS_METHOD: statistics,
        }

    async def stop(self) -> None:
        """End, and leave what was used in the store, where the driver finds it."""
        await self.server.close()
        await self.buffers.close()
        if self.ring is not None:
            await self.ring.stop()
        with suppress(StoreError):
            await self._store.put(shuffle_usage_key(self._job, self.name), encode_usage(self.usage()), overwrite=True)
        await self.layers.close()


async def serve(settings: ServiceSettings, clock: Clock) -> None:
    """Serve until nobody has used the service for `idle_s_max`, or a signal comes."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    entropy = SystemEntropy()
    store = open_store(settings.node.store_url, clock=clock, entropy=entropy.fork("store"))
    folder = Path(f"{settings.socket_path}.pieces")
    parts = NodeParts(settings.node, store, folder, clock=clock, entropy=entropy.fork("node"))
    with suppress(FileNotFoundError):
        os.unlink(settings.socket_path)  # left by a service that was killed: the lock says that it is gone
    try:
        await parts.start(settings.socket_path)
        idle_since_s, uses = clock.monotonic_s(), parts.uses
        while not stop.is_set() and clock.monotonic_s() - idle_since_s < settings.idle_s_max:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), min(_LOOK_S, settings.idle_s_max))
            if not parts.buffers.is_idle or parts.uses != uses:
                idle_since_s, uses = clock.monotonic_s(), parts.uses
    finally:
        await parts.stop()
        await store.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Run the service. `client` starts this."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=ServiceSettings)
    asyncio.run(serve(settings, SystemClock()))
