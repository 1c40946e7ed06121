"""CreatePartitions: adds partitions to topics."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    NO_THROTTLE,
    TOPIC_DENIED,
    call_timeout_s,
    duplicates,
    error_text,
    view_wait_s,
    wait_until_visible,
)
from braidlog.agent.apis.topics.assignments import reason_against_assignments
from braidlog.agent.apis.topics.outcomes import failed_outcomes
from braidlog.agent.apis.topics.services import TopicContext
from braidlog.control.interface import CreatePartitions, PartitionGrowth, TopicOutcome
from braidlog.security.acls import ALTER

KEY = 37
VERSIONS = range(4)


async def handle(request: Any, context: TopicContext) -> Any:
    repeated = duplicates([topic.name for topic in request.topics])
    outcomes: dict[str, TopicOutcome] = {
        name: TopicOutcome(name, ErrorCode.invalid_request, "Duplicate topic name.") for name in sorted(repeated)
    }
    wanted: list[PartitionGrowth] = []
    async for topic in context.turns.each(request.topics):
        growth = _growth(topic)
        if not context.rights.topic(ALTER, growth.name):
            refused = TopicOutcome(growth.name, ErrorCode.topic_authorization_failed, TOPIC_DENIED)
            outcomes.setdefault(growth.name, refused)
        elif reason := reason_against_assignments(growth.assignments or (), context.services.view.agents):
            refused = TopicOutcome(growth.name, ErrorCode.invalid_replica_assignment, reason)
            outcomes.setdefault(growth.name, refused)
        elif growth.name not in repeated:
            wanted.append(growth)
    if wanted:
        outcomes |= await _grow(wanted, request, context)
    return context.answer(
        "CreatePartitionsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            [
                context.answer(
                    "CreatePartitionsTopicResult",
                    name=outcome.name,
                    error_code=ErrorCode(outcome.error_code),
                    error_message=error_text(outcome.error_code, outcome.error_message),
                )
                async for outcome in context.turns.each(outcomes.values())
            ]
        ),
    )


def _growth(topic: Any) -> PartitionGrowth:
    named = topic.assignments
    assignments = None if named is None else [[int(node_id) for node_id in each.broker_ids] for each in named]
    return PartitionGrowth(str(topic.name), topic.count, assignments)


async def _grow(wanted: list[PartitionGrowth], request: Any, context: TopicContext) -> dict[str, TopicOutcome]:
    try:
        answer = await context.services.control.create_partitions(
            CreatePartitions(wanted, request.validate_only), timeout_s=call_timeout_s(request.timeout)
        )
    except CONTROL_FAILURES as error:
        return failed_outcomes((topic.name for topic in wanted), error)
    outcomes = {outcome.name: outcome for outcome in answer.outcomes}
    if not request.validate_only:
        view = context.services.view
        grown = [topic for topic in wanted if not outcomes[topic.name].error_code]
        await wait_until_visible(
            view,
            lambda: all(view.partition(topic.name, topic.partition_count - 1) is not None for topic in grown),
            view_wait_s(request.timeout),
        )
    return outcomes
