"""A node's place among the other nodes of its application.

The nodes of a zone form a ring by themselves. A batch that was written in the zone belongs to the node that wrote it,
and keeps it in memory. A batch of another zone belongs to one node by rendezvous hashing, which reads it from the
store, once for the whole zone. Calls between nodes carry a seal, and nothing in them is ever evaluated: they are ranges
of batches, names and addresses.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping

import msgspec

from braidlog.cache.membership import Membership, Node
from braidlog.cache.ranges import decode_range
from braidlog.cache.seal import Seal
from braidlog.cache.zone_ring import READ_METHOD, RingRules, ZoneRingLayer
from braidlog.objects.keys import InvalidKey, parse_shuffle_key
from braidlog.objects.store import Store, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, InvalidSetting
from braidlog.runtime.rpc.server import Handler, RpcServer
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.shuffle.service.node_layers import NodeLayers
from braidlog.spark.shuffle.service.settings import RingSettings
from braidlog.spark.shuffle.service.usage import ShuffleUsage, encode_usage

HELLO_METHOD = "ring_hello"
BYE_METHOD = "ring_bye"
USAGE_METHOD = "ring_usage"
READ_S_MAX = 10.0
"""How long a node waits for another one's answer before it asks the store itself."""
CALL_BYTES_MAX = 16 * 1024
CONNECTIONS_MAX = 1024
ANSWERS_IN_FLIGHT_MAX = 256
"""Each answer may hold a range of a batch in memory until it is sent."""
_NAMES_BYTES_MAX = 256
_ANY_PORT = 9


class _Introduction(msgspec.Struct, array_like=True, frozen=True):
    name: str
    zone: str
    address: str


_encode = msgspec.msgpack.Encoder().encode
_decode_introduction = msgspec.msgpack.Decoder(_Introduction).decode


def writer_of(key: str) -> str:
    """Return the name of the node that wrote a batch; empty if its key does not say."""
    try:
        return parse_shuffle_key(key).writer
    except InvalidKey:
        return ""


def own_address(route_to: str) -> str:
    """Return the address of this machine that a host sees. Nothing is sent."""
    found = socket.getaddrinfo(route_to, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
        probe.connect(found[4])
        host = str(probe.getsockname()[0])
    return f"[{host}]" if ":" in host else host


class NodeRing:
    """Reads batches through the zone's nodes, and answers theirs."""

    def __init__(
        self,
        settings: RingSettings,
        layers: NodeLayers,
        store: Store,
        own: Node,
        *,
        job: str,
        usage: Callable[[], ShuffleUsage],
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        """`own` has no address yet. `usage` is what this node has used so far."""
        self._settings = settings
        self._layers = layers
        self._store = store
        self._own = own
        self._job = job
        self._usage = usage
        self._clock = clock
        self._seal = Seal(settings.secret)
        self.layer = ZoneRingLayer(
            store,
            {},
            clock=clock,
            entropy=entropy,
            own_name=own.name,
            own_layer=layers.top,
            rules=RingRules(self._seal, writer_of, READ_S_MAX),
        )
        self._membership: Membership | None = None
        self._server = RpcServer(
            self._handlers(),
            call_bytes_max=CALL_BYTES_MAX,
            calls_in_flight_max=ANSWERS_IN_FLIGHT_MAX,
            connections_max=CONNECTIONS_MAX,
        )
        self._tasks = TaskGroup("shuffle ring")
        self.answered = 0
        """Reads answered for other nodes."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._membership.nodes if self._membership is not None else {self._own.name: self._own}

    async def start(self, address: str | None = None) -> None:
        """Listen, and become known to the others.

        If the store fails, it is tried again later.
        """
        address = await self._server.start(address or f"{own_address(self._settings.route_to)}:0")
        self._own = Node(self._own.name, self._own.zone, address)
        self._membership = Membership(
            self._store,
            self._job,
            self._own,
            clock=self._clock,
            body=lambda: encode_usage(self._usage()),
            on_change=self._changed,
        )
        try:
            await self._membership.join()
            await self._tell_others(HELLO_METHOD)
        except StoreError:
            pass  # `run` tries again
        self._tasks.spawn(self._membership.run())

    async def stop(self) -> None:
        """Leave the others, which then ask for nothing more."""
        await self._tasks.cancel_all()
        if self._membership is not None:
            await self._tell_others(BYE_METHOD)
            try:
                await self._membership.leave()
            except StoreError:
                pass  # it is found to be gone
        await self._server.close()
        await self.layer.close()

    def _changed(self, nodes: Mapping[str, Node]) -> None:
        self.layer.set_members({node.name: node.address for node in nodes.values() if node.zone == self._own.zone})

    async def _tell_others(self, method: str) -> None:
        body = self._seal.close(method, _encode(_Introduction(self._own.name, self._own.zone, self._own.address)))

        async def tell(name: str) -> None:
            try:
                await self.layer.tell(name, method, body)
            except BraidError:
                pass  # it is gone, or will see it in the store

        names = [node.name for node in self.nodes.values() if node.zone == self._own.zone and node != self._own]
        await asyncio.gather(*map(tell, names))

    def _handlers(self) -> dict[str, Handler]:
        async def read(body: bytes, _: float | None) -> bytes:
            asked = decode_range(self._seal.open(READ_METHOD, body))
            try:
                found = parse_shuffle_key(asked.key)
            except InvalidKey as error:
                raise InvalidSetting(f"only batches can be read: {error}") from error
            if found.job != self._job:
                raise InvalidSetting(f"{asked.key} is a batch of another application")
            self.answered += 1
            return bytes(await self._layers.top.read(asked.key, asked.object_size, asked.start, asked.end))

        async def hello(body: bytes, _: float | None) -> bytes:
            node = self._introduced(HELLO_METHOD, body)
            if self._membership is not None and node.name != self._own.name:
                self._membership.heard_of(node)
            return b""

        async def bye(body: bytes, _: float | None) -> bytes:
            node = self._introduced(BYE_METHOD, body)
            if self._membership is not None:
                self._membership.heard_leaving(node.name)
            return b""

        async def usage(body: bytes, _: float | None) -> bytes:
            self._seal.open(USAGE_METHOD, body)
            return encode_usage(self._usage())

        return {READ_METHOD: read, HELLO_METHOD: hello, BYE_METHOD: bye, USAGE_METHOD: usage}

    def _introduced(self, method: str, body: bytes) -> Node:
        try:
            found = _decode_introduction(self._seal.open(method, body))
        except msgspec.MsgspecError as error:
            raise InvalidSetting(f"a node's introduction is not understood: {error}") from error
        if max(map(len, (found.name, found.zone, found.address))) > _NAMES_BYTES_MAX:
            raise InvalidSetting("a node's introduction is too long")
        return Node(found.name, found.zone, found.address)
