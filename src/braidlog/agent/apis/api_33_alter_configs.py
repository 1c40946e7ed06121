"""AlterConfigs: what is not named goes back to its default."""

from typing import Any

from braidlog.agent.apis.config_changes import change_resources
from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext

KEY = 33
VERSIONS = range(3)


async def handle(request: Any, context: RequestContext) -> Any:
    return context.answer(
        "AlterConfigsResponse",
        throttle_time=NO_THROTTLE,
        responses=await change_resources(request, context, replace=True),
    )
