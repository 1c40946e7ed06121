"""ListConfigResources: lists the resources that DescribeConfigs can describe."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, NO_THROTTLE, admin_failure
from braidlog.configs.resources import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    LOGGER_RESOURCE,
    RESOURCE_TYPES,
    TOPIC_RESOURCE,
)
from braidlog.control.interface import ListConfigResources
from braidlog.security.acls import DESCRIBE_CONFIGS

KEY = 74
VERSIONS = range(2)


async def handle(request: Any, context: ConfigContext) -> Any:
    # Version 0 lists only client metrics. In later versions, no types means all.
    types = getattr(request, "resource_types", (CLIENT_METRICS_RESOURCE,)) or RESOURCE_TYPES
    code = ErrorCode.none if all(kind in RESOURCE_TYPES for kind in types) else ErrorCode.unsupported_version
    if not context.rights.cluster(DESCRIBE_CONFIGS):
        code = ErrorCode.cluster_authorization_failed
    names: dict[int, list[str]] = {}
    try:
        names = {} if code else {kind: await _names(kind, context) for kind in dict.fromkeys(types)}
    except CONTROL_FAILURES as error:
        code = admin_failure(error)
    return context.answer(
        "ListConfigResourcesResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        config_resources=tuple(
            context.answer("ConfigResource", resource_name=name, resource_type=kind)
            for kind, found in names.items()
            for name in found
        ),
    )


async def _names(kind: int, context: ConfigContext) -> list[str]:
    view = context.services.view
    if kind == TOPIC_RESOURCE:
        return sorted(view.topics_by_name)
    if kind in (BROKER_RESOURCE, LOGGER_RESOURCE):
        return [str(node_id) for node_id in sorted(view.agents)]
    request = ListConfigResources(kind)
    return (await context.services.control.list_config_resources(request, timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)).names
