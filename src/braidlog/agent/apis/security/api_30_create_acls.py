"""CreateAcls: adds ACLs."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.security.acl_requests import refusal
from braidlog.agent.apis.security.services import SecurityContext
from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CONTROL_FAILURES,
    NO_THROTTLE,
    VIEW_WAIT_S_MAX,
    admin_failure,
    error_text,
    wait_until_visible,
)
from braidlog.control.interface import CreateAcls, Outcome
from braidlog.security.acls import ALTER, Acl

KEY = 30
VERSIONS = range(1, 4)


async def handle(request: Any, context: SecurityContext) -> Any:
    acls = await context.turns.map(_acl, request.creations)
    refused = refusal(ALTER, context)
    outcomes = [Outcome(*refused)] * len(acls) if refused is not None else await _create(list(acls), context)
    return context.answer(
        "CreateAclsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                context.answer(
                    "AclCreationResult",
                    error_code=ErrorCode(outcome.error_code),
                    error_message=error_text(outcome.error_code, outcome.error_message),
                )
                async for outcome in context.turns.each(outcomes)
            ]
        ),
    )


def _acl(creation: Any) -> Acl:
    return Acl(
        int(creation.resource_type),
        creation.resource_name,
        int(creation.resource_pattern_type),
        creation.principal,
        creation.host,
        int(creation.operation),
        int(creation.permission_type),
    )


async def _create(acls: list[Acl], context: SecurityContext) -> list[Outcome]:
    if not acls:
        return []
    try:
        answer = await context.services.control.create_acls(CreateAcls(acls), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)
    except CONTROL_FAILURES as error:
        return [Outcome(admin_failure(error), str(error))] * len(acls)
    made = {acl for acl, outcome in zip(acls, answer.outcomes, strict=True) if not outcome.error_code}
    view = context.services.view
    await wait_until_visible(view, lambda: made.issubset(view.acls.acls), VIEW_WAIT_S_MAX)
    return answer.outcomes
