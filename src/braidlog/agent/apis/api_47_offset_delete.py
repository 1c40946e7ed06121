"""OffsetDelete: a group forgets some of its offsets."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.context import RequestContext
from braidlog.control.interface import DeleteOffsets, DeleteOffsetsAnswer

KEY = 47
VERSIONS = range(1)


async def handle(request: Any, context: RequestContext) -> Any:
    view = context.agent.view
    known = {
        (topic.name, partition.partition_index): (found.topic_id, found.index)
        for topic in request.topics
        for partition in topic.partitions
        if (found := view.partition(topic.name, partition.partition_index)) is not None
    }
    # Asked even for nothing: the answer also says whether there is such a group.
    try:
        answer = await context.agent.control.delete_offsets(
            DeleteOffsets(str(request.group_id), list(known.values())), timeout_s=GROUP_CALL_TIMEOUT_S
        )
    except CONTROL_FAILURES as error:
        answer = DeleteOffsetsAnswer(group_failure(error), [])
    codes = {} if answer.error_code else dict(zip(known, answer.error_codes, strict=True))
    return context.answer(
        "OffsetDeleteResponse",
        error_code=ErrorCode(answer.error_code),
        throttle_time=NO_THROTTLE,
        topics=()
        if answer.error_code
        else tuple(
            context.answer(
                "OffsetDeleteResponseTopic",
                name=topic.name,
                partitions=tuple(
                    context.answer(
                        "OffsetDeleteResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=ErrorCode(
                            codes.get((topic.name, partition.partition_index), ErrorCode.unknown_topic_or_partition)
                        ),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
