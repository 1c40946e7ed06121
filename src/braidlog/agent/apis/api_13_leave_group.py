"""LeaveGroup: one member by itself, or from version 3 several at once."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.context import RequestContext
from braidlog.control.interface import LeaveAnswer, LeaveGroup, LeavingMember

KEY = 13
VERSIONS = range(6)


async def handle(request: Any, context: RequestContext) -> Any:
    members = _members(request)
    try:
        answer = await context.agent.control.leave_group(
            LeaveGroup(str(request.group_id), members), timeout_s=GROUP_CALL_TIMEOUT_S
        )
    except CONTROL_FAILURES as error:
        answer = LeaveAnswer(group_failure(error), [])
    code = answer.error_code
    if context.version < 3 and not code and answer.member_error_codes:
        # A lone member's error is the answer's.
        code = answer.member_error_codes[0]
    return context.answer(
        "LeaveGroupResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(code),
        members=_results(members, answer, context) if context.version >= 3 else (),
    )


def _members(request: Any) -> list[LeavingMember]:
    if hasattr(request, "member_id"):
        return [LeavingMember(request.member_id, None)]
    return [
        LeavingMember(member.member_id, member.group_instance_id, getattr(member, "reason", None) or "")
        for member in request.members
    ]


def _results(members: list[LeavingMember], answer: LeaveAnswer, context: RequestContext) -> tuple[Any, ...]:
    if answer.error_code:
        return ()
    return tuple(
        context.answer(
            "MemberResponse",
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            error_code=ErrorCode(code),
        )
        for member, code in zip(members, answer.member_error_codes, strict=True)
    )
