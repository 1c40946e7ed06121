"""DescribeAcls: lists the ACLs that match a filter."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.security.acl_requests import read_filter, refusal
from braidlog.agent.apis.security.services import SecurityContext
from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.security.acls import DESCRIBE, Acl, AclFilter

KEY = 29
VERSIONS = range(1, 4)


async def handle(request: Any, context: SecurityContext) -> Any:
    refused = refusal(DESCRIBE, context)
    wanted = read_filter(request)
    if refused is None and not isinstance(wanted, AclFilter):
        refused = wanted
    code, message = refused or (ErrorCode.none, None)
    found: list[Acl] = []
    if refused is None and isinstance(wanted, AclFilter):
        found = context.services.view.acls.find(wanted)
    by_resource: dict[tuple[int, str, int], list[Acl]] = {}
    async for acl in context.turns.each(found):
        by_resource.setdefault((acl.resource_type, acl.name, acl.pattern_type), []).append(acl)
    return context.answer(
        "DescribeAclsResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        resources=tuple(
            [
                context.answer(
                    "DescribeAclsResource",
                    resource_type=resource_type,
                    resource_name=name,
                    pattern_type=pattern_type,
                    acls=await context.turns.map(lambda acl: _description(acl, context), acls),
                )
                for (resource_type, name, pattern_type), acls in by_resource.items()
            ]
        ),
    )


def _description(acl: Acl, context: SecurityContext) -> Any:
    return context.answer(
        "AclDescription",
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
