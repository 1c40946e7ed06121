"""OffsetDelete: deletes some of a group's offsets."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.control.interface import DeleteOffsets, DeleteOffsetsAnswer
from braidlog.security.acls import DELETE, READ

KEY = 47
VERSIONS = range(1)


async def handle(request: Any, context: GroupContext) -> Any:
    view, rights = context.services.view, context.rights
    if not rights.group(DELETE, str(request.group_id)):
        code = ErrorCode.group_authorization_failed
        return context.answer("OffsetDeleteResponse", error_code=code, throttle_time=NO_THROTTLE, topics=())
    known = {
        (topic.name, partition.partition_index): (found.topic_id, found.index)
        async for topic in context.turns.each(request.topics)
        async for partition in context.turns.each(topic.partitions)
        if rights.topic(READ, topic.name)
        and (found := view.partition(topic.name, partition.partition_index)) is not None
    }
    # Asked even without partitions: the answer also says whether the group exists.
    try:
        answer = await context.services.control.delete_offsets(
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
        else tuple([await _topic(topic, codes, context) async for topic in context.turns.each(request.topics)]),
    )


async def _topic(topic: Any, codes: dict[tuple[str, int], int], context: GroupContext) -> Any:
    unknown = ErrorCode.unknown_topic_or_partition
    if not context.rights.topic(READ, topic.name):
        unknown = ErrorCode.topic_authorization_failed

    def result(partition: Any) -> Any:
        code = codes.get((topic.name, partition.partition_index), unknown)
        return context.answer(
            "OffsetDeleteResponsePartition", partition_index=partition.partition_index, error_code=ErrorCode(code)
        )

    partitions = await context.turns.map(result, topic.partitions)
    return context.answer("OffsetDeleteResponseTopic", name=topic.name, partitions=partitions)
