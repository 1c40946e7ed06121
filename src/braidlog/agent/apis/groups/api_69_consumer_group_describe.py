"""ConsumerGroupDescribe: describes groups of the new protocol.

The coordinator assigns the partitions of these groups.
"""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    error_text,
    group_failure,
    group_operations,
)
from braidlog.control.interface import ConsumerGroupDescription, ConsumerMemberDescription, DescribeConsumerGroups
from braidlog.security.acls import DESCRIBE

KEY = 69
VERSIONS = range(2)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


async def handle(request: Any, context: GroupContext) -> Any:
    group_ids = list(dict.fromkeys(str(group_id) for group_id in request.group_ids))
    rights = context.rights
    asked = [group_id for group_id in group_ids if group_id and rights.group(DESCRIBE, group_id)]
    try:
        answer = await context.services.control.describe_consumer_groups(
            DescribeConsumerGroups(asked), timeout_s=GROUP_CALL_TIMEOUT_S
        )
        found = {group.group_id: group for group in answer.groups}
    except CONTROL_FAILURES as error:
        found = {group_id: ConsumerGroupDescription(group_failure(error), group_id, str(error)) for group_id in asked}

    def denied(group_id: str) -> ConsumerGroupDescription:
        if not group_id:
            return ConsumerGroupDescription(ErrorCode.invalid_group_id, "", "A group has a name.")
        return ConsumerGroupDescription(ErrorCode.group_authorization_failed, group_id, "Group authorization failed.")

    return context.answer(
        "ConsumerGroupDescribeResponse",
        throttle_time=NO_THROTTLE,
        groups=await context.turns.map(
            lambda group_id: _group(
                found.get(group_id) or denied(group_id), request.include_authorized_operations, context
            ),
            group_ids,
        ),
    )


def _hides_topics(group: ConsumerGroupDescription, context: GroupContext) -> bool:
    """Whether a member has a topic that the client may not see."""
    topics, rights = context.services.view.topics_by_id, context.rights
    if not rights.is_limited:
        return False
    ids = {topic_id for member in group.members for topic_id, _ in (*member.assigned, *member.target)}
    names = {name for member in group.members for name in member.topic_names}
    names |= {topics[topic_id].info.name for topic_id in ids if topic_id in topics}
    return not all(rights.topic(DESCRIBE, name) for name in names)


def _group(group: ConsumerGroupDescription, operations_told: bool, context: GroupContext) -> Any:
    if _hides_topics(group, context):
        message = "The group has described topic(s) that the client is not authorized to describe."
        group = ConsumerGroupDescription(ErrorCode.topic_authorization_failed, group.group_id, message)
    return context.answer(
        "DescribedGroup",
        error_code=ErrorCode(group.error_code),
        error_message=error_text(group.error_code, group.error_message),
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(member, context) for member in group.members),
        authorized_operations=group_operations(
            context.rights, group.group_id, told=operations_told and not group.error_code
        ),
    )


def _member(member: ConsumerMemberDescription, context: GroupContext) -> Any:
    return context.answer(
        "Member",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(member.topic_names),
        subscribed_topic_regex=member.topic_regex or None,
        assignment=_assignment(member.assigned, context),
        target_assignment=_assignment(member.target, context),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: list[tuple[bytes, list[int]]], context: GroupContext) -> Any:
    """An assignment without topics that this agent does not know.

    Clients need a name for each topic.
    """
    topics = context.services.view.topics_by_id
    return context.answer(
        "Assignment",
        topic_partitions=tuple(
            context.answer(
                "TopicPartitions",
                topic_id=UUID(bytes=topic_id),
                topic_name=topics[topic_id].info.name,
                partitions=tuple(indexes),
            )
            for topic_id, indexes in partitions
            if topic_id in topics
        ),
    )
