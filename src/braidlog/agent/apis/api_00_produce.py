"""Produce: records in. Checked, given a place in the order and handed to the write path before the first await."""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from braidlog.agent.connection import ResponseSlot
from braidlog.agent.view import TopicView
from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import Bytes
from braidlog.records.batch import BatchHeader, read_header, stamp_log_append_time, validate_batches
from braidlog.records.codec import CODEC_NAMES
from braidlog.records.errors import InvalidBatch
from braidlog.records.record import first_null_key, recompress
from braidlog.runtime.limits import BATCH_DECOMPRESSED_BYTES_MAX
from braidlog.wire.header import RequestHeader, response_header
from braidlog.wire.produce import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    RecordError,
    read_produce_request,
    write_produce_response,
)
from braidlog.writing.request import WriteRequest

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

KEY = 0
VERSIONS = range(14)
"""0 to 2 are advertised, because older librdkafka stops compressing without them, but they are not served."""
SERVED_FROM = 3
ZSTD_FROM = 7

_NONE = int(ErrorCode.none)


class PendingProduce:
    """A produce request until all its batches have found their fate."""

    __slots__ = ("_answers", "_append_ms", "_header", "_open", "_request", "_slot")

    def __init__(self, header: RequestHeader, request: ProduceRequest, slot: ResponseSlot) -> None:
        self._header = header
        self._request = request
        self._slot = slot
        self._answers: dict[tuple[int, int], ProducedPartition | WriteRequest] = {}
        self._append_ms: dict[tuple[int, int], int] = {}
        self._open = 1

    def refuse(
        self, place: tuple[int, int], index: int, code: int, message: str, records: tuple[RecordError, ...] = ()
    ) -> None:
        self._answers[place] = ProducedPartition(index, code, record_errors=records, error_message=message)

    def expect(self, place: tuple[int, int], request: WriteRequest, append_ms: int) -> None:
        self._answers[place] = request
        if append_ms >= 0:
            self._append_ms[place] = append_ms
        self._open += 1

    def done(self, _: WriteRequest | None = None) -> None:
        self._open -= 1
        if self._open:
            return
        if self._request.acks == 0:
            failed = [answer for answer in self._answers.values() if answer.error_code != _NONE]
            if failed:
                # The one way to tell a producer that wants no answers: it will look at its metadata again.
                self._slot.abandon(f"a produce request with acks=0 failed: {failed[0].error_message}")
            else:
                self._slot.fill([])
            return
        self._slot.fill(self._response())

    def _response(self) -> list[Bytes]:
        topics = [
            ProducedTopic(
                topic.name,
                topic.topic_id,
                [
                    self._partition((at, place), partition.partition_index)
                    for place, partition in enumerate(topic.partitions)
                ],
            )
            for at, topic in enumerate(self._request.topics)
        ]
        version = self._header.api_version
        return [
            response_header(self._header.correlation_id, version >= 9),
            write_produce_response(version, ProduceResponse(topics)),
        ]

    def _partition(self, place: tuple[int, int], index: int) -> ProducedPartition:
        answer = self._answers[place]
        if isinstance(answer, ProducedPartition):
            return answer
        return ProducedPartition(
            index,
            answer.error_code,
            answer.base_offset,
            self._append_ms.get(place, -1) if answer.error_code == _NONE else -1,
            answer.log_start_offset,
            error_message=answer.error_message,
        )


def handle(agent: "Agent", header: RequestHeader, body: memoryview, slot: ResponseSlot) -> None:
    if header.api_version < SERVED_FROM:
        slot.abandon(f"Produce version {header.api_version} is too old: record batches need version 3 or later")
        return
    request = read_produce_request(header.api_version, body)
    pending = PendingProduce(header, request, slot)
    for at, topic in enumerate(request.topics):
        _submit_topic(agent, header.api_version, request, pending, at, topic)
    pending.done()


def _submit_topic(
    agent: "Agent", version: int, request: ProduceRequest, pending: PendingProduce, at: int, topic: ProduceTopic
) -> None:
    view = agent.view
    known = view.topics_by_id.get(topic.topic_id) if version >= 13 else view.topics_by_name.get(topic.name)
    for place, (index, records) in enumerate(topic.partitions):
        here = (at, place)
        if known is None:
            missing = ErrorCode.unknown_topic_id if version >= 13 else ErrorCode.unknown_topic_or_partition
            pending.refuse(here, index, missing, "no such topic")
        elif not 0 <= index < len(known.partitions):
            pending.refuse(here, index, ErrorCode.unknown_topic_or_partition, "no such partition")
        elif request.acks not in {-1, 0, 1}:
            pending.refuse(here, index, ErrorCode.invalid_required_acks, f"acks={request.acks}: use 0, 1 or all")
        else:
            _submit_batch(agent, version, pending, here, known, index, records)


def _submit_batch(
    agent: "Agent",
    version: int,
    pending: PendingProduce,
    here: tuple[int, int],
    topic: TopicView,
    index: int,
    records: memoryview | None,
) -> None:
    settings = topic.settings
    append_ms = -1
    try:
        data, batch = _validated(agent, version, topic, records)
        if "compact" in settings.cleanup_policy and (place := _keyless_record(data)) is not None:
            message = "a compacted topic needs a key in every record"
            pending.refuse(here, index, ErrorCode.invalid_record, message, (RecordError(place, message),))
            return
        if settings.compression_type != "producer":
            codec = CODEC_NAMES[settings.compression_type.replace("uncompressed", "none")]
            if batch.codec != codec:
                data = memoryview(recompress(data, codec, bytes_max=BATCH_DECOMPRESSED_BYTES_MAX))
                batch = read_header(data)
        if settings.message_timestamp_type == "LogAppendTime":
            # Inside the CRC, so it must happen here, before the upload.
            append_ms = agent.clock.wall_ms()
            data = memoryview(stamp_log_append_time(data, batch, append_ms))
            batch = read_header(data)
    except InvalidBatch as error:
        pending.refuse(here, index, error.error_code, error.message)
        return
    entry = BatchEntry(
        len(data),
        batch.last_offset_delta + 1,
        batch.attributes,
        batch.timestamp_ms_highest,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )
    request = WriteRequest(topic.info.topic_id, index, data, entry, batch.timestamp_ms_base, pending.done)
    pending.expect(here, request, append_ms)
    agent.write_path.submit(request)


def _keyless_record(batch: memoryview) -> int | None:
    return first_null_key(batch, bytes_max=BATCH_DECOMPRESSED_BYTES_MAX)


def _validated(
    agent: "Agent", version: int, topic: TopicView, records: memoryview | None
) -> tuple[memoryview, BatchHeader]:
    """The one batch that a producer may send to a partition in one request."""
    settings = topic.settings
    now_ms = agent.clock.wall_ms()
    batches = validate_batches(
        records if records is not None else memoryview(b""),
        batch_bytes_max=settings.max_message_bytes,
        zstd_allowed=version >= ZSTD_FROM,
        timestamp_ms_min=now_ms - settings.message_timestamp_before_max_ms,
        timestamp_ms_max=now_ms + settings.message_timestamp_after_max_ms,
    )
    if len(batches) != 1 or records is None:
        raise InvalidBatch(ErrorCode.invalid_record, f"{len(batches)} batches for one partition: send one per request")
    batch = batches[0]
    if batch.is_transactional:
        raise InvalidBatch(ErrorCode.invalid_txn_state, "this cluster does not take transactional records")
    return records, batch
