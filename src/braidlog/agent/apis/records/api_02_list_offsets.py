"""ListOffsets: the first offset, the last, or one by time.

It asks the control plane, so the answer is current.
"""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode
from msgspec import structs

from braidlog.agent.apis.records.services import RecordContext, RecordServices
from braidlog.agent.apis.shared import CONTROL_FAILURES, NO_THROTTLE
from braidlog.agent.cluster.view import PartitionView
from braidlog.agent.read_path.partition_answers import epoch_error
from braidlog.control.interface import BoundsRequest, FindTimestamp, PartitionBounds
from braidlog.objects.store import NotFound, StoreError
from braidlog.records.errors import InvalidBatch
from braidlog.records.leader_epochs import current_epoch, epoch_at
from braidlog.records.placement import place_batches
from braidlog.records.record import iter_records
from braidlog.runtime.limits import BATCH_DECOMPRESSED_BYTES_MAX
from braidlog.security.acls import DESCRIBE

KEY = 2
VERSIONS = range(1, 12)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

ASKED_FROM = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version that has each of these timestamps. Other negative timestamps mean nothing."""

NOTHING = (-1, -1)
"""The answer if there is no such record: Kafka gives offset and timestamp -1."""


async def handle(request: Any, context: RecordContext) -> Any:
    services, answer = context.services, context.answer
    counts = Counter(
        [
            (topic.name, wanted.partition_index)
            for topic in request.topics
            async for wanted in context.turns.each(topic.partitions)
        ]
    )
    rights = context.rights
    views = {
        (name, index): services.view.partition(name, index) if rights.topic(DESCRIBE, name) else None
        for name, index in counts
    }
    known = [partition.partition_id for partition in views.values() if partition is not None]
    failure = ErrorCode.none
    bounds: dict[int, PartitionBounds] = {}
    try:
        current = await services.control.current_bounds(BoundsRequest(known), timeout_s=5.0)
        committed_only = getattr(request, "isolation_level", 0) == 1
        bounds = {bound.partition_id: _visible(bound, committed_only) for bound in current.bounds}
    except CONTROL_FAILURES:
        failure = ErrorCode.leader_not_available
    topics = []
    for topic in request.topics:
        partitions = []
        async for wanted in context.turns.each(topic.partitions):
            partition = views[topic.name, wanted.partition_index]
            bound = bounds.get(partition.partition_id) if partition is not None else None
            code, found = failure, NOTHING
            if not rights.topic(DESCRIBE, topic.name):
                code = ErrorCode.topic_authorization_failed
            elif counts[topic.name, wanted.partition_index] > 1:
                code = ErrorCode.invalid_request  # as in Kafka: it would be unclear which of them is answered
            elif wanted.timestamp < 0 and context.version < ASKED_FROM.get(wanted.timestamp, VERSIONS.stop):
                code = ErrorCode.unsupported_version
            elif failure == ErrorCode.none:
                if partition is None or bound is None:
                    code = ErrorCode.unknown_topic_or_partition
                elif (wrong := _epoch_error(wanted, bound)) is not None:
                    code = wrong
                else:
                    code, found = await _find(services, partition, bound, wanted.timestamp)
            partitions.append(
                answer(
                    "ListOffsetsPartitionResponse",
                    partition_index=wanted.partition_index,
                    error_code=code,
                    timestamp=found[1],
                    offset=found[0],
                    leader_epoch=epoch_at(bound.leader_epochs, found[0]) if found[0] >= 0 and bound else -1,
                )
            )
        topics.append(answer("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions)))
    return answer("ListOffsetsResponse", throttle_time=NO_THROTTLE, topics=tuple(topics))


def _epoch_error(wanted: Any, bounds: PartitionBounds) -> ErrorCode | None:
    return epoch_error(getattr(wanted, "current_leader_epoch", -1), current_epoch(bounds.leader_epochs))


def _visible(bounds: PartitionBounds, committed_only: bool) -> PartitionBounds:
    """The bounds for a reader.

    For readers of committed data, the log ends at the first undecided transaction.
    """
    if committed_only and bounds.first_unstable_offset >= 0:
        return structs.replace(bounds, high_watermark=bounds.first_unstable_offset)
    return bounds


async def _find(
    services: RecordServices, partition: PartitionView, bounds: PartitionBounds, timestamp_ms: int
) -> tuple[ErrorCode, tuple[int, int]]:
    if timestamp_ms == LATEST:
        return ErrorCode.none, (bounds.high_watermark, -1)
    if timestamp_ms in {EARLIEST, EARLIEST_LOCAL}:
        return ErrorCode.none, (bounds.log_start_offset, -1)
    if timestamp_ms in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return ErrorCode.none, NOTHING  # as Kafka answers where there is no second tier
    try:
        found = await _find_by_time(services, partition, bounds, timestamp_ms)
        return ErrorCode.none, found if found[0] < bounds.high_watermark else NOTHING
    except CONTROL_FAILURES:
        return ErrorCode.leader_not_available, NOTHING
    except StoreError:
        return ErrorCode.kafka_storage_error, NOTHING
    except InvalidBatch:
        return ErrorCode.corrupt_message, NOTHING


async def _find_by_time(
    services: RecordServices, partition: PartitionView, bounds: PartitionBounds, timestamp_ms: int
) -> tuple[int, int]:
    """The first record with this timestamp or a later one.

    For MAX_TIMESTAMP, the first record with the highest timestamp.

    An extent may turn out to have no such record, because it was deleted or compacted away. Then the search goes on in
    the next extent that may have one.
    """
    wants_max = timestamp_ms == MAX_TIMESTAMP
    from_offset = bounds.log_start_offset
    looked_again = False
    while True:
        found = await services.control.find_timestamp(
            FindTimestamp(partition.partition_id, -1 if wants_max else timestamp_ms, from_offset), timeout_s=5.0
        )
        if not found.extents:
            return NOTHING
        extent, stored = found.extents[0], found.objects[0]
        try:
            data = await services.reader.bytes_of(extent, stored)
        except NotFound:
            # The object was replaced after the index was read, and deleted since: the index has a new one by now.
            if looked_again:
                raise
            looked_again = True
            continue
        target_ms = extent.timestamp_ms_max if wants_max else timestamp_ms
        # Not on the event loop: a batch is decompressed, and its records are checked one by one.
        at = await services.batch_work.call(_first_at, data, extent.base_offset, target_ms, bounds.log_start_offset)
        if at is not None or wants_max:
            return at or NOTHING
        from_offset = extent.end_offset


def _first_at(data: memoryview, base_offset: int, target_ms: int, offset_min: int) -> tuple[int, int] | None:
    for position, header, offset in place_batches(data, base_offset):
        if header.timestamp_ms_highest >= target_ms and header.record_count:
            batch = data[position : position + header.total_bytes]
            for record in iter_records(batch, bytes_max=BATCH_DECOMPRESSED_BYTES_MAX):
                at = offset + record.offset - header.base_offset
                if record.timestamp_ms >= target_ms and at >= offset_min:
                    return at, record.timestamp_ms
    return None
