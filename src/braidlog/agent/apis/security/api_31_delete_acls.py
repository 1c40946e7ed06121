"""DeleteAcls: deletes the ACLs that match filters."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.security.acl_requests import Refusal, read_filter, refusal
from braidlog.agent.apis.security.services import SecurityContext
from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CONTROL_FAILURES,
    NO_THROTTLE,
    VIEW_WAIT_S_MAX,
    admin_failure,
    wait_until_visible,
)
from braidlog.control.interface import DeleteAcls
from braidlog.security.acls import ALTER, Acl, AclFilter

KEY = 31
VERSIONS = range(1, 4)


async def handle(request: Any, context: SecurityContext) -> Any:
    refused = refusal(ALTER, context)
    filters = await context.turns.map(read_filter, request.filters)
    results: list[list[Acl] | Refusal]
    if refused is not None:
        results = [refused] * len(filters)
    else:
        valid = [each for each in filters if isinstance(each, AclFilter)]
        deleted = iter(await _delete(valid, context))
        results = [next(deleted) if isinstance(each, AclFilter) else each for each in filters]
    return context.answer(
        "DeleteAclsResponse",
        throttle_time=NO_THROTTLE,
        filter_results=tuple([await _result(each, context) async for each in context.turns.each(results)]),
    )


async def _delete(filters: list[AclFilter], context: SecurityContext) -> list[list[Acl] | Refusal]:
    if not filters:
        return []
    try:
        answer = await context.services.control.delete_acls(DeleteAcls(filters), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)
    except CONTROL_FAILURES as error:
        return [(admin_failure(error), str(error))] * len(filters)
    gone = {acl for acls in answer.deleted for acl in acls}
    view = context.services.view
    await wait_until_visible(view, lambda: gone.isdisjoint(view.acls.acls), VIEW_WAIT_S_MAX)
    return [*answer.deleted]


async def _result(result: list[Acl] | Refusal, context: SecurityContext) -> Any:
    code, message, acls = ErrorCode.none, None, list[Acl]()
    if isinstance(result, tuple):
        code, message = result
    else:
        acls = result
    return context.answer(
        "DeleteAclsFilterResult",
        error_code=code,
        error_message=message,
        matching_acls=await context.turns.map(lambda acl: _deleted(acl, context), acls),
    )


def _deleted(acl: Acl, context: SecurityContext) -> Any:
    return context.answer(
        "DeleteAclsMatchingAcl",
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
