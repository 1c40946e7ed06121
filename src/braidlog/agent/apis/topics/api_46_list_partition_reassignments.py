"""ListPartitionReassignments: none is ever under way."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import CLUSTER_DENIED, NO_THROTTLE
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.security.acls import DESCRIBE

KEY = 46
VERSIONS = range(1)


async def handle(request: Any, context: TopicContext) -> Any:
    is_allowed = context.rights.cluster(DESCRIBE)
    return context.answer(
        "ListPartitionReassignmentsResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if is_allowed else ErrorCode.cluster_authorization_failed,
        error_message=None if is_allowed else CLUSTER_DENIED,
        topics=(),
    )
