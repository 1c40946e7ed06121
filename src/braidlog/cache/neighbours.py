"""Lets the agents of a zone read for each other.

So the zone reads an object from the store once.

Each object has one owner among them, by rendezvous hashing, and only the owner reads it from the store. An object that
was just written is still in its writer's cache, so the owner asks the writer first. Requests are forwarded only once:
an agent that is asked answers from its own cache or from the store. If an agent does not answer, one request waits for
it, and then its objects have another owner.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from braidlog.cache.members import Members
from braidlog.cache.ranges import Range, decode_range, encode_range
from braidlog.objects.keys import InvalidKey, parse_data_key
from braidlog.objects.store import Bytes, NotFound
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.rpc.server import Handler, RpcServer

READ_METHOD = "blocks_read"
KEPT_METHOD = "blocks_kept"
CALL_TIMEOUT_S = 5.0
"""A fetch waits no longer than this for a neighbour; the store takes less."""
CALL_BYTES_MAX = 16 * 1024
"""A call names a range of an object."""
CONNECTIONS_MAX = 1024
ANSWERS_IN_FLIGHT_MAX = 64
"""Each answer may hold a block in memory until it is sent."""


class OwnBlocks(Protocol):
    """The cache that answers neighbours."""

    async def read_own(self, key: str, object_size: int, start: int, end: int) -> memoryview: ...

    def kept(self, key: str, start: int, end: int) -> memoryview | None: ...


@dataclass(frozen=True, slots=True)
class Neighbour:
    name: str
    address: str
    incarnation: str
    """The name that its object keys carry."""


@dataclass(frozen=True, slots=True)
class NeighbourStatistics:
    asked: int
    """Reads that another agent answered."""
    around: int
    """Reads that the other agent did not answer, and that went to the store."""
    served: int
    """Reads answered for other agents."""


class Neighbours:
    """One agent's view of the other agents of its zone.

    Without any, it owns all objects itself.
    """

    def __init__(self, *, clock: Clock, entropy: Entropy) -> None:
        self._members = Members({}, clock=clock, entropy=entropy, call_timeout_s=CALL_TIMEOUT_S)
        self._own_name = ""
        self._name_of_incarnation: dict[str, str] = {}
        self._server: RpcServer | None = None
        self._served = 0

    async def serve(self, blocks: OwnBlocks, address: str) -> str:
        """Answer the other agents at an address, and return the address to announce."""

        async def read(body: bytes, _: float | None) -> bytes:
            asked = decode_range(body)
            self._served += 1
            return bytes(await blocks.read_own(asked.key, asked.object_size, asked.start, asked.end))

        async def kept(body: bytes, _: float | None) -> bytes:
            asked = decode_range(body)
            found = blocks.kept(asked.key, asked.start, asked.end)
            self._served += found is not None
            return bytes(found) if found is not None else b""

        handlers: Mapping[str, Handler] = {READ_METHOD: read, KEPT_METHOD: kept}
        self._server = RpcServer(
            handlers,
            call_bytes_max=CALL_BYTES_MAX,
            calls_in_flight_max=ANSWERS_IN_FLIGHT_MAX,
            connections_max=CONNECTIONS_MAX,
        )
        return await self._server.start(address)

    def set(self, own_name: str, neighbours: Iterable[Neighbour]) -> None:
        """Set the agents of the zone. This agent owns objects only if it is among them."""
        found = list(neighbours)
        self._own_name = own_name
        self._members.set({each.name: each.address for each in found})
        self._name_of_incarnation = {each.incarnation: each.name for each in found}

    def owner_of(self, key: str) -> str | None:
        """Return the agent to ask for an object; None if this agent reads it itself."""
        owner = self._members.owner(key)
        return owner if owner != self._own_name else None

    async def ask(self, owner: str, key: str, object_size: int, start: int, end: int) -> Bytes | None:
        """Ask the owner for bytes.

        None if it cannot answer; raises `NotFound` if it did not find the object.
        """
        return await self._asked(owner, READ_METHOD, Range(key, object_size, start, end))

    async def ask_writer(self, key: str, object_size: int, start: int, end: int) -> Bytes | None:
        """Return the bytes if the object's writer is a neighbour and still has them."""
        try:
            writer = self._name_of_incarnation.get(parse_data_key(key).incarnation)
        except InvalidKey:
            return None
        if writer is None or writer == self._own_name or not self._members.is_present(writer):
            return None
        return await self._asked(writer, KEPT_METHOD, Range(key, object_size, start, end))

    async def _asked(self, name: str, method: str, asked: Range) -> Bytes | None:
        try:
            answer = await self._members.call(name, method, encode_range(asked))
        except NotFound:
            raise
        except BraidError:
            return None
        return answer if len(answer) == asked.end - asked.start else None

    def statistics(self) -> NeighbourStatistics:
        return NeighbourStatistics(self._members.through_owner, self._members.around, self._served)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()
        await self._members.close()
