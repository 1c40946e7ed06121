"""OffsetForLeaderEpoch: returns the end of an epoch.

A consumer learns from it whether the log was truncated.

Partitions have no leaders and are never truncated: the epoch is always 0 and ends where the log does.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.records.services import RecordContext
from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, NO_THROTTLE
from braidlog.control.interface import BoundsRequest

KEY = 23
VERSIONS = range(2, 5)

LEADER_EPOCH = 0


async def handle(request: Any, context: RecordContext) -> Any:
    ends = await _end_offsets(request, context)
    return context.answer(
        "OffsetForLeaderEpochResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                context.answer(
                    "OffsetForLeaderTopicResult",
                    topic=topic.topic,
                    partitions=tuple(
                        [
                            _partition(topic.topic, part, ends, context)
                            async for part in context.turns.each(topic.partitions)
                        ]
                    ),
                )
                for topic in request.topics
            ]
        ),
    )


async def _end_offsets(request: Any, context: RecordContext) -> dict[int, int] | None:
    """The high watermarks by partition id; None without the control plane's answer.

    They do not come from the view: an end that lags behind what a consumer has read elsewhere would look like lost
    records.
    """
    view = context.services.view
    partition_ids = [
        known.partition_id
        for topic in request.topics
        async for part in context.turns.each(topic.partitions)
        if (known := view.partition(topic.topic, part.partition)) is not None
    ]
    if not partition_ids:
        return {}
    try:
        answer = await context.services.control.current_bounds(
            BoundsRequest(partition_ids), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX
        )
    except CONTROL_FAILURES:
        return None
    return {bounds.partition_id: bounds.high_watermark for bounds in answer.bounds}


def _partition(topic_name: str, part: Any, ends: dict[int, int] | None, context: RecordContext) -> Any:
    known = context.services.view.partition(topic_name, part.partition)
    code, epoch, end_offset = ErrorCode.none, -1, -1
    if ends is None:
        code = ErrorCode.leader_not_available
    elif known is None or known.partition_id not in ends:
        code = ErrorCode.unknown_topic_or_partition
    elif part.current_leader_epoch > LEADER_EPOCH:
        code = ErrorCode.unknown_leader_epoch
    elif part.leader_epoch == LEADER_EPOCH:
        epoch, end_offset = LEADER_EPOCH, ends[known.partition_id]
    # No other epoch has ever existed: epoch and end stay -1, without an error.
    return context.answer(
        "EpochEndOffset", error_code=code, partition=part.partition, leader_epoch=epoch, end_offset=end_offset
    )
