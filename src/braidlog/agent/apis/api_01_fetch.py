"""Fetch: records out. Answers at once if there is enough, and otherwise waits until there is, or until time is up."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.connection import ResponseSlot
from braidlog.agent.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    OPENING_EPOCH,
    FetchSession,
    SessionError,
    answered,
)
from braidlog.agent.parked import Found, Parked, RepeatedFetch, RepeatedFetches
from braidlog.agent.partition_answers import PartitionAnswers, PartitionRead
from braidlog.agent.quotas import CONSUMER_BYTE_RATE
from braidlog.agent.view import TopicView
from braidlog.control.interface import BoundsRequest
from braidlog.runtime.errors import BraidError
from braidlog.runtime.tasks import TaskGroup
from braidlog.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
    read_fetch_request,
    turning_partitions,
    write_fetch_response,
)
from braidlog.wire.header import RequestHeader, response_header
from braidlog.wire.primitives import Bytes

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

log = structlog.get_logger(__name__)

KEY = 1
VERSIONS = range(4, 19)

FLEXIBLE_FROM = 12
IDS_FROM = 13

WAIT_MS_MAX = 60_000
RESPONSE_BYTES_MAX = 64 * 1024 * 1024


def handle(agent: "Agent", header: RequestHeader, frame: memoryview, slot: ResponseSlot, tasks: TaskGroup) -> None:
    request = read_fetch_request(header.api_version, frame[header.body_position :])
    session, opens = None, False
    if request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION:
        # Here and not in the task: requests of one session count in the order in which they came.
        by_id, now_s = header.api_version >= IDS_FROM, agent.clock.monotonic_s()
        try:
            session = agent.fetch_sessions.resume(request, by_id=by_id, now_s=now_s)
        except SessionError as error:
            response = FetchResponse([], error_code=error.error_code)
            start = response_header(header.correlation_id, header.api_version >= FLEXIBLE_FROM)
            slot.fill([start, *write_fetch_response(header.api_version, response)])
            return
        if session is not None:
            request = request._replace(topics=session.topics)
        elif request.session_epoch == OPENING_EPOCH:
            session, opens = agent.fetch_sessions.open(request, by_id=by_id, now_s=now_s), True
    fetch = _Fetch(agent, header, request, slot, tasks, session, opens, frame)
    if not fetch.refuse_while_away() and not fetch.park() and not fetch.answer_at_once():
        fetch.go_on()


def _wait_s(request: FetchRequest) -> float:
    return min(max(request.wait_ms_max, 0), WAIT_MS_MAX) / 1000


class _Fetch:
    """One fetch request, from its arrival to its answer."""

    def __init__(
        self,
        agent: "Agent",
        header: RequestHeader,
        request: FetchRequest,
        slot: ResponseSlot,
        tasks: TaskGroup,
        session: FetchSession | None = None,
        opens_session: bool = False,
        frame: memoryview | None = None,
    ) -> None:
        """`frame` is what it came as, if one that is alike is to be recognised."""
        self._agent = agent
        self._header = header
        self._request = request
        self._slot = slot
        self._tasks = tasks
        self._session = session
        self._frame = frame
        self._opens_session = opens_session
        self._by_id = header.api_version >= IDS_FROM
        self._answers = PartitionAnswers(
            agent, committed_only=request.isolation_level == 1, by_id=self._by_id, rack_id=request.rack_id
        )
        self._bytes_max = min(max(request.bytes_max, 1), RESPONSE_BYTES_MAX)
        self._deadline_s = agent.clock.monotonic_s() + _wait_s(request)

    def refuse_while_away(self) -> bool:
        """Whether it is answered: nothing is read while nobody can tell what the log is by now. Clients then look for
        another leader, and try again."""
        agent = self._agent
        if not agent.reachability.is_away:
            return False
        agent.admission.refused_reads += 1
        topics = [
            FetchedTopic(
                name,
                topic_id,
                [FetchedPartition(each.partition_index, ErrorCode.not_leader_or_follower) for each in partitions],
            )
            for name, topic_id, partitions in self._request.topics
        ]
        self._send(FetchResponse(topics, agent.admission.hold_off(self._slot.connection)))
        return True

    def park(self) -> bool:
        """Wait without a task where there is nothing to read yet, as nearly all fetches of an idle system do. False:
        there is something to be done at once."""
        agent, request = self._agent, self._request
        if request.bytes_min <= 0 or request.wait_ms_max <= 0 or agent.dispatcher.is_draining:
            return False
        found = self._partitions()
        if self._ahead(found) or self._bytes_ready(found) != 0:
            return False
        Parked(self, found, agent.ticks, self._deadline_s - agent.clock.monotonic_s())
        return True

    def answer_at_once(self) -> bool:
        """Read without a task what is in memory, as it is for whoever keeps up. False: there is not enough yet, it is
        not known how much there is, or there is no room for it."""
        found = self._partitions()
        if self._ahead(found):
            return False
        ready = self._bytes_ready(found)
        if ready is not None and ready < self._request.bytes_min:
            return False
        answer_bytes = self._answer_bytes(found, ready)
        if answer_bytes and not self._slot.try_take_room(answer_bytes):
            return False
        with self._errors_told():
            begun = self._begin_all()
            fetched = [each for each in begun if isinstance(each, FetchedPartition)]
            if len(fetched) == len(begun):
                self._send(self._response(fetched))
            else:
                self._tasks.spawn(self._run(self._finish(begun)))
        return True

    def go_on(self) -> None:
        self._tasks.spawn(self._run(self._respond()))

    def answer_nothing_new(self, found: Found) -> None:
        with self._errors_told():
            body = self._send(self._nothing_new(found))
            self._keep(found, body)

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        """One fetch's trouble must not become its connection's silence."""
        try:
            yield
        except Exception as error:
            log.error("fetch failed", exc_info=error)
            self._slot.abandon("an error in the agent: see its log")

    def _keep(self, found: Found, body: list[Bytes]) -> None:
        """A consumer that has named all its partitions will do so again, and find the same, if nothing changes."""
        frame, request, agent = self._frame, self._request, self._agent
        if (
            frame is None
            or self._session is not None
            or request.session_id != NO_SESSION
            or request.rack_id
            or agent.view.quotas.limits_consumers
        ):
            return
        header, tasks = self._header, self._tasks

        def resumed(correlation_id: int, slot: ResponseSlot, left_s: float) -> _Fetch:
            again = request._replace(wait_ms_max=round(left_s * 1000))
            return _Fetch(agent, header._replace(correlation_id=correlation_id), again, slot, tasks)

        repeated = RepeatedFetch(
            agent.view.changes,
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
            connection.repeated_fetches = RepeatedFetches(agent.view, agent.ticks)
        start = header.body_position
        turning = turning_partitions(header.api_version, frame[start:], request)
        if turning is not None:
            turning = range(turning.start + start, turning.stop + start, turning.step)
        connection.repeated_fetches.add(frame, repeated, turning)

    async def _run(self, work: Coroutine[Any, Any, FetchResponse]) -> None:
        try:
            with self._errors_told():
                self._send(await work)
        except asyncio.CancelledError:
            self._slot.abandon("")
            raise

    def _send(self, response: FetchResponse) -> list[Bytes]:
        agent, version = self._agent, self._header.api_version
        if self._session is not None:
            response = answered(agent.fetch_sessions, self._session, response, everything=self._opens_session)
        if agent.view.quotas.limits_consumers:
            response = self._throttled(response)
        start = response_header(self._header.correlation_id, version >= FLEXIBLE_FROM)
        body = write_fetch_response(version, response)
        self._slot.fill([start, *body])
        return body

    def _throttled(self, response: FetchResponse) -> FetchResponse:
        """The records are read already and may as well go; then the consumer has to wait, and is not listened to."""
        taken_bytes = sum(
            len(buffer)
            for topic in response.topics
            for partition in topic.partitions
            for buffer in partition.records or ()
        )
        agent, connection = self._agent, self._slot.connection
        throttle_s = agent.view.quotas.charge(
            CONSUMER_BYTE_RATE,
            connection.user,
            self._header.client_id or "",
            taken_bytes,
            agent.clock.monotonic_s(),
        )
        if throttle_s:
            connection.mute(throttle_s)
        return response._replace(throttle_time_ms=round(throttle_s * 1000))

    async def _respond(self) -> FetchResponse:
        request = self._request
        clock, deadline_s = self._agent.clock, self._deadline_s
        while True:
            found = self._partitions()
            await self._confirm_bounds(found)
            ready = self._bytes_ready(found)
            remaining_s = deadline_s - clock.monotonic_s()
            if ready is None or ready >= request.bytes_min or remaining_s <= 0:
                break
            if self._slot.connection.is_closed or self._agent.dispatcher.is_draining:
                break
            if not await self._wait_change(found, remaining_s):
                if ready == 0:
                    return self._nothing_new(found)
                break
        answer_bytes = self._answer_bytes(found, ready)
        if answer_bytes:
            await self._slot.take_room(answer_bytes)
        return await self._finish(self._begin_all())

    def _answer_bytes(self, found: Found, ready: int | None) -> int:
        """About how many there will be in the answer."""
        if ready is None:
            ready = sum(self._answers.available_bytes(wanted, partition) for wanted, partition in found)
        return min(ready, self._bytes_max)

    def _topic(self, name: str, topic_id: bytes) -> TopicView | None:
        view = self._agent.view
        return view.topics_by_id.get(topic_id) if self._by_id else view.topics_by_name.get(name)

    def _partitions(self) -> Found:
        found: Found = []
        for name, topic_id, partitions in self._request.topics:
            topic = self._topic(name, topic_id)
            if topic is not None:
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
        """Partitions that are read from past what this agent knows of them."""
        return [partition.partition_id for wanted, partition in found if wanted.fetch_offset > partition.high_watermark]

    async def _confirm_bounds(self, found: Found) -> None:
        """An offset past what this agent knows may be right: another agent may have been quicker to hear of it. So
        "out of range" is only ever said on the control plane's word."""
        ahead = [partition_id for partition_id in self._ahead(found) if partition_id not in self._answers.confirmed]
        if ahead:
            try:
                answer = await self._agent.control.current_bounds(BoundsRequest(ahead), timeout_s=5.0)
            except BraidError:
                return
            self._answers.confirmed.update({bounds.partition_id: bounds for bounds in answer.bounds})

    def _bytes_ready(self, found: Found) -> int | None:
        """A rough count of the bytes that could be sent now; None where there is something to be told at once: an
        error, or an agent to read from instead."""
        if self._request.rack_id and any(self._answers.preferred(partition) != -1 for _, partition in found):
            return None
        ready = 0
        for wanted, partition in found:
            if wanted.fetch_offset == partition.high_watermark and wanted.current_leader_epoch <= 0:
                continue  # it waits at the end, as nearly all do in an idle system
            if self._answers.range_error(wanted, partition) is not None:
                return None
            ready += self._answers.available_bytes(wanted, partition)
        asked = sum(len(topic.partitions) for topic in self._request.topics)
        return ready if len(found) == asked and asked > 0 else None

    def _nothing_new(self, found: Found) -> FetchResponse:
        """The answer where all partitions are known, none has anything to read, and nothing changed meanwhile."""
        return self._response([self._answers.nothing_new(partition, wanted) for wanted, partition in found])

    async def _wait_change(self, found: Found, timeout_s: float) -> bool:
        """Wait until one of the partitions changes; False if none did in time."""
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

    # ── reading ──

    def _begin_all(self) -> list[FetchedPartition | PartitionRead]:
        allowed = self._allowances()
        return [
            self._answers.begin(self._topic(name, topic_id), wanted, next(allowed))
            for name, topic_id, partitions in self._request.topics
            for wanted in partitions
        ]

    async def _finish(self, begun: list[FetchedPartition | PartitionRead]) -> FetchResponse:
        """Every partition that has something, at once: a consumer that is behind waits for one round of GETs."""
        reads = [self._answers.read(each) for each in begun if isinstance(each, PartitionRead)]
        done = iter([await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads))
        return self._response([next(done) if isinstance(each, PartitionRead) else each for each in begun])

    def _response(self, fetched: list[FetchedPartition]) -> FetchResponse:
        """With the partitions in the order of the request."""
        answers = iter(fetched)
        return FetchResponse(
            [
                FetchedTopic(name, topic_id, list(islice(answers, len(partitions))))
                for name, topic_id, partitions in self._request.topics
            ]
        )

    def _allowances(self) -> Iterator[int]:
        """How many bytes each partition may have, in the order of the request, until the response is full."""
        budget_bytes = self._bytes_max
        for name, topic_id, partitions in self._request.topics:
            topic = self._topic(name, topic_id)
            for wanted in partitions:
                allowance = min(max(wanted.bytes_max, 1), max(budget_bytes, 0))
                yield allowance
                if topic is not None and 0 <= wanted.partition_index < len(topic.partitions):
                    partition = topic.partitions[wanted.partition_index]
                    available = self._answers.available_bytes(wanted, partition)
                    budget_bytes -= min(allowance, available)
