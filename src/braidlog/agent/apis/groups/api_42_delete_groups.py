"""DeleteGroups: deletes groups without members, and their offsets."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.control.interface import DeleteGroups

KEY = 42
VERSIONS = range(3)


async def handle(request: Any, context: GroupContext) -> Any:
    group_ids = list(dict.fromkeys(str(group_id) for group_id in request.groups_names))
    try:
        answer = await context.services.control.delete_groups(DeleteGroups(group_ids), timeout_s=GROUP_CALL_TIMEOUT_S)
        codes = answer.error_codes
    except CONTROL_FAILURES as error:
        codes = [group_failure(error)] * len(group_ids)
    return context.answer(
        "DeleteGroupsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                context.answer("DeletableGroupResult", group_id=group_id, error_code=ErrorCode(code))
                async for group_id, code in context.turns.each(zip(group_ids, codes, strict=True))
            ]
        ),
    )
