"""ListGroups: lists the groups that this agent coordinates.

Clients ask every agent.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.groups.services import GroupContext
from braidlog.agent.apis.shared import CONTROL_FAILURES, GROUP_CALL_TIMEOUT_S, NO_THROTTLE, group_failure
from braidlog.agent.cluster.placement import coordinates
from braidlog.control.interface import GroupListing, ListGroups
from braidlog.security.acls import DESCRIBE

KEY = 16
VERSIONS = range(6)


async def handle(request: Any, context: GroupContext) -> Any:
    services = context.services
    code, groups = ErrorCode.none, list[GroupListing]()
    query = ListGroups(list(getattr(request, "states_filter", ())), list(getattr(request, "types_filter", ())))
    try:
        groups = (await services.control.list_groups(query, timeout_s=GROUP_CALL_TIMEOUT_S)).groups
    except CONTROL_FAILURES as error:
        code = group_failure(error)
    rights = context.rights
    sees_all = rights.cluster(DESCRIBE)
    return context.answer(
        "ListGroupsResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        groups=tuple(
            context.answer(
                "ListedGroup",
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in groups
            if (sees_all or rights.group(DESCRIBE, group.group_id))
            and coordinates(services.session.node_id, group.group_id, services.view)
        ),
    )
