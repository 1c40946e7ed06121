"""DescribeGroups: describes the state and the members of classic groups."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    GROUP_CALL_TIMEOUT_S,
    NO_THROTTLE,
    group_failure,
    group_operations,
)
from braidlog.control.interface import DescribeGroups, GroupDescription
from braidlog.security.acls import DESCRIBE

KEY = 15
VERSIONS = range(7)

DEAD = "Dead"


async def handle(request: Any, context: GroupContext) -> Any:
    group_ids = list(dict.fromkeys(str(group_id) for group_id in request.groups))
    allowed = [group_id for group_id in group_ids if context.rights.group(DESCRIBE, group_id)]
    denied = [group_id for group_id in group_ids if not context.rights.group(DESCRIBE, group_id)]
    groups = [_failed(group_id, ErrorCode.group_authorization_failed) for group_id in denied]
    try:
        if allowed or not denied:
            answer = await context.services.control.describe_groups(
                DescribeGroups(allowed), timeout_s=GROUP_CALL_TIMEOUT_S
            )
            groups += answer.groups
    except CONTROL_FAILURES as error:
        groups += [_failed(group_id, group_failure(error)) for group_id in allowed]
    told = getattr(request, "include_authorized_operations", False)
    return context.answer(
        "DescribeGroupsResponse",
        throttle_time=NO_THROTTLE,
        groups=await context.turns.map(lambda group: _group(group, told, context), groups),
    )


def _failed(group_id: str, code: ErrorCode) -> GroupDescription:
    return GroupDescription(code, group_id, "", "", "", [])


def _group(group: GroupDescription, operations_told: bool, context: GroupContext) -> Any:
    code, message, state = ErrorCode(group.error_code), None, group.state
    missing = code is ErrorCode.group_id_not_found or (not code and state == DEAD)
    if missing:
        # Before version 6, a group that does not exist is reported as dead, without an error.
        state = DEAD
        code = ErrorCode.group_id_not_found if context.version >= 6 else ErrorCode.none
        message = f"Group {group.group_id} not found."
    return context.answer(
        "DescribedGroup",
        error_code=code,
        error_message=message,
        group_id=group.group_id,
        group_state=state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=tuple(
            context.answer(
                "DescribedGroupMember",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ),
        authorized_operations=group_operations(context.rights, group.group_id, told=operations_told and not code),
    )
