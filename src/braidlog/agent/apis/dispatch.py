"""Takes each request to its handler.

Hot requests are handled at once, cold ones in a task, one at a time per connection.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import structlog

from braidlog.agent.apis.cluster import api_18_api_versions, api_60_describe_cluster
from braidlog.agent.apis.context import RequestContext
from braidlog.agent.apis.converter import Converter
from braidlog.agent.apis.records import api_00_produce, api_01_fetch
from braidlog.agent.apis.registry import COLD_APIS
from braidlog.agent.apis.topics import api_03_metadata, api_75_describe_topic_partitions
from braidlog.agent.apis.transactions import api_22_init_producer_id
from braidlog.agent.connections.connection import LARGE_ANSWER_BYTES, ColdRequest, KafkaConnection
from braidlog.agent.connections.request_meters import RequestMeters
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.entrance.login import FRAMES_MAX as LOGIN_FRAMES_MAX
from braidlog.agent.entrance.logins import SASL_VERSIONS, Logins
from braidlog.agent.ripcord.admission import Admission
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.runtime.turns import Turns
from braidlog.wire.errors import MalformedRequest
from braidlog.wire.header import is_flexible, read_request_header, response_header
from braidlog.wire.messages import error_codes, is_long, read_request, write_response
from braidlog.wire.metadata import read_metadata_request

log = structlog.get_logger(__name__)

API_VERSIONS: dict[int, range] = {
    api_00_produce.KEY: api_00_produce.VERSIONS,
    api_01_fetch.KEY: api_01_fetch.VERSIONS,
    api_03_metadata.KEY: api_03_metadata.VERSIONS,
    api_18_api_versions.KEY: api_18_api_versions.VERSIONS,
    **SASL_VERSIONS,
    **{key: api.versions for key, api in COLD_APIS.items()},
}
"""The versions that are served, by API key. Nothing else is advertised."""

SERVED_WHILE_AWAY = frozenset(
    {api_22_init_producer_id.KEY, api_60_describe_cluster.KEY, api_75_describe_topic_partitions.KEY}
)
"""Cold APIs that need no control plane. While it is away, clients of other APIs are told to wait a little."""


LARGE_REQUEST_BYTES = 16 * 1024
"""Larger cold requests are parsed, and their answers written, on a thread."""
T = TypeVar("T")


class RawHandlers(NamedTuple):
    """Handlers that read and write bytes themselves.

    Their messages are frequent or large, or come before the client is known.
    """

    produce: api_00_produce.Produce
    fetch: api_01_fetch.Fetch
    metadata: api_03_metadata.Metadata
    logins: Logins


class Dispatcher:
    """Gives every request to its handler, and the answer to the request's slot."""

    def __init__(
        self,
        raw: RawHandlers,
        services: Iterable[object],
        admission: Admission,
        reachability: Reachability,
        turns: Turns,
        meters: RequestMeters,
        tasks: TaskGroup,
        converter: Converter,
    ) -> None:
        """`services` has one object of each class that `COLD_APIS` names."""
        self._produce, self._fetch, self._metadata, self._logins = raw
        by_class = {type(each): each for each in services}
        self._services = {key: by_class[api.services] for key, api in COLD_APIS.items()}
        self._admission = admission
        self._reachability = reachability
        self._turns = turns
        self._tally_of = meters.seconds
        self._tasks = tasks
        self._converter = converter
        self.requests = dict.fromkeys(API_VERSIONS, 0)
        """The number of requests by API key."""

    async def close(self) -> None:
        """Cancel the requests that are still being handled."""
        await self._tasks.cancel_all()
        self._converter.close()

    def dispatch(self, connection: KafkaConnection, frame: memoryview, slot: ResponseSlot) -> None:
        try:
            if connection.is_gated and not self._admits(connection, frame, slot):
                return
            opening = connection.opening
            if opening is not None and self._produce.handle_alike(opening, frame, slot):
                self.requests[api_00_produce.KEY] += 1
                slot.tally = self._tally_of[api_00_produce.KEY]
                return
            repeated = connection.repeated_fetches
            if repeated is not None and not self._reachability.is_away and repeated.handle_alike(frame, slot):
                self.requests[api_01_fetch.KEY] += 1
                slot.tally = self._tally_of[api_01_fetch.KEY]
                return
            header = read_request_header(frame)
            key, version = header.api_key, header.api_version
            versions = API_VERSIONS.get(key)
            slot.tally = self._tally_of.get(key)
            if key == api_18_api_versions.KEY:
                self.requests[key] += 1
                slot.fill(api_18_api_versions.respond(header, API_VERSIONS))
                return
            if versions is None or version not in versions:
                raise MalformedRequest(f"api key {key} version {version} is not served")
            self.requests[key] += 1
            if key == api_00_produce.KEY:
                connection.opening = self._produce.handle(header, frame, slot)
            elif key == api_01_fetch.KEY:
                self._fetch.handle(header, frame, slot)
            else:
                connection.cold.append(ColdRequest(header, frame[header.body_position :], slot))
                if len(connection.cold) == 1:
                    self._tasks.spawn(self._serve_cold(connection))
        except MalformedRequest as error:
            slot.abandon(f"malformed request: {error}")
        except Exception as error:  # otherwise the client would wait for ever
            log.error("request failed", exc_info=error)
            slot.abandon("an error in the agent: see its log")

    def _admits(self, connection: KafkaConnection, frame: memoryview, slot: ResponseSlot) -> bool:
        """Whether a request may be served: its client has logged in, or is about to."""
        login = connection.login
        assert login is not None
        key = read_request_header(frame).api_key
        if key in SASL_VERSIONS or key == api_18_api_versions.KEY:
            login.frame_count += login.user is None
            if login.frame_count <= LOGIN_FRAMES_MAX:
                return True
            slot.abandon("too many requests before the login")
        elif self._logins.is_current(login):
            return True
        else:
            slot.abandon("a request without a login" if login.user is None else "the login is over")
        return False

    async def _serve_cold(self, connection: KafkaConnection) -> None:
        """Serve a connection's cold requests one after the other until none is left.

        Clients expect this order.

        The one that is being served stays the first in line. What has not begun when the client goes is not served.
        """
        waiting = connection.cold
        try:
            while waiting:
                if not connection.is_closed:
                    await self._turns.wait()
                if connection.is_closed:
                    waiting[0].slot.fill([])
                else:
                    await self._serve(connection, waiting[0])
                waiting.popleft()
        except asyncio.CancelledError:
            for request in waiting:
                request.slot.abandon("")
            waiting.clear()
            raise

    async def _serve(self, connection: KafkaConnection, request: ColdRequest) -> None:
        header, _, slot = request
        try:
            answer = await self._answer_cold(connection, request)
            answer_bytes = sum(map(len, answer))
            if answer_bytes > LARGE_ANSWER_BYTES and not slot.answer_bytes:
                await slot.take_room(answer_bytes)
            slot.fill(
                [response_header(header.correlation_id, is_flexible(header.api_key, header.api_version)), *answer]
            )
        except MalformedRequest as error:
            slot.abandon(f"malformed request: {error}")
        except BraidError as error:
            log.warning("request failed", api_key=header.api_key, error=str(error), help=error.help)
            slot.abandon(str(error))
        except Exception as error:
            log.error("request failed", api_key=header.api_key, version=header.api_version, exc_info=error)
            slot.abandon("an error in the agent: see its log")

    async def _answer_cold(self, connection: KafkaConnection, asked: ColdRequest) -> list[bytes]:
        header, body, slot = asked
        key, version = header.api_key, header.api_version
        is_large = len(body) > LARGE_REQUEST_BYTES
        if key == api_03_metadata.KEY:
            metadata = await self._converter.convert(is_large, read_metadata_request, version, body)
            return [await self._metadata.answer(header, metadata, slot)]
        request = await self._converter.convert(is_large, read_request, key, version, body)
        if key in SASL_VERSIONS:
            told = await self._logins.answer(connection, key, version, request)
            for code in error_codes(told):
                slot.count_error(key, code)
            return [write_response(told)]
        context = RequestContext(
            self._services[key],
            self._turns,
            key,
            version,
            header.client_id or "",
            connection.peer_host,
            connection.rights,
            connection.listener,
        )
        answer = await COLD_APIS[key].handle(request, context)
        if self._reachability.is_away and key not in SERVED_WHILE_AWAY:
            answer = self._admission.shape(answer)
        for code in error_codes(answer):
            slot.count_error(key, code)
        return [await self._converter.convert(is_large or is_long(answer), write_response, answer)]
