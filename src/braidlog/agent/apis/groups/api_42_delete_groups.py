"""DeleteGroups: deletes groups without members, and their offsets."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.control.interface import DeleteGroups
from braidlog.security.acls import DELETE

KEY = 42
VERSIONS = range(3)


async def handle(request: Any, context: GroupContext) -> Any:
    group_ids = list(dict.fromkeys(str(group_id) for group_id in request.groups_names))
    allowed = [group_id for group_id in group_ids if context.rights.group(DELETE, group_id)]
    codes = dict.fromkeys(group_ids, int(ErrorCode.group_authorization_failed))
    if allowed:
        codes |= zip(allowed, await _delete(allowed, context), strict=True)
    return context.answer(
        "DeleteGroupsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                context.answer("DeletableGroupResult", group_id=group_id, error_code=ErrorCode(code))
                async for group_id, code in context.turns.each(codes.items())
            ]
        ),
    )


async def _delete(group_ids: list[str], context: GroupContext) -> list[int]:
    try:
        answer = await context.services.control.delete_groups(DeleteGroups(group_ids), timeout_s=GROUP_CALL_TIMEOUT_S)
    except CONTROL_FAILURES as error:
        return [group_failure(error)] * len(group_ids)
    return answer.error_codes
