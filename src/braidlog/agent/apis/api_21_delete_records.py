"""DeleteRecords: everything before an offset goes."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CONTROL_FAILURES, NO_THROTTLE, admin_failure, call_timeout_s
from braidlog.agent.context import RequestContext
from braidlog.control.interface import DeletedRecords, DeleteRecords

KEY = 21
VERSIONS = range(3)


async def handle(request: Any, context: RequestContext) -> Any:
    timeout_s = call_timeout_s(request.timeout)
    topics: list[Any] = []
    for topic in request.topics:
        partitions: list[Any] = []
        for partition in topic.partitions:
            answer = await _delete(topic.name, partition, timeout_s, context)
            partitions.append(
                context.answer(
                    "DeleteRecordsPartitionResult",
                    partition_index=partition.partition_index,
                    low_watermark=-1 if answer.error_code else answer.log_start_offset,
                    error_code=ErrorCode(answer.error_code),
                )
            )
        topics.append(context.answer("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(partitions)))
    return context.answer("DeleteRecordsResponse", throttle_time=NO_THROTTLE, topics=tuple(topics))


async def _delete(topic_name: str, partition: Any, timeout_s: float, context: RequestContext) -> DeletedRecords:
    view = context.agent.view
    known = view.partition(topic_name, partition.partition_index)
    if known is None:
        return DeletedRecords(ErrorCode.unknown_topic_or_partition, -1)
    if not view.topics_by_id[known.topic_id].settings.records_deletable:
        return DeletedRecords(ErrorCode.policy_violation, -1)
    if partition.offset < -1:
        return DeletedRecords(ErrorCode.offset_out_of_range, -1)
    try:
        return await context.agent.control.delete_records(
            DeleteRecords(known.partition_id, partition.offset), timeout_s=timeout_s
        )
    except CONTROL_FAILURES as error:
        return DeletedRecords(admin_failure(error), -1)
