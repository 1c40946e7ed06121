"""ListPartitionReassignments: none is ever under way."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.apis.topics.services import TopicContext

KEY = 46
VERSIONS = range(1)


async def handle(request: Any, context: TopicContext) -> Any:
    return context.answer(
        "ListPartitionReassignmentsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        topics=(),
    )
