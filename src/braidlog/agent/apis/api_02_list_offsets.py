"""ListOffsets: the first, the last, or by time. Asked of the control plane, so that it is true now."""

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from msgspec import structs

from braidlog.agent.apis.shared import CONTROL_FAILURES, NO_THROTTLE
from braidlog.agent.context import RequestContext
from braidlog.agent.reading import LEADER_EPOCH
from braidlog.agent.view import PartitionView
from braidlog.control.interface import BoundsRequest, FindTimestamp, PartitionBounds
from braidlog.objects.store import NotFound, StoreError
from braidlog.records.errors import InvalidBatch
from braidlog.records.placing import place_batches
from braidlog.records.record import decode_batch
from braidlog.runtime.limits import BATCH_DECOMPRESSED_BYTES_MAX

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent

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
"""The first version in which each may be asked for. Other negative timestamps mean nothing."""

NOTHING = (-1, -1)
"""No record answers the question: Kafka says so with offset and timestamp -1."""


async def handle(request: Any, context: RequestContext) -> Any:
    agent, answer = context.agent, context.answer
    views = {
        (topic.name, wanted.partition_index): agent.view.partition(topic.name, wanted.partition_index)
        for topic in request.topics
        for wanted in topic.partitions
    }
    known = [partition.partition_id for partition in views.values() if partition is not None]
    failure = ErrorCode.none
    bounds: dict[int, PartitionBounds] = {}
    try:
        current = await agent.control.current_bounds(BoundsRequest(known), timeout_s=5.0)
        committed_only = getattr(request, "isolation_level", 0) == 1
        bounds = {bound.partition_id: _visible(bound, committed_only) for bound in current.bounds}
    except CONTROL_FAILURES:
        failure = ErrorCode.leader_not_available
    topics = []
    for topic in request.topics:
        partitions = []
        for wanted in topic.partitions:
            partition = views[topic.name, wanted.partition_index]
            bound = bounds.get(partition.partition_id) if partition is not None else None
            code, found = failure, NOTHING
            if wanted.timestamp < 0 and context.version < ASKED_FROM.get(wanted.timestamp, VERSIONS.stop):
                code = ErrorCode.unsupported_version
            elif failure == ErrorCode.none:
                if partition is None or bound is None:
                    code = ErrorCode.unknown_topic_or_partition
                elif getattr(wanted, "current_leader_epoch", -1) > LEADER_EPOCH:
                    code = ErrorCode.unknown_leader_epoch
                else:
                    code, found = await _find(agent, partition, bound, wanted.timestamp)
            partitions.append(
                answer(
                    "ListOffsetsPartitionResponse",
                    partition_index=wanted.partition_index,
                    error_code=code,
                    timestamp=found[1],
                    offset=found[0],
                    leader_epoch=LEADER_EPOCH if found[0] >= 0 else -1,
                )
            )
        topics.append(answer("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions)))
    return answer("ListOffsetsResponse", throttle_time=NO_THROTTLE, topics=tuple(topics))


def _visible(bounds: PartitionBounds, committed_only: bool) -> PartitionBounds:
    """For readers of committed data the log ends where the first transaction begins that is not decided."""
    if committed_only and bounds.first_unstable_offset >= 0:
        return structs.replace(bounds, high_watermark=bounds.first_unstable_offset)
    return bounds


async def _find(
    agent: "Agent", partition: PartitionView, bounds: PartitionBounds, timestamp_ms: int
) -> tuple[ErrorCode, tuple[int, int]]:
    if timestamp_ms == LATEST:
        return ErrorCode.none, (bounds.high_watermark, -1)
    if timestamp_ms in {EARLIEST, EARLIEST_LOCAL}:
        return ErrorCode.none, (bounds.log_start_offset, -1)
    if timestamp_ms in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return ErrorCode.none, NOTHING  # as Kafka answers where there is no second tier
    try:
        found = await _find_by_time(agent, partition, bounds, timestamp_ms)
        return ErrorCode.none, found if found[0] < bounds.high_watermark else NOTHING
    except CONTROL_FAILURES:
        return ErrorCode.leader_not_available, NOTHING
    except StoreError:
        return ErrorCode.kafka_storage_error, NOTHING
    except InvalidBatch:
        return ErrorCode.corrupt_message, NOTHING


async def _find_by_time(
    agent: "Agent", partition: PartitionView, bounds: PartitionBounds, timestamp_ms: int
) -> tuple[int, int]:
    """The first record with this timestamp or a later one; for MAX_TIMESTAMP, the first with the highest of all.

    An extent may turn out to have none after all: its only one was deleted, or compaction removed it. Then the next
    extent that may is looked at.
    """
    wants_max = timestamp_ms == MAX_TIMESTAMP
    from_offset = bounds.log_start_offset
    looked_again = False
    while True:
        found = await agent.control.find_timestamp(
            FindTimestamp(partition.partition_id, -1 if wants_max else timestamp_ms, from_offset), timeout_s=5.0
        )
        if not found.extents:
            return NOTHING
        extent, stored = found.extents[0], found.objects[0]
        try:
            data = await agent.reader.bytes_of(extent, stored)
        except NotFound:
            # Replaced since the index was read, and the grace has passed: it says something else by now.
            if looked_again:
                raise
            looked_again = True
            continue
        target_ms = extent.timestamp_ms_max if wants_max else timestamp_ms
        at = _first_at(data, extent.base_offset, target_ms, bounds.log_start_offset)
        if at is not None or wants_max:
            return at or NOTHING
        from_offset = extent.end_offset


def _first_at(data: memoryview, base_offset: int, target_ms: int, offset_min: int) -> tuple[int, int] | None:
    for position, header, offset in place_batches(data, base_offset):
        if header.timestamp_ms_highest >= target_ms and header.record_count:
            batch = data[position : position + header.total_bytes]
            for record in decode_batch(batch, bytes_max=BATCH_DECOMPRESSED_BYTES_MAX):
                at = offset + record.offset - header.base_offset
                if record.timestamp_ms >= target_ms and at >= offset_min:
                    return at, record.timestamp_ms
    return None
