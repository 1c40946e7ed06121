"""Fetch: reads records, or waits until there are enough or the time is up."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.apis.converter import Converter
from braidlog.agent.apis.records.fetch_reading import FetchReading, readable_topic
from braidlog.agent.cluster.view import TopicView
from braidlog.agent.connections.open_connections import OpenConnections
from braidlog.agent.connections.quotas import CONSUMER_BYTE_RATE
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.read_path.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    OPENING_EPOCH,
    FetchSession,
    FetchSessions,
    SessionError,
    answered,
)
from braidlog.agent.read_path.parked import Found, Parked, RepeatedFetch, RepeatedFetches
from braidlog.agent.read_path.partition_answers import Denied, PartitionAnswers, ReadServices
from braidlog.agent.read_path.ticks import Ticks
from braidlog.agent.ripcord.admission import Admission
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.control.interface import BoundsRequest
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.runtime.turns import SLICE_LENGTH, Turns
from braidlog.wire import fetch as wire_fetch
from braidlog.wire.errors import MalformedRequest
from braidlog.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    in_slices,
    read_fetch_request,
    turning_partitions,
    without_repeats,
    write_fetch_response,
)
from braidlog.wire.header import RequestHeader, response_header
from braidlog.wire.primitives import Bytes

log = structlog.get_logger(__name__)

KEY = wire_fetch.KEY
VERSIONS = wire_fetch.VERSIONS

FLEXIBLE_FROM = 12
IDS_FROM = 13

WAIT_MS_MAX = 60_000
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
USUAL_BYTES_MAX = 1024 * 1024
"""Limits of a response or a partition below this are less than the largest batch that topics usually take."""
LARGE_REQUEST_BYTES = 32 * 1024
"""Larger requests are parsed on a thread."""
LONG_PARTITIONS = 400
"""Requests with more partitions take several milliseconds, and are handled in slices."""


@dataclass(frozen=True, slots=True)
class FetchServices:
    """The services that fetches use."""

    reads: ReadServices
    sessions: FetchSessions
    ticks: Ticks
    connections: OpenConnections
    admission: Admission
    reachability: Reachability
    clock: Clock
    tasks: TaskGroup


class _Slices(NamedTuple):
    """Lets a request of many partitions be handled without stopping the others."""

    turns: Turns
    converter: Converter


class Fetch:
    """Handles Fetch requests."""

    def __init__(self, services: FetchServices, turns: Turns, converter: Converter) -> None:
        self._services = services
        self._sessions = services.sessions
        self._now_s = services.clock.monotonic_s
        self._slices = _Slices(turns, converter)

    def handle(self, header: RequestHeader, frame: memoryview, slot: ResponseSlot) -> None:
        """Answer a request at once, or let it wait."""
        if len(frame) > LARGE_REQUEST_BYTES:
            self._services.tasks.spawn(self._handle_large(header, frame, slot))
        else:
            self._handle(header, frame, slot, read_fetch_request(header.api_version, frame[header.body_position :]))

    async def _handle_large(self, header: RequestHeader, frame: memoryview, slot: ResponseSlot) -> None:
        try:
            request = await self._slices.converter.convert(
                True, _read_large, header.api_version, frame[header.body_position :]
            )
            await self._slices.turns.wait()
            self._handle(header, frame, slot, request)
        except MalformedRequest as error:
            slot.abandon(f"malformed request: {error}")
        except asyncio.CancelledError:
            slot.abandon("")
            raise
        except Exception as error:
            log.error("fetch failed", exc_info=error)
            slot.abandon("an error in the agent: see its log")

    def _handle(self, header: RequestHeader, frame: memoryview, slot: ResponseSlot, request: FetchRequest) -> None:
        session, opens = None, False
        if request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION:
            # Here and not in the task: a session counts its requests in the order in which they arrive.
            by_id, now_s = header.api_version >= IDS_FROM, self._now_s()
            try:
                session = self._sessions.resume(request, by_id=by_id, now_s=now_s)
            except SessionError as error:
                response = FetchResponse([], error_code=error.error_code)
                start = response_header(header.correlation_id, header.api_version >= FLEXIBLE_FROM)
                slot.fill([start, *write_fetch_response(header.api_version, response)])
                return
            if session is not None:
                request = request._replace(topics=session.topics)
            elif request.session_epoch == OPENING_EPOCH:
                session, opens = self._sessions.open(request, by_id=by_id, now_s=now_s), True
        fetch = _Fetch(self._services, self._slices, header, request, slot, session, opens, frame)
        if fetch.refuse_while_away():
            return
        if fetch.is_long or (not fetch.park() and not fetch.answer_at_once()):
            fetch.go_on()


def _read_large(version: int, body: memoryview) -> FetchRequest:
    return without_repeats(read_fetch_request(version, body))


def _wait_s(request: FetchRequest) -> float:
    return min(max(request.wait_ms_max, 0), WAIT_MS_MAX) / 1000


class _Fetch:
    """One fetch request, from its arrival to its answer."""

    def __init__(
        self,
        services: FetchServices,
        slices: _Slices,
        header: RequestHeader,
        request: FetchRequest,
        slot: ResponseSlot,
        session: FetchSession | None = None,
        opens_session: bool = False,
        frame: memoryview | None = None,
    ) -> None:
        """`frame` is the request's frame, if an equal request is to be recognised later."""
        self._services = services
        self._slices = slices
        self._view = services.reads.view
        self._header = header
        self._request = request
        self._slot = slot
        self._tasks = services.tasks
        self._session = session
        self._frame = frame
        self._opens_session = opens_session
        self._by_id = header.api_version >= IDS_FROM
        self._answers = PartitionAnswers(
            services.reads, committed_only=request.isolation_level == 1, by_id=self._by_id, rack_id=request.rack_id
        )
        self._bytes_max = min(max(request.bytes_max, 1), RESPONSE_BYTES_MAX)
        self._bytes_min = min(request.bytes_min, self._bytes_max)
        """Not more than an answer can have."""
        self._partition_count = sum([len(topic.partitions) for topic in request.topics])
        self._reading = FetchReading(request.topics, self._answers, self._topic, self._bytes_max)
        self._deadline_s = services.clock.monotonic_s() + _wait_s(request)

    @property
    def is_long(self) -> bool:
        """Whether it has so many partitions that they are handled in slices."""
        return self._partition_count > LONG_PARTITIONS

    def refuse_while_away(self) -> bool:
        """Refuse the request if the control plane is away, and return whether it did.

        Nobody knows then where logs end.

        Clients then look for another leader, and try again.
        """
        services = self._services
        if not services.reachability.is_away:
            return False
        services.admission.refused_reads += 1
        topics = [
            FetchedTopic(
                name,
                topic_id,
                [FetchedPartition(each.partition_index, ErrorCode.not_leader_or_follower) for each in partitions],
            )
            for name, topic_id, partitions in self._request.topics
        ]
        self._send(FetchResponse(topics, services.admission.hold_off(self._slot.connection)))
        return True

    def park(self) -> bool:
        """Wait without a task if there is nothing to read yet.

        Nearly all fetches of an idle system do so.

        Returns False if there is something to do at once.
        """
        services, request = self._services, self._request
        if request.bytes_min <= 0 or request.wait_ms_max <= 0 or services.connections.is_draining:
            return False
        found = self._partitions(self._request.topics)
        if self._ahead(found) or self._bytes_ready(found) != 0:
            return False
        Parked(self, found, services.ticks, self._deadline_s - services.clock.monotonic_s())
        return True

    def answer_at_once(self) -> bool:
        """Answer without a task from memory, which suffices if consumers keep up.

        Returns False if there is not enough yet, if it is unknown how much there is, or if there is no room for it.
        """
        found = self._partitions(self._request.topics)
        if self._ahead(found):
            return False
        ready = self._bytes_ready(found)
        if ready is not None and ready < self._bytes_min:
            return False
        answer_bytes = self._answer_bytes(found, self._rough_bytes(found) if ready is None else ready)
        if answer_bytes and not self._slot.try_take_room(answer_bytes):
            return False
        with self._errors_told():
            begun = self._reading.begin_all()
            fetched = [each for each in begun if isinstance(each, FetchedPartition)]
            if len(fetched) == len(begun):
                self._send(self._reading.response(fetched))
            else:
                self._tasks.spawn(self._run(self._reading.finish(begun)))
        return True

    def go_on(self) -> None:
        self._tasks.spawn(self._run(self._respond()))

    def answer_nothing_new(self, found: Found) -> None:
        with self._errors_told():
            body = self._send(self._nothing_new(found))
            self._keep(found, body)

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        """Log an error and close the connection: else its client waits for an answer."""
        try:
            yield
        except Exception as error:
            log.error("fetch failed", exc_info=error)
            self._slot.abandon("an error in the agent: see its log")

    def _keep(self, found: Found, body: list[Bytes]) -> None:
        """Keep the fetch to recognise it when the consumer sends it again."""
        frame, request, view = self._frame, self._request, self._view
        if (
            frame is None
            or self._session is not None
            or request.session_id != NO_SESSION
            or request.rack_id
            or view.quotas.limits_consumers
        ):
            return
        header, services, slices = self._header, self._services, self._slices

        def resumed(correlation_id: int, slot: ResponseSlot, left_s: float) -> _Fetch:
            again = request._replace(wait_ms_max=round(left_s * 1000))
            return _Fetch(services, slices, header._replace(correlation_id=correlation_id), again, slot)

        repeated = RepeatedFetch(
            view.changes,
            found,
            b"".join(body),
            is_flexible=header.api_version >= FLEXIBLE_FROM,
            wait_s=_wait_s(request),
            resumed=resumed,
        )
        connection = self._slot.connection
        if connection.is_closed:
            return
        if connection.repeated_fetches is None:
            connection.repeated_fetches = RepeatedFetches(view, services.ticks)
        start = header.body_position
        turning = turning_partitions(header.api_version, frame[start:], request)
        if turning is not None:
            turning = range(turning.start + start, turning.stop + start, turning.step)
        connection.repeated_fetches.add(frame, repeated, turning)

    async def _run(self, work: Coroutine[Any, Any, FetchResponse]) -> None:
        try:
            with self._errors_told():
                response = self._told(await work)
                written = await self._slices.converter.convert(self.is_long, _written, self._header, response)
                self._fill(*written)
        except asyncio.CancelledError:
            self._slot.abandon("")
            raise

    def _send(self, response: FetchResponse) -> list[Bytes]:
        body, errors = _written(self._header, self._told(response))
        self._fill(body, errors)
        return body

    def _told(self, response: FetchResponse) -> FetchResponse:
        """The response as the consumer gets it, according to its session and its quota."""
        if self._session is not None:
            response = answered(self._services.sessions, self._session, response, everything=self._opens_session)
        if self._view.quotas.limits_consumers:
            response = self._throttled(response)
        return response

    def _fill(self, body: list[Bytes], errors: dict[int, int]) -> None:
        for code, count in errors.items():
            self._slot.count_error(KEY, code, count)
        start = response_header(self._header.correlation_id, self._header.api_version >= FLEXIBLE_FROM)
        self._slot.settle_room(self._reading.records_bytes)
        self._slot.fill([start, *body])

    def _throttled(self, response: FetchResponse) -> FetchResponse:
        """Charge the quota: the records are sent, then the consumer is muted a while."""
        connection = self._slot.connection
        throttle_s = self._view.quotas.charge(
            CONSUMER_BYTE_RATE,
            connection.user,
            self._header.client_id or "",
            self._reading.records_bytes,
            self._services.clock.monotonic_s(),
        )
        if throttle_s:
            connection.mute(throttle_s)
        return response._replace(throttle_time_ms=round(throttle_s * 1000))

    async def _respond(self) -> FetchResponse:
        clock, deadline_s = self._services.clock, self._deadline_s
        while True:
            found, ready, rough_bytes = await self._look()
            remaining_s = deadline_s - clock.monotonic_s()
            if ready is None or ready >= self._bytes_min or remaining_s <= 0:
                break
            if self._slot.connection.is_closed or self._services.connections.is_draining:
                break
            if not await self._wait_change(found, remaining_s):
                if ready == 0 and not self.is_long:
                    return self._nothing_new(found)
                break
        answer_bytes = self._answer_bytes(found, rough_bytes)
        if answer_bytes:
            await self._slot.take_room(answer_bytes)
        if self.is_long:
            return await self._reading.finish(await self._reading.begin_in_slices(self._slices.turns))
        return await self._reading.finish(self._reading.begin_all())

    async def _look(self) -> tuple[Found, int | None, int]:
        """All existing partitions, the result of `_bytes_ready`, and their rough size."""
        found: Found = []
        ready: int | None = 0
        rough_bytes = 0
        parts = in_slices(self._request.topics, SLICE_LENGTH) if self.is_long else [self._request.topics]
        for topics in parts:
            if self.is_long:
                await self._slices.turns.wait()
            part = self._partitions(topics)
            await self._confirm_bounds(part)
            found += part
            more = self._bytes_ready(part, sum([len(topic.partitions) for topic in topics]))
            ready = ready + more if ready is not None and more is not None else None
            rough_bytes += self._rough_bytes(part) if more is None else more
        return found, ready, rough_bytes

    def _rough_bytes(self, found: Found) -> int:
        return sum(self._answers.available_bytes(wanted, partition) for wanted, partition in found)

    def _answer_bytes(self, found: Found, rough_bytes: int) -> int:
        """The answer's rough size. Its first batch comes whole, whatever the limits."""
        answer_bytes = min(rough_bytes, self._bytes_max)
        if 0 < answer_bytes < USUAL_BYTES_MAX and (
            self._bytes_max < USUAL_BYTES_MAX or any(wanted.bytes_max < USUAL_BYTES_MAX for wanted, _ in found)
        ):
            first = next((each for each in found if self._answers.available_bytes(*each)), None)
            if first is not None:
                return max(answer_bytes, self._answers.first_batch_bytes_max(*first))
        return answer_bytes

    def _topic(self, name: str, topic_id: bytes) -> TopicView | Denied | None:
        return readable_topic(self._view, self._slot.connection.rights, name, topic_id, by_id=self._by_id)

    def _partitions(self, topics: list[FetchTopic]) -> Found:
        """Those that are there."""
        found: Found = []
        for name, topic_id, partitions in topics:
            topic = self._topic(name, topic_id)
            if isinstance(topic, TopicView):
                known = topic.partitions
                count = len(known)
                found += [
                    (wanted, known[wanted.partition_index])
                    for wanted in partitions
                    if 0 <= wanted.partition_index < count
                ]
        return found

    @staticmethod
    def _ahead(found: Found) -> list[int]:
        """Partitions whose fetch offset is beyond the end that this agent knows."""
        return [partition.partition_id for wanted, partition in found if wanted.fetch_offset > partition.high_watermark]

    async def _confirm_bounds(self, found: Found) -> None:
        """Ask the control plane for the ends of partitions read beyond the known end.

        Such an offset may be valid, because another agent may have heard of it earlier. So only the control plane
        decides that an offset is out of range.
        """
        ahead = [partition_id for partition_id in self._ahead(found) if partition_id not in self._answers.confirmed]
        if ahead:
            try:
                answer = await self._services.reads.control.current_bounds(BoundsRequest(ahead), timeout_s=5.0)
            except BraidError:
                return
            self._answers.confirmed.update({bounds.partition_id: bounds for bounds in answer.bounds})

    def _bytes_ready(self, found: Found, asked_count: int | None = None) -> int | None:
        """Roughly how many bytes could be sent now.

        `asked_count` is given for a part of the request.

        Returns None if the consumer must be told something at once: an error, or an agent to read from instead.
        """
        if self._request.rack_id and any(self._answers.preferred(partition) != -1 for _, partition in found):
            return None
        ready = 0
        for wanted, partition in found:
            if wanted.fetch_offset == partition.high_watermark and self._answers.fits_epochs(wanted, partition):
                continue  # it waits at the end, as nearly all do in an idle system
            if self._answers.range_error(wanted, partition) is not None:
                return None
            ready += self._answers.available_bytes(wanted, partition)
        asked = self._partition_count if asked_count is None else asked_count
        return ready if len(found) == asked and asked > 0 else None

    def _nothing_new(self, found: Found) -> FetchResponse:
        """The answer if all partitions are known, and nothing is new or has changed."""
        return self._reading.response([self._answers.nothing_new(partition, wanted) for wanted, partition in found])

    async def _wait_change(self, found: Found, timeout_s: float) -> bool:
        """Wait until one of the partitions changes. Returns False if none did in time."""
        loop = asyncio.get_running_loop()
        changed: asyncio.Future[None] = loop.create_future()
        in_time = True

        def give_up() -> None:
            nonlocal in_time
            if not changed.done():
                in_time = False
                changed.set_result(None)

        for _, partition in found:
            partition.waiters[changed] = None
        # A bare timer: most fetches of an idle system end here, and a timeout context costs several times as much.
        timer = loop.call_later(timeout_s, give_up)
        try:
            await changed
            return in_time
        finally:
            timer.cancel()
            for _, partition in found:
                partition.waiters.pop(changed, None)


def _written(header: RequestHeader, response: FetchResponse) -> tuple[list[Bytes], dict[int, int]]:
    """The response's body, and how often it has each error."""
    errors: dict[int, int] = {}
    for topic in response.topics:
        for fetched in topic.partitions:
            if code := fetched.error_code:
                errors[code] = errors.get(code, 0) + 1
    return write_fetch_response(header.api_version, response), errors
