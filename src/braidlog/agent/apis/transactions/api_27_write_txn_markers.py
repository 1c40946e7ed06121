"""WriteTxnMarkers: aborts a hanging transaction for an administrator.

Kafka writes a marker into the partitions that are named. Here a transaction ends the same in all its partitions, so the
whole of it is aborted, and its producer fenced off. Coordinators never send this: theirs is the control plane.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES
from braidlog.agent.apis.transactions.services import TransactionContext
from braidlog.control.interface import AbortMarked
from braidlog.security.acls import ALTER, CLUSTER_ACTION

KEY = 27
VERSIONS = range(1, 3)


async def handle(request: Any, context: TransactionContext) -> Any:
    markers: list[Any] = []
    for marker in request.markers:
        topics: list[Any] = []
        for topic in marker.topics:
            partitions: list[Any] = []
            async for index in context.turns.each(topic.partition_indexes):
                code = await _end(topic.name, index, marker, context)
                partitions.append(
                    context.answer("WritableTxnMarkerPartitionResult", partition_index=index, error_code=code)
                )
            topics.append(context.answer("WritableTxnMarkerTopicResult", name=topic.name, partitions=tuple(partitions)))
        markers.append(context.answer("WritableTxnMarkerResult", producer_id=marker.producer_id, topics=tuple(topics)))
    return context.answer("WriteTxnMarkersResponse", markers=tuple(markers))


async def _end(topic_name: str, index: int, marker: Any, context: TransactionContext) -> ErrorCode:
    rights = context.rights
    if not rights.cluster(ALTER) and not rights.cluster(CLUSTER_ACTION):
        return ErrorCode.cluster_authorization_failed
    partition = context.services.view.partition(topic_name, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    if marker.transaction_result:
        # Only its producer may commit a transaction: some of its records might still be on their way.
        return ErrorCode.invalid_request
    abort = AbortMarked(partition.partition_id, marker.producer_id, marker.producer_epoch)
    try:
        outcome = await context.services.control.abort_marked(abort, timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)
    except CONTROL_FAILURES:
        return ErrorCode.not_leader_or_follower
    return ErrorCode(outcome.error_code)
