"""AlterPartitionReassignments: replicas are all the same here, so a valid move is done as soon as it is asked for."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext

KEY = 45
VERSIONS = range(2)


async def handle(request: Any, context: RequestContext) -> Any:
    return context.answer(
        "AlterPartitionReassignmentsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            context.answer(
                "ReassignableTopicResponse",
                name=topic.name,
                partitions=tuple(_partition(topic.name, partition, context) for partition in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def _partition(topic: str, partition: Any, context: RequestContext) -> Any:
    code, message = _problem(topic, partition, context)
    return context.answer(
        "ReassignablePartitionResponse",
        partition_index=partition.partition_index,
        error_code=code,
        error_message=message,
    )


def _problem(topic: str, partition: Any, context: RequestContext) -> tuple[ErrorCode, str | None]:
    view, replicas = context.agent.view, partition.replicas
    if view.partition(topic, partition.partition_index) is None:
        return ErrorCode.unknown_topic_or_partition, f"There is no partition {topic}-{partition.partition_index}."
    if replicas is None:  # that is, cancel what is under way
        return ErrorCode.no_reassignment_in_progress, "No partition reassignment in progress."
    if not replicas:
        return ErrorCode.invalid_replica_assignment, "The manual partition assignment includes an empty replica list."
    if len(set(replicas)) < len(replicas):
        return ErrorCode.invalid_replica_assignment, "The manual partition assignment includes a broker twice."
    unknown = sorted(set(replicas) - view.agents.keys())
    if unknown:
        text = ", ".join(map(str, unknown))
        return (
            ErrorCode.invalid_replica_assignment,
            f"The manual partition assignment includes unknown brokers: {text}.",
        )
    return ErrorCode.none, None
