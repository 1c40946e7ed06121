"""IncrementalAlterConfigs: only what is named changes."""

from typing import Any

from braidlog.agent.apis.config_changes import change_resources
from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext

KEY = 44
VERSIONS = range(2)


async def handle(request: Any, context: RequestContext) -> Any:
    return context.answer(
        "IncrementalAlterConfigsResponse",
        throttle_time=NO_THROTTLE,
        responses=await change_resources(request, context, replace=False),
    )
