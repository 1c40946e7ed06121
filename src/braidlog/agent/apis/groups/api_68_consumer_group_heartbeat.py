"""ConsumerGroupHeartbeat: members join, report, learn their partitions, and leave."""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    TOPIC_DENIED,
    duration_of,
    error_text,
    group_failure,
    milliseconds,
    topic_id_bytes,
)
from braidlog.control.interface import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from braidlog.security.acls import DESCRIBE, READ

KEY = 68
VERSIONS = range(2)


async def handle(request: Any, context: GroupContext) -> Any:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    heartbeat = ConsumerHeartbeat(
        group_id=str(request.group_id),
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topic_names=None if names is None else [str(name) for name in names],
        topic_regex=getattr(request, "subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        owned=None
        if owned is None
        else [
            (topic_id_bytes(topic.topic_id), [int(index) for index in topic.partitions])
            async for topic in context.turns.each(owned)
        ],
        client_id=context.client_id,
        client_host=context.client_host,
        member_id_required=context.version >= 1,
    )
    try:
        answer = _denial(heartbeat, context) or await context.services.control.heartbeat_consumer(
            heartbeat, timeout_s=GROUP_CALL_TIMEOUT_S
        )
    except CONTROL_FAILURES as error:
        answer = ConsumerHeartbeatAnswer(group_failure(error), str(error))
    return context.answer(
        "ConsumerGroupHeartbeatResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(answer.error_code),
        error_message=error_text(answer.error_code, answer.error_message),
        member_id=answer.member_id or None,
        member_epoch=answer.member_epoch,
        heartbeat_interval=duration_of(answer.heartbeat_interval_ms),
        assignment=None
        if answer.assigned is None
        else context.answer(
            "Assignment",
            topic_partitions=tuple(
                context.answer("TopicPartitions", topic_id=UUID(bytes=topic_id), partitions=tuple(indexes))
                for topic_id, indexes in answer.assigned
                if not _is_hidden(topic_id, context)
            ),
        ),
    )


def _is_hidden(topic_id: bytes, context: GroupContext) -> bool:
    """Whether there is such a topic and the client may not see it.

    A pattern may match such topics.
    """
    topic = context.services.view.topics_by_id.get(topic_id)
    return topic is not None and not context.rights.topic(DESCRIBE, topic.info.name)


def _denial(heartbeat: ConsumerHeartbeat, context: GroupContext) -> ConsumerHeartbeatAnswer | None:
    rights = context.rights
    if not rights.group(READ, heartbeat.group_id):
        return ConsumerHeartbeatAnswer(ErrorCode.group_authorization_failed, "Group authorization failed.")
    if not all(rights.topic(DESCRIBE, name) for name in heartbeat.topic_names or ()):
        return ConsumerHeartbeatAnswer(ErrorCode.topic_authorization_failed, TOPIC_DENIED)
    return None
