"""Produce: writes records.

They are checked and handed to the write path before the first await.

If a batch takes long to check, a task hands the request on, and later requests of the connection wait for that task. So
records of one connection to one partition keep their order.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from kio.schema.errors import ErrorCode

from braidlog.agent.apis.converter import Converter
from braidlog.agent.apis.records.batch_work import BatchWork, Prepared
from braidlog.agent.apis.records.produce_answers import Answer, LongAnswers, PendingProduce, PendingSingle
from braidlog.agent.cluster.view import ClusterView, TopicView
from braidlog.agent.connections.connection import KafkaConnection
from braidlog.agent.connections.quotas import PRODUCER_BYTE_RATE
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.ripcord.admission import Admission
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.objects.layout import ADDS_PARTITION_BIT, BatchEntry
from braidlog.records.batch import (
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    read_header,
    stamp_log_append_time,
    validate_batches,
)
from braidlog.records.errors import BadRecords, InvalidBatch
from braidlog.records.record_checks import Times
from braidlog.runtime.clock import Clock
from braidlog.runtime.turns import SLICE_LENGTH, Turns
from braidlog.security.acls import WRITE
from braidlog.security.rights import Rights
from braidlog.wire import produce as wire_produce
from braidlog.wire.header import RequestHeader
from braidlog.wire.produce import (
    IDS_FROM,
    ProducedPartition,
    ProduceRequest,
    RecordError,
    read_produce_request,
)
from braidlog.wire.produce_opening import ProduceOpening, opening_of
from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import RequestStage

log = structlog.get_logger(__name__)

KEY = wire_produce.KEY
VERSIONS = range(wire_produce.VERSIONS.stop)
"""0 to 2 are advertised, because older librdkafka stops compressing without them, but they are not served."""
SERVED_FROM = wire_produce.VERSIONS.start
ZSTD_FROM = 7
ADDS_PARTITION_FROM = 12
"""From this version on, clients add a partition to their transaction by writing to it."""

LONG_PARTITIONS = 400
"""Requests with more partitions take several milliseconds, and are handled in slices."""

NO_TRANSACTIONS = "a lightning topic takes no transactions: set braidlog.topic.type=classic on it, or use another"

_NONE = int(ErrorCode.none)
_NOTHING = memoryview(b"")
_ANY_TIMES = Times()
_new = tuple.__new__


def _refused(index: int, code: int, message: str, records: tuple[RecordError, ...] = ()) -> ProducedPartition:
    return ProducedPartition(index, code, record_errors=records, error_message=message)


def _denial(rights: Rights, request: ProduceRequest, name: str, topic: TopicView | None) -> int | None:
    """The error for a client that lacks a right.

    It may not write to the topic, or not with its transactional id.
    """
    if not rights.is_limited:
        return None
    transactional_id = request.transactional_id
    if transactional_id is not None and not rights.transactional_id(WRITE, transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    known_name = topic.info.name if topic is not None else name
    return None if not known_name or rights.topic(WRITE, known_name) else ErrorCode.topic_authorization_failed


def _is_held_up(connection: KafkaConnection) -> bool:
    """Whether an earlier request of the connection is not handed on yet."""
    tail = connection.produce_tail
    if tail is None or not tail.done():
        return tail is not None
    connection.produce_tail = None
    return False


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch with a valid header, until it is handed on."""

    topic: TopicView
    index: int
    records: memoryview
    header: BatchHeader
    times: Times
    """The range of timestamps that its records may have."""
    prepared: Prepared | ProducedPartition | None
    """The prepared batch, or why it is refused; None until one of them is known."""


_Arrived = list[tuple[str, bytes, list[ProducedPartition | _Batch]]]
"""The name, id and partitions of each topic of a request."""


def _each(arrived: _Arrived) -> Iterator[ProducedPartition | _Batch]:
    return (each for _, _, batches in arrived for each in batches)


def _refused_batch(index: int, error: InvalidBatch) -> ProducedPartition:
    bad = tuple(RecordError(place, error.reason) for place in error.places) if isinstance(error, BadRecords) else ()
    return _refused(index, error.error_code, error.message, bad)


async def _wait_ended(earlier: asyncio.Task[None] | None) -> None:
    if earlier is not None and not earlier.done():
        await asyncio.wait([earlier])


@contextmanager
def _errors_told(slot: ResponseSlot) -> Iterator[None]:
    """Log an error and close the connection.

    Otherwise its client would wait for an answer.
    """
    try:
        yield
    except asyncio.CancelledError:
        slot.abandon("")
        raise
    except Exception as error:
        log.error("produce failed", exc_info=error)
        slot.abandon("an error in the agent: see its log")


def _opening(
    frame: memoryview, header: RequestHeader, request: ProduceRequest, connection: KafkaConnection
) -> ProduceOpening | None:
    """The opening of a request, from the second in a row to one topic on.

    A producer that alternates between topics would gain nothing from it.
    """
    name, topic_id, _ = request.topics[0]
    topic_before, connection.produced_topic = connection.produced_topic, (name, topic_id)
    return opening_of(frame, header, request) if topic_before == (name, topic_id) else None


def _only_batch(version: int, topic: TopicView, records: memoryview) -> BatchHeader:
    """The header of the one batch that a producer may send for a partition at a time."""
    batches = validate_batches(
        records, batch_bytes_max=topic.settings.max_message_bytes, zstd_allowed=version >= ZSTD_FROM
    )
    if len(batches) != 1:
        message = f"{len(batches)} batches for one partition: send one per request"
        raise InvalidBatch(ErrorCode.invalid_record, message)
    return batches[0]


def _write_request(
    topic: TopicView,
    index: int,
    data: memoryview,
    batch: BatchHeader,
    append_ms: int,
    done: Callable[[WriteRequest], None],
) -> WriteRequest:
    _, _, _, _, _, attributes, last_delta, base_ms, max_ms, producer_id, epoch, sequence, _ = batch
    if attributes & TIMESTAMP_TYPE_BIT:
        base_ms = max_ms  # all records have the log's time; the producer's base timestamp means nothing
    highest_ms = max_ms if max_ms > base_ms else base_ms
    entry = BatchEntry(len(data), last_delta + 1, attributes, highest_ms, producer_id, epoch, sequence)
    return WriteRequest(topic.info.topic_id, index, data, entry, base_ms, append_ms, done)


class Produce:
    """Handles Produce requests."""

    def __init__(
        self,
        view: ClusterView,
        write_path: RequestStage,
        batch_work: BatchWork,
        admission: Admission,
        reachability: Reachability,
        clock: Clock,
        turns: Turns,
        converter: Converter,
    ) -> None:
        self._view = view
        self._turns = turns
        self._long = LongAnswers(converter, batch_work.tasks)
        self._write_path = write_path
        self._batch_work = batch_work
        self._admission = admission
        self._reachability = reachability
        self._clock = clock

    def handle_alike(self, opening: ProduceOpening, frame: memoryview, slot: ResponseSlot) -> bool:
        """Handle a request with the same opening as an earlier one of its connection.

        Returns False if the opening differs or anything else is unusual. Then `handle` has to do it.
        """
        request = opening.read(frame)
        if request is None:
            return False
        correlation_id, index, records = request
        version, _, name, topic_id = opening
        view = self._view
        topic = view.topics_by_id.get(topic_id) if version >= IDS_FROM else view.topics_by_name.get(name)
        if topic is None or not topic.takes_batches_as_sent or not 0 <= index < len(topic.partitions):
            return False
        if view.quotas.limits_producers or self._reachability.is_doubtful or _is_held_up(slot.connection):
            return False
        rights = slot.connection.rights
        if rights.is_limited and not rights.topic(WRITE, topic.info.name):
            return False
        try:
            batch = _only_batch(version, topic, records)
            if batch.is_transactional:
                return False
            prepared = self._batch_work.prepare_light(records, batch, topic.rules, self._times(topic))
        except InvalidBatch:
            return False
        if prepared is None:
            return False
        done = PendingSingle(opening, correlation_id, slot).done
        self._write_path.submit(_write_request(topic, index, *prepared, -1, done))
        return True

    def handle(self, header: RequestHeader, frame: memoryview, slot: ResponseSlot) -> ProduceOpening | None:
        """Handle any request.

        Returns its opening, which later requests may share, if nothing about it was unusual.
        """
        version = header.api_version
        if version < SERVED_FROM:
            slot.abandon(f"Produce version {version} is too old: record batches need version 3 or later")
            return None
        request = read_produce_request(version, frame[header.body_position :])
        is_long = sum([len(topic.partitions) for topic in request.topics]) > LONG_PARTITIONS
        pending = PendingProduce(
            header, request.acks, request.transactional_id is not None, slot, self._long if is_long else None
        )
        view = self._view
        if view.quotas.limits_producers:
            pending.throttle_ms = self._throttle(header, len(frame), slot)
        connection = slot.connection
        if is_long:
            long = self._handle_long(version, pending, request, slot, connection.produce_tail)
            connection.produce_tail = self._batch_work.tasks.spawn(long)
            return None
        arrived: _Arrived = []
        for name, topic_id, partitions in request.topics:
            topic = self._topic(version, name, topic_id)
            denial = _denial(connection.rights, request, name, topic)
            taken: list[ProducedPartition | _Batch] = [
                self._take(version, request.acks, topic, index, data)
                if denial is None
                else _refused(index, denial, "the client may not write here")
                for index, data in partitions
            ]
            arrived.append((name, topic_id, taken))
        if _is_held_up(connection) or any(
            isinstance(each, _Batch) and each.prepared is None for each in _each(arrived)
        ):
            later = self._hand_on_later(version, pending, arrived, slot, connection.produce_tail)
            connection.produce_tail = self._batch_work.tasks.spawn(later)
            return None
        open_count = self._hand_on(version, pending, arrived, slot)
        return _opening(frame, header, request, connection) if open_count == 1 and request.acks != 0 else None

    def _topic(self, version: int, name: str, topic_id: bytes) -> TopicView | None:
        view = self._view
        return view.topics_by_id.get(topic_id) if version >= IDS_FROM else view.topics_by_name.get(name)

    def _take(
        self, version: int, acks: int, topic: TopicView | None, index: int, records: memoryview | None
    ) -> ProducedPartition | _Batch:
        """The batch of a partition, prepared if that is quick; or why it is refused."""
        if topic is None:
            code = ErrorCode.unknown_topic_id if version >= IDS_FROM else ErrorCode.unknown_topic_or_partition
            return _refused(index, code, "no such topic")
        if topic.is_internal:
            return _refused(index, ErrorCode.invalid_topic_exception, "clients cannot write to this topic")
        if not 0 <= index < len(topic.partitions):
            return _refused(index, ErrorCode.unknown_topic_or_partition, "no such partition")
        if not -1 <= acks <= 1:
            return _refused(index, ErrorCode.invalid_required_acks, f"acks={acks}: use 0, 1 or all")
        records = _NOTHING if records is None else records
        try:
            header = _only_batch(version, topic, records)
            times = self._times(topic)
            prepared = self._batch_work.prepare_light(records, header, topic.rules, times)
        except InvalidBatch as error:
            return _refused_batch(index, error)
        return _Batch(topic, index, records, header, times, prepared)

    async def _handle_long(
        self,
        version: int,
        pending: PendingProduce,
        request: ProduceRequest,
        slot: ResponseSlot,
        earlier: asyncio.Task[None] | None,
    ) -> None:
        """Handle a request of many partitions in slices.

        Later requests of the connection wait.
        """
        with _errors_told(slot):
            await _wait_ended(earlier)
            open_count, refused_before = 0, self._admission.refused_writes
            for name, topic_id, partitions in request.topics:
                topic = self._topic(version, name, topic_id)
                denial = _denial(slot.connection.rights, request, name, topic)
                answers: list[Answer] = []
                pending.topics.append((name, topic_id, answers))
                for start in range(0, len(partitions), SLICE_LENGTH):
                    await self._turns.wait()
                    wanted = partitions[start : start + SLICE_LENGTH]
                    batches: list[ProducedPartition | _Batch] = [
                        self._take(version, request.acks, topic, index, data)
                        if denial is None
                        else _refused(index, denial, "the client may not write here")
                        for index, data in wanted
                    ]
                    await self._prepare(batches)
                    more, more_count = self._submit_all(version, pending, batches)
                    pending.expect_more(more_count)
                    answers += more
                    open_count += more_count
            self._hold_off(pending, open_count, refused_before, slot)
            pending.expect(0)

    async def _hand_on_later(
        self,
        version: int,
        pending: PendingProduce,
        arrived: _Arrived,
        slot: ResponseSlot,
        earlier: asyncio.Task[None] | None,
    ) -> None:
        """Hand on a request whose batches take long, or that waits for such a request."""
        with _errors_told(slot):
            await _wait_ended(earlier)
            await self._prepare(_each(arrived))
            self._hand_on(version, pending, arrived, slot)

    async def _prepare(self, batches: Iterable[ProducedPartition | _Batch]) -> None:
        """Finish the check of batches for which that takes long.

        One batch of a connection is worked on at a time, so that others have their turn.
        """
        for batch in batches:
            if not isinstance(batch, _Batch) or batch.prepared is not None:
                continue
            try:
                batch.prepared = await self._batch_work.prepare(
                    batch.records, batch.header, batch.topic.rules, batch.times
                )
            except InvalidBatch as error:
                batch.prepared = _refused_batch(batch.index, error)

    def _hand_on(self, version: int, pending: PendingProduce, arrived: _Arrived, slot: ResponseSlot) -> int:
        """Hand all batches to the write path, without an await.

        Returns how many it has taken.
        """
        open_count = 0
        refused_before = self._admission.refused_writes
        for name, topic_id, batches in arrived:
            answers, more_count = self._submit_all(version, pending, batches)
            open_count += more_count
            pending.topics.append((name, topic_id, answers))
        self._hold_off(pending, open_count, refused_before, slot)
        # After the last one was handed on: the write path never answers before `submit` returns.
        pending.expect(open_count)
        return open_count

    def _submit_all(
        self, version: int, pending: PendingProduce, batches: list[ProducedPartition | _Batch]
    ) -> tuple[list[Answer], int]:
        """Hand batches to the write path.

        Returns the answer for each, and how many it has taken.
        """
        answers = [each if not isinstance(each, _Batch) else self._submit(version, pending, each) for each in batches]
        return answers, sum(isinstance(answer, WriteRequest) for answer in answers)

    def _hold_off(self, pending: PendingProduce, open_count: int, refused_before: int, slot: ResponseSlot) -> None:
        if not open_count and self._admission.refused_writes > refused_before:
            # Only if nothing of the request could be written: other writes of the client must not wait.
            pending.throttle_ms = max(pending.throttle_ms, self._admission.hold_off(slot.connection))

    def _throttle(self, header: RequestHeader, taken_bytes: int, slot: ResponseSlot) -> int:
        """Charge the client's quota.

        Returns how long it has to wait, in ms. It is not read meanwhile.
        """
        connection = slot.connection
        throttle_s = self._view.quotas.charge(
            PRODUCER_BYTE_RATE, connection.user, header.client_id or "", taken_bytes, self._clock.monotonic_s()
        )
        if throttle_s:
            connection.mute(throttle_s)
        return round(throttle_s * 1000)

    def _submit(self, version: int, pending: PendingProduce, batch: _Batch) -> ProducedPartition | WriteRequest:
        """Hand a batch to the write path, or return why it is refused."""
        topic, index, prepared = batch.topic, batch.index, batch.prepared
        if prepared is None or isinstance(prepared, ProducedPartition):
            return prepared or _refused(index, ErrorCode.unknown_server_error, "the batch was not checked")
        data, header = prepared
        if header.is_transactional and not pending.is_transactional:
            message = "transactional records without a transactional id"
            return _refused(index, ErrorCode.transactional_id_authorization_failed, message)
        if header.is_transactional and self._view.is_journaled(topic.info.topic_id):
            # Not when the partition is added: a client can only abort a transaction that has begun.
            return _refused(index, ErrorCode.policy_violation, NO_TRANSACTIONS)
        if not self._admission.takes(topic, header.is_transactional):
            self._admission.refused_writes += 1
            return _refused(index, ErrorCode.not_enough_replicas, "the control plane is away: try again")
        append_ms = -1
        if topic.settings.log_append_time:
            # Inside the CRC, so it must happen here, before the upload.
            append_ms = self._clock.wall_ms()
            data = memoryview(stamp_log_append_time(data, header, append_ms))
            header = read_header(data)
        if header.is_transactional and version >= ADDS_PARTITION_FROM:
            header = header._replace(attributes=header.attributes | ADDS_PARTITION_BIT)
        request = _write_request(topic, index, data, header, append_ms, pending.done)
        self._write_path.submit(request)
        return request

    def _times(self, topic: TopicView) -> Times:
        """The range of timestamps that records may have."""
        settings = topic.settings
        if settings.log_append_time:
            return _ANY_TIMES  # the producer's timestamps are not kept
        now_ms = self._clock.wall_ms()
        bounds = (now_ms - settings.message_timestamp_before_max_ms, now_ms + settings.message_timestamp_after_max_ms)
        return _new(Times, bounds)  # half the time that its own constructor takes
