"""The zone ring: each object has one owner among the members of a zone.

Requests for an object go through its owner, which reads it from the store once, however many ask, and keeps it. If the
owner does not answer, the request goes to the store directly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from braidlog.cache.layers import Layer
from braidlog.cache.members import Members
from braidlog.cache.ranges import Range, decode_range, encode_range
from braidlog.cache.seal import Seal
from braidlog.objects.store import AlreadyExists, Bytes, Store, StoreError
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded
from braidlog.runtime.rpc.server import Handler, RpcServer

READ_METHOD = "cache_read"
PUT_METHOD = "cache_put"
CALL_TIMEOUT_S = 60.0


class _Put(msgspec.Struct, array_like=True, frozen=True):
    key: str
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_put = msgspec.msgpack.Decoder(_Put).decode


def _unknown_writer(_key: str) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class RingRules:
    """What rings may do in different ways."""

    seal: Seal | None = None
    """Seals calls to members, if they want that."""
    writer_of: Callable[[str], str] = _unknown_writer
    """Names the member that wrote an object and still has it; empty if none did."""
    call_timeout_s: float = CALL_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class ZoneRingStatistics:
    through_owner: int
    around: int
    """Requests that the owner did not answer, and that went to the store directly."""


class ZoneRingLayer:
    """Passes each request to the owner of its object."""

    def __init__(
        self,
        store: Store,
        members: Mapping[str, str],
        *,
        clock: Clock,
        entropy: Entropy,
        own_name: str | None = None,
        own_layer: Layer | None = None,
        rules: RingRules | None = None,
    ) -> None:
        """`members` maps names to addresses.

        A process that is a member serves its own objects from `own_layer`, and those of members that do not answer.
        """
        self._rules = rules or RingRules()
        self._store = store
        self._own_name = own_name
        self._own_layer = own_layer
        self._members = Members(members, clock=clock, entropy=entropy, call_timeout_s=self._rules.call_timeout_s)

    def set_members(self, members: Mapping[str, str]) -> None:
        self._members.set(members)

    async def tell(self, name: str, method: str, body: bytes) -> bytes:
        """Make any call to a member."""
        return await self._members.call(name, method, body)

    def _owner(self, key: str) -> str | None:
        writer = self._rules.writer_of(key)
        return writer if writer and self._members.is_present(writer) else self._members.owner(key)

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        owner = self._owner(key)
        if owner is not None and owner == self._own_name and self._own_layer is not None:
            return await self._own_layer.read(key, object_size, start, end)
        if owner is not None:
            try:
                body = encode_range(Range(key, object_size, start, end))
                if self._rules.seal is not None:
                    body = self._rules.seal.close(READ_METHOD, body)
                return await self._members.call(owner, READ_METHOD, body)
            except StoreError:
                raise  # the owner has asked the store
            except BraidError:
                pass  # it is gone, or another process is at its address
        if self._own_layer is not None:
            return await self._own_layer.read(key, object_size, start, end)
        return await self._store.get_range(key, start, end)

    async def put(self, key: str, data: Bytes) -> None:
        owner = self._members.owner(key)
        if owner is not None and owner == self._own_name and self._own_layer is not None:
            await self._own_layer.put(key, data)
            return
        unknown = False
        if owner is not None:
            try:
                await self._members.call(owner, PUT_METHOD, _encode(_Put(key, bytes(data))))
                return
            except ControlUnavailable:
                pass
            except DeadlineExceeded:
                unknown = True
        try:
            await self._store.put(key, data)
        except AlreadyExists:
            # A key belongs to one writer, so whatever the owner wrote under it before it died is this object.
            if not unknown or (await self._store.head(key)).size != len(data):
                raise

    def statistics(self) -> ZoneRingStatistics:
        return ZoneRingStatistics(self._members.through_owner, self._members.around)

    async def close(self) -> None:
        await self._members.close()
        if self._own_layer is not None:
            await self._own_layer.close()


def zone_ring_handlers(layer: Layer) -> dict[str, Handler]:
    """Return the handlers by which a member answers the others, from its own layer."""

    async def read(body: bytes, _: float | None) -> bytes:
        request = decode_range(body)
        return bytes(await layer.read(request.key, request.object_size, request.start, request.end))

    async def put(body: bytes, _: float | None) -> bytes:
        request = _decode_put(body)
        await layer.put(request.key, request.data)
        return b""

    return {READ_METHOD: read, PUT_METHOD: put}


class ZoneRingMember:
    """Serves the objects that a member owns to all others."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._server = RpcServer(zone_ring_handlers(layer))

    async def start(self, address: str) -> str:
        """Listen, and return the address for the other members."""
        return await self._server.start(address)

    async def close(self) -> None:
        await self._server.close()
        await self._layer.close()
