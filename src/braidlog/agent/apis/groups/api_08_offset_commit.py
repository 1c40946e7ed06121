"""OffsetCommit: commits a group's offsets.

Topics have names, and ids from version 10 on.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.offsets_to_commit import offsets_to_commit
from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    group_failure,
)
from braidlog.control.interface import CommitOffsets, OffsetToCommit
from braidlog.security.acls import READ

KEY = 8
VERSIONS = range(2, 11)


async def handle(request: Any, context: GroupContext) -> Any:
    offsets, codes = await offsets_to_commit(request.topics, context.services.view, context.turns, context.rights)
    if not context.rights.group(READ, str(request.group_id)):
        codes |= dict.fromkeys([*offsets, *codes], ErrorCode.group_authorization_failed)
    elif offsets:
        codes |= zip(offsets, await _commit(request, list(offsets.values()), context), strict=True)
    return context.answer(
        "OffsetCommitResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                context.answer(
                    "OffsetCommitResponseTopic",
                    name=getattr(topic, "name", None),
                    topic_id=getattr(topic, "topic_id", None),
                    partitions=tuple(
                        [
                            context.answer(
                                "OffsetCommitResponsePartition",
                                partition_index=partition.partition_index,
                                error_code=ErrorCode(codes[i, j]),
                            )
                            async for j, partition in context.turns.each(enumerate(topic.partitions))
                        ]
                    ),
                )
                for i, topic in enumerate(request.topics)
            ]
        ),
    )


async def _commit(request: Any, offsets: list[OffsetToCommit], context: GroupContext) -> list[int]:
    commit = CommitOffsets(
        group_id=str(request.group_id),
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=offsets,
        knows_member_epochs=context.version >= 9,
    )
    try:
        answer = await context.services.control.commit_offsets(commit, timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return [group_failure(error)] * len(offsets)
    return answer.error_codes
