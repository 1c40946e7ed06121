"""AlterPartitionReassignments: does valid moves at once: agents hold no data."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CLUSTER_DENIED,
    CONTROL_FAILURES,
    NO_THROTTLE,
    admin_failure,
    call_timeout_s,
    error_text,
    view_wait_s,
    wait_until_visible,
)
from braidlog.agent.apis.topics.assignments import reason_against_assignments
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import AssignReplicas, Outcome, ReplicaAssignment
from braidlog.security.acls import ALTER

KEY = 45
VERSIONS = range(2)


async def handle(request: Any, context: TopicContext) -> Any:
    view = context.services.view
    if not context.rights.cluster(ALTER):
        return context.answer(
            "AlterPartitionReassignmentsResponse",
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.cluster_authorization_failed,
            error_message=CLUSTER_DENIED,
            responses=(),
        )
    problems: dict[tuple[str, int], tuple[ErrorCode, str] | None] = {}
    moves: list[ReplicaAssignment] = []
    async for topic in context.turns.each(request.topics):
        async for partition in context.turns.each(topic.partitions):
            problem = _problem(topic.name, partition, view)
            problems[topic.name, partition.partition_index] = problem
            if problem is None:
                moves.append(_assignment(topic.name, partition, view))
    outcome = await _assign(moves, request, context) if moves else Outcome(0)

    def answer(topic: Any, partition: Any) -> Any:
        problem = problems[topic.name, partition.partition_index]
        code, message = problem or (ErrorCode(outcome.error_code), outcome.error_message)
        return context.answer(
            "ReassignablePartitionResponse",
            partition_index=partition.partition_index,
            error_code=code,
            error_message=error_text(code, message),
        )

    return context.answer(
        "AlterPartitionReassignmentsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            [
                context.answer(
                    "ReassignableTopicResponse",
                    name=topic.name,
                    partitions=tuple(
                        [answer(topic, partition) async for partition in context.turns.each(topic.partitions)]
                    ),
                )
                async for topic in context.turns.each(request.topics)
            ]
        ),
    )


def _problem(topic: str, partition: Any, view: ClusterView) -> tuple[ErrorCode, str] | None:
    if view.partition(topic, partition.partition_index) is None:
        return ErrorCode.unknown_topic_or_partition, f"There is no partition {topic}-{partition.partition_index}."
    if partition.replicas is None:  # this asks to cancel a reassignment
        return ErrorCode.no_reassignment_in_progress, "No partition reassignment in progress."
    reason = reason_against_assignments([partition.replicas], view.agents)
    return (ErrorCode.invalid_replica_assignment, reason) if reason is not None else None


def _assignment(topic: str, partition: Any, view: ClusterView) -> ReplicaAssignment:
    topic_id = view.topics_by_name[topic].info.topic_id
    return ReplicaAssignment(topic_id, partition.partition_index, [int(node_id) for node_id in partition.replicas])


async def _assign(moves: list[ReplicaAssignment], request: Any, context: TopicContext) -> Outcome:
    view = context.services.view
    try:
        outcome = await context.services.control.assign_replicas(
            AssignReplicas(moves), timeout_s=call_timeout_s(request.timeout)
        )
    except CONTROL_FAILURES as error:
        return Outcome(admin_failure(error), str(error))

    def visible(move: ReplicaAssignment) -> bool:
        topic = view.topics_by_id.get(move.topic_id)
        return topic is None or topic.info.assignments.get(move.partition) == move.replicas

    if not outcome.error_code:
        await wait_until_visible(view, lambda: all(map(visible, moves)), view_wait_s(request.timeout))
    return outcome
