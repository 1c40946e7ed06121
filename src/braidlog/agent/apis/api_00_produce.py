"""Produce: records in. Checked, given a place in the order and handed to the write path before the first await."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from braidlog.agent.connection import KafkaConnection, ResponseSlot
from braidlog.agent.quotas import PRODUCER_BYTE_RATE
from braidlog.agent.view import TopicView
from braidlog.objects.layout import ADDS_PARTITION_BIT, BatchEntry
from braidlog.records.batch import (
    BatchHeader,
    read_header,
    stamp_log_append_time,
    validate_batches,
)
from braidlog.records.codec import CODEC_NAMES
from braidlog.records.errors import InvalidBatch
from braidlog.records.record import first_null_key, recompress
from braidlog.runtime.limits import BATCH_DECOMPRESSED_BYTES_MAX
from braidlog.wire.header import RequestHeader, frame_start, response_header
from braidlog.wire.produce import (
    FLEXIBLE_FROM,
    IDS_FROM,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    RecordError,
    read_produce_request,
    write_produce_response,
    write_single_produced,
)
from braidlog.wire.produce_opening import ProduceOpening, opening_of
from braidlog.writing.request import WriteRequest

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

KEY = 0
VERSIONS = range(14)
"""0 to 2 are advertised, because older librdkafka stops compressing without them, but they are not served."""
SERVED_FROM = 3
ZSTD_FROM = 7
ABORTABLE_FROM = 11
"""Clients that know that a transaction may have to be aborted without being over with."""
ADDS_PARTITION_FROM = 12
"""Clients that add a partition to their transaction by writing to it."""

NO_TRANSACTIONS = "a lightning topic takes no transactions: set braidlog.topic.type=classic on it, or use another"

_NONE = int(ErrorCode.none)
_NOTHING = memoryview(b"")


class PendingProduce:
    """A produce request until all its batches have found their fate.

    It keeps what the answer needs and nothing of the request itself, whose frame can be large.
    """

    __slots__ = ("_acks", "_correlation_id", "_open", "_slot", "_version", "is_transactional", "throttle_ms", "topics")

    def __init__(self, header: RequestHeader, acks: int, is_transactional: bool, slot: ResponseSlot) -> None:
        self._acks = acks
        self.is_transactional = is_transactional
        self._correlation_id = header.correlation_id
        self._version = header.api_version
        self._slot = slot
        self._open = 0
        self.throttle_ms = 0
        self.topics: list[tuple[str, bytes, list[ProducedPartition | WriteRequest]]] = []
        """Name, id, and what became of each partition's batch, in the order of the request."""

    def expect(self, open_count: int) -> None:
        """So many batches are on their way; with none there is nothing to wait for."""
        self._open = open_count
        if not open_count:
            self._finish()

    def done(self, _: WriteRequest) -> None:
        self._open -= 1
        if not self._open:
            self._finish()

    def _finish(self) -> None:
        topics, self.topics = self.topics, []  # they point back here, and should not wait for the garbage collector
        if self._acks == 0:
            self._end_silently(topics)
            return
        version = self._version
        start = response_header(self._correlation_id, version >= FLEXIBLE_FROM)
        self._slot.fill([start + _body(version, topics, self.throttle_ms)])

    def _end_silently(self, topics: list[tuple[str, bytes, list[ProducedPartition | WriteRequest]]]) -> None:
        failed = [answer for _, _, answers in topics for answer in answers if answer.error_code != _NONE]
        if failed:
            # The one way to tell a producer that wants no answers: it will look at its metadata again.
            self._slot.abandon(f"a produce request with acks=0 failed: {failed[0].error_message}")
        else:
            self._slot.fill([])


class PendingSingle:
    """As `PendingProduce`, of a request for one partition that opened as an earlier one did."""

    __slots__ = ("_correlation_id", "_opening", "_slot")

    def __init__(self, opening: ProduceOpening, correlation_id: int, slot: ResponseSlot) -> None:
        self._opening = opening
        self._correlation_id = correlation_id
        self._slot = slot

    def done(self, request: WriteRequest) -> None:
        version, _, name, topic_id = self._opening
        body = _body(version, [(name, topic_id, [request])])
        self._slot.fill_framed([frame_start(self._correlation_id, version >= FLEXIBLE_FROM, len(body)) + body])


def _body(
    version: int, topics: list[tuple[str, bytes, list[ProducedPartition | WriteRequest]]], throttle_ms: int = 0
) -> bytes:
    if len(topics) == 1 and not throttle_ms:
        name, topic_id, answers = topics[0]
        if len(answers) == 1 and answers[0].error_code == _NONE:
            only = answers[0]
            if isinstance(only, WriteRequest):
                return write_single_produced(
                    version, name, topic_id, only.partition, only.base_offset, only.append_ms, only.log_start_offset
                )
    produced = [
        ProducedTopic(name, topic_id, [_produced(answer, version) for answer in answers])
        for name, topic_id, answers in topics
    ]
    return write_produce_response(version, ProduceResponse(produced, throttle_ms))


def _produced(answer: ProducedPartition | WriteRequest, version: int) -> ProducedPartition:
    if isinstance(answer, ProducedPartition):
        return answer
    code = answer.error_code
    if code == ErrorCode.invalid_txn_state and version >= ABORTABLE_FROM:
        code = ErrorCode.transaction_abortable
    append_ms = answer.append_ms if code == _NONE else -1
    return ProducedPartition(
        answer.partition, code, answer.base_offset, append_ms, answer.log_start_offset, (), answer.error_message
    )


def _refused(index: int, code: int, message: str, records: tuple[RecordError, ...] = ()) -> ProducedPartition:
    return ProducedPartition(index, code, record_errors=records, error_message=message)


def handle_alike(agent: "Agent", opening: ProduceOpening, frame: memoryview, slot: ResponseSlot) -> bool:
    """Handle a request that opens as an earlier one of its connection did. False: it does not, or something is the
    matter with it, which is for `handle` to find out."""
    request = opening.read(frame)
    if request is None:
        return False
    correlation_id, index, records = request
    version, _, name, topic_id = opening
    view = agent.view
    topic = view.topics_by_id.get(topic_id) if version >= IDS_FROM else view.topics_by_name.get(name)
    if topic is None or not topic.takes_batches_as_sent or not 0 <= index < len(topic.partitions):
        return False
    if view.quotas.limits_producers or agent.reachability.is_doubtful:
        return False
    try:
        batches = _validated(agent, version, topic, records)
    except InvalidBatch:
        return False
    if len(batches) != 1 or batches[0].is_transactional:
        return False
    done = PendingSingle(opening, correlation_id, slot).done
    agent.write_path.submit(_write_request(topic, index, records, batches[0], -1, done))
    return True


def handle(agent: "Agent", header: RequestHeader, frame: memoryview, slot: ResponseSlot) -> ProduceOpening | None:
    """Returns the opening that later requests may have in common with this one, if it was all in order."""
    version = header.api_version
    if version < SERVED_FROM:
        slot.abandon(f"Produce version {version} is too old: record batches need version 3 or later")
        return None
    request = read_produce_request(version, frame[header.body_position :])
    pending = PendingProduce(header, request.acks, request.transactional_id is not None, slot)
    view = agent.view
    if view.quotas.limits_producers:
        pending.throttle_ms = _throttle(agent, header, len(frame), slot)
    open_count = 0
    refused_before = agent.admission.refused_writes
    for name, topic_id, partitions in request.topics:
        topic = view.topics_by_id.get(topic_id) if version >= IDS_FROM else view.topics_by_name.get(name)
        answers: list[ProducedPartition | WriteRequest] = []
        pending.topics.append((name, topic_id, answers))
        for index, records in partitions:
            if topic is None:
                code = ErrorCode.unknown_topic_id if version >= IDS_FROM else ErrorCode.unknown_topic_or_partition
                answers.append(_refused(index, code, "no such topic"))
            elif not 0 <= index < len(topic.partitions):
                answers.append(_refused(index, ErrorCode.unknown_topic_or_partition, "no such partition"))
            elif not -1 <= request.acks <= 1:
                message = f"acks={request.acks}: use 0, 1 or all"
                answers.append(_refused(index, ErrorCode.invalid_required_acks, message))
            else:
                answer = _submit(agent, version, pending, topic, index, records)
                open_count += isinstance(answer, WriteRequest)
                answers.append(answer)
    if not open_count and agent.admission.refused_writes > refused_before:
        # Only a client that has nothing else to write: the rest of what it sends must not wait.
        pending.throttle_ms = max(pending.throttle_ms, agent.admission.hold_off(slot.connection))
    # After the last one was handed on: the write path never answers before `submit` returns.
    pending.expect(open_count)
    return _opening(frame, header, request, slot.connection) if open_count == 1 and request.acks != 0 else None


def _opening(
    frame: memoryview, header: RequestHeader, request: ProduceRequest, connection: KafkaConnection
) -> ProduceOpening | None:
    """Only for the second request in a row to a topic: a producer that goes from one to the next would gain nothing."""
    name, topic_id, _ = request.topics[0]
    topic_before, connection.produced_topic = connection.produced_topic, (name, topic_id)
    return opening_of(frame, header, request) if topic_before == (name, topic_id) else None


def _throttle(agent: "Agent", header: RequestHeader, taken_bytes: int, slot: ResponseSlot) -> int:
    """How long the client is told to wait, in milliseconds. It is not listened to meanwhile."""
    connection = slot.connection
    throttle_s = agent.view.quotas.charge(
        PRODUCER_BYTE_RATE, connection.user, header.client_id or "", taken_bytes, agent.clock.monotonic_s()
    )
    if throttle_s:
        connection.mute(throttle_s)
    return round(throttle_s * 1000)


def _submit(
    agent: "Agent", version: int, pending: PendingProduce, topic: TopicView, index: int, records: memoryview | None
) -> ProducedPartition | WriteRequest:
    """Hand a batch to the write path; or say why not."""
    try:
        batches = _validated(agent, version, topic, records if records is not None else _NOTHING)
        if len(batches) != 1 or records is None:
            message = f"{len(batches)} batches for one partition: send one per request"
            return _refused(index, ErrorCode.invalid_record, message)
        data, batch, append_ms = records, batches[0], -1
        if batch.is_transactional and not pending.is_transactional:
            message = "transactional records without a transactional id"
            return _refused(index, ErrorCode.transactional_id_authorization_failed, message)
        if batch.is_transactional and agent.is_journaled(topic.info.topic_id):
            # Here and not when the partition is added: a client can only abort a transaction that has begun.
            return _refused(index, ErrorCode.policy_violation, NO_TRANSACTIONS)
        if not agent.admission.takes(topic, batch.is_transactional):
            agent.admission.refused_writes += 1
            return _refused(index, ErrorCode.not_enough_replicas, "the control plane is away: try again")
        if not topic.takes_batches_as_sent:
            # First, because a batch that is too large as the topic wants it is not decompressed to its end.
            data, batch, append_ms = _rewritten(agent, topic, data, batch)
            if topic.settings.compacted and (place := _keyless_record(data)) is not None:
                message = "a compacted topic needs a key in every record"
                return _refused(index, ErrorCode.invalid_record, message, (RecordError(place, message),))
    except InvalidBatch as error:
        return _refused(index, error.error_code, error.message)
    if batch.is_transactional and version >= ADDS_PARTITION_FROM:
        batch = batch._replace(attributes=batch.attributes | ADDS_PARTITION_BIT)
    request = _write_request(topic, index, data, batch, append_ms, pending.done)
    agent.write_path.submit(request)
    return request


def _validated(agent: "Agent", version: int, topic: TopicView, records: memoryview) -> list[BatchHeader]:
    settings = topic.settings
    zstd_allowed = version >= ZSTD_FROM
    if settings.log_append_time:
        # The producer's timestamps are not kept, so they may be anything.
        return validate_batches(records, batch_bytes_max=settings.max_message_bytes, zstd_allowed=zstd_allowed)
    now_ms = agent.clock.wall_ms()
    return validate_batches(
        records,
        batch_bytes_max=settings.max_message_bytes,
        zstd_allowed=zstd_allowed,
        timestamp_ms_min=now_ms - settings.message_timestamp_before_max_ms,
        timestamp_ms_max=now_ms + settings.message_timestamp_after_max_ms,
    )


def _write_request(
    topic: TopicView,
    index: int,
    data: memoryview,
    batch: BatchHeader,
    append_ms: int,
    done: Callable[[WriteRequest], None],
) -> WriteRequest:
    _, _, _, _, _, attributes, last_delta, base_ms, max_ms, producer_id, epoch, sequence, _ = batch
    highest_ms = max_ms if max_ms > base_ms else base_ms
    entry = BatchEntry(len(data), last_delta + 1, attributes, highest_ms, producer_id, epoch, sequence)
    return WriteRequest(topic.info.topic_id, index, data, entry, base_ms, append_ms, done)


def _rewritten(
    agent: "Agent", topic: TopicView, data: memoryview, batch: BatchHeader
) -> tuple[memoryview, BatchHeader, int]:
    """The batch as the topic's settings want it stored, and the time that the log gave it."""
    settings = topic.settings
    append_ms = -1
    if settings.compression_type != "producer":
        codec = CODEC_NAMES[settings.compression_type.replace("uncompressed", "none")]
        if batch.codec != codec:
            recompressed = recompress(
                data,
                codec,
                level=settings.compression_level,
                batch_bytes_max=settings.max_message_bytes,
                bytes_max=BATCH_DECOMPRESSED_BYTES_MAX,
            )
            data = memoryview(recompressed)
            batch = read_header(data)
    if settings.log_append_time:
        # Inside the CRC, so it must happen here, before the upload.
        append_ms = agent.clock.wall_ms()
        data = memoryview(stamp_log_append_time(data, batch, append_ms))
        batch = read_header(data)
    return data, batch, append_ms


def _keyless_record(batch: memoryview) -> int | None:
    return first_null_key(batch, bytes_max=BATCH_DECOMPRESSED_BYTES_MAX)
