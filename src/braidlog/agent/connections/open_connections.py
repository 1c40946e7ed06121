"""The connections that are open, and what they share: memory, turns, meters.

They end together when the agent stops.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import structlog

from braidlog.agent.connections.connection import KafkaConnection
from braidlog.agent.connections.request_memory import RequestMemory
from braidlog.agent.connections.request_meters import RequestMeters
from braidlog.agent.connections.response_memory import ResponseMemory
from braidlog.agent.connections.stalls import Stalls
from braidlog.runtime.clock import Clock
from braidlog.runtime.limits import CONNECTIONS_MAX
from braidlog.runtime.turns import Turns
from braidlog.security.rights import Authorizer

_log = structlog.get_logger(__name__)


class OpenConnections:
    def __init__(
        self,
        clock: Clock,
        turns: Turns,
        meters: RequestMeters,
        authorizer: Authorizer,
        *,
        per_address_max: int,
        request_bytes_max: int,
        response_bytes_max: int,
    ) -> None:
        self.clock = clock
        self.authorizer = authorizer
        self._per_address_max = per_address_max
        self._counts: Counter[str] = Counter()
        """The number of connections by the client's address."""
        self.turns = turns
        self.meters = meters
        self._open: dict[KafkaConnection, None] = {}
        self._stalls = Stalls(self._open)
        self.request_memory = RequestMemory(request_bytes_max, self._stalls.request_waits)
        self.response_memory = ResponseMemory(response_bytes_max, self._stalls.response_waits)
        self._drained: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[KafkaConnection]:
        return iter(self._open)

    def add(self, connection: KafkaConnection) -> None:
        """Take in a new connection, or close it at once if there is no place for it."""
        if self._drained is not None or len(self._open) >= CONNECTIONS_MAX:
            connection.close("the agent is stopping" if self._drained is not None else "too many connections")
            return
        if self._counts[connection.peer_host] >= self._per_address_max:
            connection.close("too many connections from this address: see max_connections_per_ip")
            return
        self._open[connection] = None
        self._counts[connection.peer_host] += 1

    def remove(self, connection: KafkaConnection) -> None:
        """Forget a connection that was lost.

        Requests that have begun are still carried out: half a request is worse than one whose answer nobody reads.
        """
        if self._open.pop(connection, self) is None:
            self._counts[connection.peer_host] -= 1
            if not self._counts[connection.peer_host]:
                del self._counts[connection.peer_host]
        if self._drained is not None and not self._open and not self._drained.done():
            self._drained.set_result(None)

    @property
    def is_draining(self) -> bool:
        """Whether the agent stops: then no fetch waits for records any longer."""
        return self._drained is not None

    def begin_drain(self) -> None:
        """Read no more requests, and take no more connections."""
        self._drained = asyncio.get_running_loop().create_future()
        for connection in list(self._open):
            connection.drain()

    async def finish_drain(self, timeout_s: float) -> None:
        """Wait until everything that was asked is answered, then close what is left."""
        if self._open and self._drained is not None:
            await asyncio.wait([self._drained], timeout=timeout_s)
        if self._open:
            _log.warning("stopped before all requests were answered", connections=len(self._open), waited_s=timeout_s)
        for connection in list(self._open):
            connection.close("")
        self._stalls.close()
