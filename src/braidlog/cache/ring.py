"""The ring of a zone: each object has one owner among the zone's members, and goes through it.

An owner reads an object from the store once, however many ask, and keeps it. Who owns what follows from the names of
the members alone (rendezvous hashing): a member that comes or goes moves only what it owns. A member that does not
answer is left out for a while, and what it should have done is done without a cache.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from braidlog.cache.layers import Layer
from braidlog.objects.store import AlreadyExists, Bytes, Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.runtime.rpc import Handler, RpcClient, RpcServer

READ_METHOD = "cache_read"
PUT_METHOD = "cache_put"
CALL_TIMEOUT_S = 60.0
LEFT_OUT_S = 10.0
"""How long a member that did not answer is left out."""


class _Read(msgspec.Struct, array_like=True, frozen=True):
    key: str
    object_size: int
    start: int
    end: int


class _Put(msgspec.Struct, array_like=True, frozen=True):
    key: str
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_read = msgspec.msgpack.Decoder(_Read).decode
_decode_put = msgspec.msgpack.Decoder(_Put).decode


def owner_of(key: str, members: Mapping[str, object]) -> str | None:
    """The member that an object goes through; None where there is none."""
    return max(members, key=lambda name: (_weight(key, name), name), default=None)


def _weight(key: str, member: str) -> bytes:
    return blake2b(f"{key}\n{member}".encode(), digest_size=8).digest()


@dataclass(frozen=True, slots=True)
class RingStatistics:
    through_owner: int
    around: int
    """Requests that their owner did not answer, and that went to the store directly."""


class RingLayer:
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
    ) -> None:
        """`members` are names and addresses. A process that is a member itself serves what it owns from `own_layer`."""
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._own_name = own_name
        self._own_layer = own_layer
        self._members: dict[str, str] = {}
        self._clients: dict[str, RpcClient] = {}
        self._left_out_until_s: dict[str, float] = {}
        self._through_owner = self._around = 0
        self.set_members(members)

    def set_members(self, members: Mapping[str, str]) -> None:
        """Members that came, went or moved. Calls to those that went are not disturbed."""
        for name, address in self._members.items():
            if members.get(name) != address:
                self._clients.pop(name, None)
                self._left_out_until_s.pop(name, None)
        self._members = dict(members)

    def _owner(self, key: str) -> str | None:
        now_s = self._clock.monotonic_s()
        present = {name: 0 for name in self._members if self._left_out_until_s.get(name, 0.0) <= now_s}
        return owner_of(key, present)

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        owner = self._owner(key)
        if owner is not None and owner == self._own_name and self._own_layer is not None:
            return await self._own_layer.read(key, object_size, start, end)
        if owner is not None:
            try:
                return await self._call(owner, READ_METHOD, _encode(_Read(key, object_size, start, end)))
            except (ControlUnavailable, DeadlineExceeded):
                self._leave_out(owner)
        return await self._store.get_range(key, start, end)

    async def put(self, key: str, data: Bytes) -> None:
        owner = self._owner(key)
        if owner is not None and owner == self._own_name and self._own_layer is not None:
            await self._own_layer.put(key, data)
            return
        unknown = False
        if owner is not None:
            try:
                await self._call(owner, PUT_METHOD, _encode(_Put(key, bytes(data))))
                return
            except ControlUnavailable:
                self._leave_out(owner)
            except DeadlineExceeded:
                self._leave_out(owner)
                unknown = True
        try:
            await self._store.put(key, data)
        except AlreadyExists:
            # A key belongs to one writer, so what the owner may have written under it before it died is this.
            if not unknown or (await self._store.head(key)).size != len(data):
                raise

    async def _call(self, owner: str, method: str, body: bytes) -> bytes:
        client = self._clients.get(owner)
        if client is None:
            client = RpcClient(self._members[owner], self._clock, self._entropy.fork(owner))
            self._clients[owner] = client
        answer = await client.call(method, body, CALL_TIMEOUT_S)
        self._through_owner += 1
        return answer

    def _leave_out(self, owner: str) -> None:
        self._around += 1
        self._left_out_until_s[owner] = self._clock.monotonic_s() + LEFT_OUT_S

    def statistics(self) -> RingStatistics:
        return RingStatistics(self._through_owner, self._around)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
        if self._own_layer is not None:
            await self._own_layer.close()


def ring_handlers(layer: Layer) -> dict[str, Handler]:
    """What a member of a ring answers to the others, out of its own layer."""

    async def read(body: bytes, _: float | None) -> bytes:
        request = _decode_read(body)
        return bytes(await layer.read(request.key, request.object_size, request.start, request.end))

    async def put(body: bytes, _: float | None) -> bytes:
        request = _decode_put(body)
        await layer.put(request.key, request.data)
        return b""

    return {READ_METHOD: read, PUT_METHOD: put}


class RingMember:
    """Serves what it owns to all others, at an address."""

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._server = RpcServer(ring_handlers(layer))

    async def start(self, address: str) -> str:
        """The address that others can use."""
        return await self._server.start(address)

    async def close(self) -> None:
        await self._server.close()
        await self._layer.close()
