"""OffsetCommit: by topic name, from version 10 by topic id."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    group_failure,
    topic_of,
    unknown_topic_code,
)
from braidlog.agent.context import RequestContext
from braidlog.control.interface import CommitOffsets, OffsetToCommit

KEY = 8
VERSIONS = range(2, 11)


async def handle(request: Any, context: RequestContext) -> Any:
    view = context.agent.view
    codes: dict[tuple[int, int], int] = {}  # by place in the request: topic, partition
    offsets: dict[tuple[int, int], OffsetToCommit] = {}
    for i, topic in enumerate(request.topics):
        known = topic_of(view, topic)
        for j, partition in enumerate(topic.partitions):
            if known is None:
                codes[i, j] = unknown_topic_code(topic)
            elif not 0 <= partition.partition_index < len(known.partitions):
                codes[i, j] = ErrorCode.unknown_topic_or_partition
            else:
                offsets[i, j] = OffsetToCommit(
                    topic_id=known.info.topic_id,
                    partition=partition.partition_index,
                    offset=partition.committed_offset,
                    leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                    metadata=partition.committed_metadata or "",
                )
    if offsets:
        codes |= zip(offsets, await _commit(request, list(offsets.values()), context), strict=True)
    return context.answer(
        "OffsetCommitResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(
            context.answer(
                "OffsetCommitResponseTopic",
                name=getattr(topic, "name", None),
                topic_id=getattr(topic, "topic_id", None),
                partitions=tuple(
                    context.answer(
                        "OffsetCommitResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=ErrorCode(codes[i, j]),
                    )
                    for j, partition in enumerate(topic.partitions)
                ),
            )
            for i, topic in enumerate(request.topics)
        ),
    )


async def _commit(request: Any, offsets: list[OffsetToCommit], context: RequestContext) -> list[int]:
    commit = CommitOffsets(
        group_id=str(request.group_id),
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=offsets,
        knows_member_epochs=context.version >= 9,
    )
    try:
        answer = await context.agent.control.commit_offsets(commit, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return [group_failure(error)] * len(offsets)
    return answer.error_codes
