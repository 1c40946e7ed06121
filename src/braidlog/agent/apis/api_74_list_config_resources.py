"""ListConfigResources: what DescribeConfigs can be asked about."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext
from braidlog.agent.view import ClusterView

KEY = 74
VERSIONS = range(2)

TOPIC = 2
BROKER = 4
CLIENT_METRICS = 16
KNOWN_TYPES = (TOPIC, BROKER, 8, CLIENT_METRICS, 32)
"""Kafka's, with broker loggers and groups. Of the last three there are none here."""


async def handle(request: Any, context: RequestContext) -> Any:
    # Version 0 lists client metrics and nothing else. Later, no types means all of them.
    types = getattr(request, "resource_types", (CLIENT_METRICS,)) or KNOWN_TYPES
    code = ErrorCode.none if all(kind in KNOWN_TYPES for kind in types) else ErrorCode.unsupported_version
    return context.answer(
        "ListConfigResourcesResponse",
        throttle_time=NO_THROTTLE,
        error_code=code,
        config_resources=()
        if code
        else tuple(
            context.answer("ConfigResource", resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(types)
            for name in _names(kind, context.agent.view)
        ),
    )


def _names(kind: int, view: ClusterView) -> list[str]:
    if kind == TOPIC:
        return sorted(view.topics_by_name)
    if kind == BROKER:
        return [str(node_id) for node_id in sorted(view.agents)]
    return []
