"""DeleteRecords: deletes everything before an offset."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.records.services import RecordContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, NO_THROTTLE, admin_failure, call_timeout_s
from braidlog.control.interface import DeletedRecords, DeleteRecords
from braidlog.security.acls import DELETE

KEY = 21
VERSIONS = range(3)


async def handle(request: Any, context: RecordContext) -> Any:
    timeout_s = call_timeout_s(request.timeout)
    wanted: dict[str, dict[int, Any]] = {}
    # As in Kafka, a partition that is named repeatedly counts once.
    async for topic in context.turns.each(request.topics):
        wanted.setdefault(topic.name, {}).update((each.partition_index, each) for each in topic.partitions)
    topics: list[Any] = []
    for name, by_index in wanted.items():
        partitions: list[Any] = []
        async for partition in context.turns.each(by_index.values()):
            answer = await _delete(name, partition, timeout_s, context)
            partitions.append(
                context.answer(
                    "DeleteRecordsPartitionResult",
                    partition_index=partition.partition_index,
                    low_watermark=-1 if answer.error_code else answer.log_start_offset,
                    error_code=ErrorCode(answer.error_code),
                )
            )
        topics.append(context.answer("DeleteRecordsTopicResult", name=name, partitions=tuple(partitions)))
    return context.answer("DeleteRecordsResponse", throttle_time=NO_THROTTLE, topics=tuple(topics))


async def _delete(topic_name: str, partition: Any, timeout_s: float, context: RecordContext) -> DeletedRecords:
    view = context.services.view
    if not context.rights.topic(DELETE, topic_name):
        return DeletedRecords(ErrorCode.topic_authorization_failed, -1)
    known = view.partition(topic_name, partition.partition_index)
    if known is None:
        return DeletedRecords(ErrorCode.unknown_topic_or_partition, -1)
    topic = view.topics_by_id[known.topic_id]
    if topic.is_internal:
        return DeletedRecords(ErrorCode.invalid_topic_exception, -1)
    if not topic.settings.records_deletable:
        return DeletedRecords(ErrorCode.policy_violation, -1)
    if partition.offset < -1:
        return DeletedRecords(ErrorCode.offset_out_of_range, -1)
    try:
        return await context.services.control.delete_records(
            DeleteRecords(known.partition_id, partition.offset), timeout_s=timeout_s
        )
    except CONTROL_FAILURES as error:
        return DeletedRecords(admin_failure(error), -1)
