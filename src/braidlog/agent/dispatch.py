"""From a frame to its handler: hot requests on the spot, cold ones in a task, one at a time per connection."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from braidlog.agent.apis import (
    api_00_produce,
    api_01_fetch,
    api_03_metadata,
    api_18_api_versions,
    api_22_init_producer_id,
    api_60_describe_cluster,
    api_75_describe_topic_partitions,
)
from braidlog.agent.apis.registry import COLD_APIS
from braidlog.agent.connection import KafkaConnection, ResponseSlot
from braidlog.agent.context import RequestContext
from braidlog.agent.stalls import Stalls
from braidlog.runtime.errors import BraidError
from braidlog.runtime.limits import CONNECTIONS_MAX
from braidlog.runtime.tasks import TaskGroup
from braidlog.wire.errors import MalformedRequest
from braidlog.wire.header import RequestHeader, is_flexible, read_request_header, response_header
from braidlog.wire.messages import read_request, write_response

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

log = structlog.get_logger(__name__)

API_VERSIONS: dict[int, range] = {
    api_00_produce.KEY: api_00_produce.VERSIONS,
    api_01_fetch.KEY: api_01_fetch.VERSIONS,
    api_03_metadata.KEY: api_03_metadata.VERSIONS,
    api_18_api_versions.KEY: api_18_api_versions.VERSIONS,
    **{key: api.versions for key, api in COLD_APIS.items()},
}
"""What is served, by API key. What is not here is not advertised."""

SERVED_WHILE_AWAY = frozenset(
    {api_22_init_producer_id.KEY, api_60_describe_cluster.KEY, api_75_describe_topic_partitions.KEY}
)
"""Cold APIs that need no control plane. Whoever asks for others while it is away is told to wait a little."""


class Dispatcher:
    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self.memory = agent.memory
        self.answer_memory = agent.answer_memory
        self._tasks = TaskGroup("requests")
        self._connections: dict[KafkaConnection, None] = {}
        self._stalls = Stalls(lambda: self._connections, self.memory, self.answer_memory)
        self._drained: asyncio.Future[None] | None = None
        self.requests = dict.fromkeys(API_VERSIONS, 0)
        """How many there were, by API key."""

    # ── connections ──

    @property
    def connections(self) -> int:
        return len(self._connections)

    def connected(self, connection: KafkaConnection) -> None:
        if self._drained is not None or len(self._connections) >= CONNECTIONS_MAX:
            connection.close("the agent is stopping" if self._drained is not None else "too many connections")
            return
        self._connections[connection] = None

    def disconnected(self, connection: KafkaConnection) -> None:
        # What it asked for is still carried out: half a request is worse than one whose answer nobody reads.
        self._connections.pop(connection, None)
        if self._drained is not None and not self._connections and not self._drained.done():
            self._drained.set_result(None)

    @property
    def is_draining(self) -> bool:
        return self._drained is not None

    def begin_drain(self) -> None:
        """Read no more requests, and let no fetch wait for records any longer."""
        self._drained = asyncio.get_running_loop().create_future()
        for connection in list(self._connections):
            connection.drain()
        for partition in self._agent.view.partitions.values():
            partition.wake()

    async def finish_drain(self, timeout_s: float) -> None:
        """Wait until everything that was asked is answered, then close what is left."""
        if self._connections and self._drained is not None:
            await asyncio.wait([self._drained], timeout=timeout_s)
        for connection in list(self._connections):
            connection.close("")
        await self._tasks.cancel_all()
        self._stalls.close()

    # ── requests ──

    def dispatch(self, connection: KafkaConnection, frame: memoryview, slot: ResponseSlot) -> None:
        try:
            opening = connection.opening
            if opening is not None and api_00_produce.handle_alike(self._agent, opening, frame, slot):
                self.requests[api_00_produce.KEY] += 1
                return
            repeated = connection.repeated_fetches
            if repeated is not None and not self._agent.reachability.is_away and repeated.handle_alike(frame, slot):
                self.requests[api_01_fetch.KEY] += 1
                return
            header = read_request_header(frame)
            key, version = header.api_key, header.api_version
            versions = API_VERSIONS.get(key)
            if key == api_18_api_versions.KEY:
                slot.fill(api_18_api_versions.respond(header, API_VERSIONS))
                return
            if versions is None or version not in versions:
                raise MalformedRequest(f"api key {key} version {version} is not served")
            self.requests[key] += 1
            if key == api_00_produce.KEY:
                connection.opening = api_00_produce.handle(self._agent, header, frame, slot)
            elif key == api_01_fetch.KEY:
                api_01_fetch.handle(self._agent, header, frame, slot, self._tasks)
            else:
                body = frame[header.body_position :]
                earlier = connection.cold_tail
                connection.cold_tail = self._tasks.spawn(self._serve_cold(connection, header, body, slot, earlier))
        except MalformedRequest as error:
            slot.abandon(f"malformed request: {error}")
        except Exception as error:  # one request's trouble must not become the whole connection's silence
            log.error("request failed", exc_info=error)
            slot.abandon("an error in the agent: see its log")

    async def _serve_cold(
        self,
        connection: KafkaConnection,
        header: RequestHeader,
        body: memoryview,
        slot: ResponseSlot,
        earlier: asyncio.Task[None] | None,
    ) -> None:
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])
        try:
            slot.fill(
                [
                    response_header(header.correlation_id, is_flexible(header.api_key, header.api_version)),
                    *await self._answer_cold(connection, header, body),
                ]
            )
        except MalformedRequest as error:
            slot.abandon(f"malformed request: {error}")
        except BraidError as error:
            log.warning("request failed", api_key=header.api_key, error=str(error), help=error.help)
            slot.abandon(str(error))
        except asyncio.CancelledError:
            slot.abandon("")
            raise
        except Exception as error:
            log.error("request failed", api_key=header.api_key, version=header.api_version, exc_info=error)
            slot.abandon("an error in the agent: see its log")

    async def _answer_cold(self, connection: KafkaConnection, header: RequestHeader, body: memoryview) -> list[bytes]:
        key, version = header.api_key, header.api_version
        if key == api_03_metadata.KEY:
            return [await api_03_metadata.handle(self._agent, header, body)]
        request = read_request(key, version, body)
        context = RequestContext(self._agent, key, version, header.client_id or "", connection.peer_host)
        answer = await COLD_APIS[key].handle(request, context)
        if self._agent.reachability.is_away and key not in SERVED_WHILE_AWAY:
            answer = self._agent.admission.shape(answer)
        return [write_response(answer)]
