"""IncrementalAlterConfigs: changes only the configs that are named."""

from typing import Any

from braidlog.agent.apis.configs.config_changes import change_resources
from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import NO_THROTTLE

KEY = 44
VERSIONS = range(2)


async def handle(request: Any, context: ConfigContext) -> Any:
    return context.answer(
        "IncrementalAlterConfigsResponse",
        throttle_time=NO_THROTTLE,
        responses=await change_resources(request, context, replace=False),
    )
