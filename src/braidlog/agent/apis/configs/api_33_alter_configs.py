"""AlterConfigs: sets configs, and resets all others to their defaults."""

from typing import Any

from braidlog.agent.apis.configs.config_changes import change_resources
from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import NO_THROTTLE

KEY = 33
VERSIONS = range(3)


async def handle(request: Any, context: ConfigContext) -> Any:
    return context.answer(
        "AlterConfigsResponse",
        throttle_time=NO_THROTTLE,
        responses=await change_resources(request, context, replace=True),
    )
