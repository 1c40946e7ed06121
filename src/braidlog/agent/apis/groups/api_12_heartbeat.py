"""Heartbeat: shows that a member is alive, and tells it of rebalances."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.control.interface import GroupHeartbeat
from braidlog.security.acls import READ

KEY = 12
VERSIONS = range(5)


async def handle(request: Any, context: GroupContext) -> Any:
    heartbeat = GroupHeartbeat(
        group_id=str(request.group_id),
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    if not context.rights.group(READ, heartbeat.group_id):
        code = ErrorCode.group_authorization_failed
        return context.answer("HeartbeatResponse", throttle_time=NO_THROTTLE, error_code=code)
    try:
        outcome = await context.services.control.heartbeat_group(heartbeat, timeout_s=GROUP_CALL_TIMEOUT_S)
        code = ErrorCode(outcome.error_code)
    except CONTROL_FAILURES as error:
        code = group_failure(error)
    return context.answer("HeartbeatResponse", throttle_time=NO_THROTTLE, error_code=code)
