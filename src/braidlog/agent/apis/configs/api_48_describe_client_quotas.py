"""DescribeClientQuotas: lists quotas whose entities match a filter."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.quota_entities import entity_answer
from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import CLUSTER_DENIED, NO_THROTTLE
from braidlog.control.interface import ClientQuota
from braidlog.security.acls import DESCRIBE_CONFIGS

KEY = 48
VERSIONS = range(2)

EXACT, DEFAULT, ANY = 0, 1, 2
KNOWN_TYPES = ("user", "client-id", "ip")


async def handle(request: Any, context: ConfigContext) -> Any:
    code, message = _problem(request)
    if not context.rights.cluster(DESCRIBE_CONFIGS):
        code, message = ErrorCode.cluster_authorization_failed, CLUSTER_DENIED
    found = [] if code else [quota for quota in context.services.view.quotas.quotas if _matches(quota, request)]
    return context.answer(
        "DescribeClientQuotasResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        error_message=message,
        entries=None
        if code
        else tuple(
            [
                context.answer(
                    "EntryData",
                    entity=await entity_answer(quota.entity, context),
                    values=tuple(
                        context.answer("ValueData", key=key, value=value) for key, value in sorted(quota.values.items())
                    ),
                )
                async for quota in context.turns.each(found)
            ]
        ),
    )


def _problem(request: Any) -> tuple[ErrorCode, str | None]:
    seen: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            return ErrorCode.invalid_request, "Unexpected empty filter component entity type"
        if kind in seen:
            return ErrorCode.invalid_request, f"Entity type {kind} cannot appear more than once in the filter"
        seen.add(kind)
        if component.match_type not in (EXACT, DEFAULT, ANY):
            return ErrorCode.invalid_request, f"Unknown match type {component.match_type}"
        if (component.match is not None) is not (component.match_type == EXACT):
            return ErrorCode.invalid_request, "A match is given for exact filter components, and for those only"
        if kind not in KNOWN_TYPES:
            return ErrorCode.unsupported_version, f"Custom entity type '{kind}' not supported"
    if "ip" in seen and len(seen) > 1:
        return ErrorCode.invalid_request, "Invalid entity filter component combination"
    return ErrorCode.none, None


def _matches(quota: ClientQuota, request: Any) -> bool:
    parts = dict(quota.entity)
    for component in request.components:
        if component.entity_type not in parts:
            return False
        name = parts[component.entity_type]
        if component.match_type == EXACT and name != component.match:
            return False
        if component.match_type == DEFAULT and name is not None:
            return False
    return not request.strict or len(parts) == len(request.components)
