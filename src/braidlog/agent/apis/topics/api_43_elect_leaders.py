"""ElectLeaders: elects nobody, because every agent serves every partition."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.security.acls import ALTER

KEY = 43
VERSIONS = range(3)

PREFERRED, UNCLEAN = 0, 1


async def handle(request: Any, context: TopicContext) -> Any:
    # Version 0 has only preferred elections. No partitions means all: then those that need no election are not listed.
    known_type = getattr(request, "election_type", PREFERRED) in (PREFERRED, UNCLEAN)
    if not context.rights.cluster(ALTER):
        return context.answer(
            "ElectLeadersResponse",
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.cluster_authorization_failed,
            replica_election_results=(),
        )
    return context.answer(
        "ElectLeadersResponse",
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known_type else ErrorCode.invalid_request,
        replica_election_results=tuple(
            [
                context.answer(
                    "ReplicaElectionResult",
                    topic=topic.topic,
                    partition_result=tuple(
                        [_result(topic.topic, index, context) async for index in context.turns.each(topic.partitions)]
                    ),
                )
                async for topic in context.turns.each(request.topic_partitions or () if known_type else ())
            ]
        ),
    )


def _result(topic: str, index: int, context: TopicContext) -> Any:
    if context.services.view.partition(topic, index) is None:
        code, message = ErrorCode.unknown_topic_or_partition, f"There is no partition {topic}-{index}."
    else:
        code, message = ErrorCode.election_not_needed, "Leader election not needed for topic partition."
    return context.answer("PartitionResult", partition_id=index, error_code=code, error_message=message)
