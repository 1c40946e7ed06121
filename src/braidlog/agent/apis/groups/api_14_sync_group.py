"""SyncGroup: is answered when the group's leader has sent the assignment."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_WAIT_MARGIN_S, NO_THROTTLE, group_failure
from braidlog.control.interface import SyncAnswer, SyncAssignment, SyncGroup
from braidlog.security.acls import READ

KEY = 14
VERSIONS = range(6)

SYNC_WAIT_S_MAX = 1800.0
"""The rebalance timeout ends the wait, but the request does not have it. This is above any that is in use."""


async def handle(request: Any, context: GroupContext) -> Any:
    sync = SyncGroup(
        group_id=str(request.group_id),
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments=[SyncAssignment(item.member_id, item.assignment) for item in request.assignments],
    )
    if not context.rights.group(READ, sync.group_id):
        return _answer(SyncAnswer(ErrorCode.group_authorization_failed, None, None, b""), context)
    try:
        answer = await context.services.control.sync_group(sync, timeout_s=SYNC_WAIT_S_MAX + GROUP_WAIT_MARGIN_S)
    except CONTROL_FAILURES as error:
        answer = SyncAnswer(group_failure(error), None, None, b"")
    return _answer(answer, context)


def _answer(answer: SyncAnswer, context: GroupContext) -> Any:
    return context.answer(
        "SyncGroupResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(answer.error_code),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
