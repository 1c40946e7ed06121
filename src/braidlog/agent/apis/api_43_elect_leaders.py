"""ElectLeaders: every agent serves every partition, so there is never anything to elect."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext

KEY = 43
VERSIONS = range(3)

PREFERRED, UNCLEAN = 0, 1


async def handle(request: Any, context: RequestContext) -> Any:
    # Version 0 knows preferred elections only. No partitions asks for all: those that need nothing are not listed.
    known_type = getattr(request, "election_type", PREFERRED) in (PREFERRED, UNCLEAN)
    return context.answer(
        "ElectLeadersResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known_type else ErrorCode.invalid_request,
        replica_election_results=tuple(
            context.answer(
                "ReplicaElectionResult",
                topic=topic.topic,
                partition_result=tuple(_result(topic.topic, index, context) for index in topic.partitions),
            )
            for topic in (request.topic_partitions or () if known_type else ())
        ),
    )


def _result(topic: str, index: int, context: RequestContext) -> Any:
    if context.agent.view.partition(topic, index) is None:
        code, message = ErrorCode.unknown_topic_or_partition, f"There is no partition {topic}-{index}."
    else:
        code, message = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    return context.answer("PartitionResult", partition_id=index, error_code=code, error_message=message)
