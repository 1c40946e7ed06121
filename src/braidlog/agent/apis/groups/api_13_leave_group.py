"""LeaveGroup: removes one member, or from version 3 several at once."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.control.interface import LeaveAnswer, LeaveGroup, LeavingMember
from braidlog.security.acls import READ

KEY = 13
VERSIONS = range(6)


async def handle(request: Any, context: GroupContext) -> Any:
    members = await _members(request, context)
    if not context.rights.group(READ, str(request.group_id)):
        denied = ErrorCode.group_authorization_failed
        return context.answer("LeaveGroupResponse", throttle_time=NO_THROTTLE, error_code=denied, members=())
    try:
        answer = await context.services.control.leave_group(
            LeaveGroup(str(request.group_id), members), timeout_s=GROUP_CALL_TIMEOUT_S
        )
    except CONTROL_FAILURES as error:
        answer = LeaveAnswer(group_failure(error), [])
    code = answer.error_code
    if context.version < 3 and not code and answer.member_error_codes:
        # A single member's error is that of the whole answer.
        code = answer.member_error_codes[0]
    return context.answer(
        "LeaveGroupResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(code),
        members=await _results(members, answer, context) if context.version >= 3 else (),
    )


async def _members(request: Any, context: GroupContext) -> list[LeavingMember]:
    if hasattr(request, "member_id"):
        return [LeavingMember(request.member_id, None)]
    return [
        LeavingMember(member.member_id, member.group_instance_id, getattr(member, "reason", None) or "")
        async for member in context.turns.each(request.members)
    ]


async def _results(members: list[LeavingMember], answer: LeaveAnswer, context: GroupContext) -> tuple[Any, ...]:
    if answer.error_code:
        return ()
    return tuple(
        [
            context.answer(
                "MemberResponse",
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=ErrorCode(code),
            )
            async for member, code in context.turns.each(zip(members, answer.member_error_codes, strict=True))
        ]
    )
