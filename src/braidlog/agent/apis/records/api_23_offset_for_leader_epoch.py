"""OffsetForLeaderEpoch: returns the end of an epoch.

A consumer learns from it whether the log was truncated.

Partitions have no leaders. A restore of the metadata begins an epoch; without one, epoch 0 ends where the log does.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.records.services import RecordContext
from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, NO_THROTTLE
from braidlog.agent.read_path.partition_answers import epoch_error
from braidlog.control.interface import BoundsRequest, PartitionBounds
from braidlog.records.leader_epochs import current_epoch, end_of_epoch
from braidlog.security.acls import DESCRIBE

KEY = 23
VERSIONS = range(2, 5)


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


async def _end_offsets(request: Any, context: RecordContext) -> dict[int, PartitionBounds] | None:
    """The bounds by partition id; None without the control plane's answer.

    They do not come from the view: an end that lags behind what a consumer has read elsewhere would look like lost
    records.
    """
    view, rights = context.services.view, context.rights
    partition_ids = [
        known.partition_id
        for topic in request.topics
        async for part in context.turns.each(topic.partitions)
        if rights.topic(DESCRIBE, topic.topic) and (known := view.partition(topic.topic, part.partition)) is not None
    ]
    if not partition_ids:
        return {}
    try:
        answer = await context.services.control.current_bounds(
            BoundsRequest(partition_ids), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX
        )
    except CONTROL_FAILURES:
        return None
    return {bounds.partition_id: bounds for bounds in answer.bounds}


def _partition(topic_name: str, part: Any, ends: dict[int, PartitionBounds] | None, context: RecordContext) -> Any:
    known = context.services.view.partition(topic_name, part.partition)
    code, epoch, end_offset = ErrorCode.none, -1, -1
    if not context.rights.topic(DESCRIBE, topic_name):
        code = ErrorCode.topic_authorization_failed
    elif ends is None:
        code = ErrorCode.leader_not_available
    elif known is None or known.partition_id not in ends:
        code = ErrorCode.unknown_topic_or_partition
    else:
        bounds = ends[known.partition_id]
        wrong = epoch_error(part.current_leader_epoch, current_epoch(bounds.leader_epochs))
        if wrong is not None:
            code = wrong
        else:
            epoch, end_offset = end_of_epoch(bounds.leader_epochs, part.leader_epoch, bounds.high_watermark)
    return context.answer(
        "EpochEndOffset", error_code=code, partition=part.partition, leader_epoch=epoch, end_offset=end_offset
    )
