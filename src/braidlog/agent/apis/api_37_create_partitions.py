"""CreatePartitions: a topic gets more partitions."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    CONTROL_FAILURES,
    NO_THROTTLE,
    admin_failure,
    call_timeout_s,
    duplicates,
    error_text,
    view_wait_s,
    wait_until_visible,
)
from braidlog.agent.context import RequestContext
from braidlog.control.interface import CreatePartitions, PartitionGrowth, TopicOutcome

KEY = 37
VERSIONS = range(4)


async def handle(request: Any, context: RequestContext) -> Any:
    repeated = duplicates([topic.name for topic in request.topics])
    outcomes: dict[str, TopicOutcome] = {
        name: TopicOutcome(name, ErrorCode.invalid_request, "Duplicate topic name.") for name in sorted(repeated)
    }
    # Agents hold no data, so where a new partition was meant to lie (`assignments`) is not kept.
    wanted = [PartitionGrowth(str(topic.name), topic.count) for topic in request.topics if topic.name not in repeated]
    if wanted:
        outcomes |= await _grow(wanted, request, context)
    return context.answer(
        "CreatePartitionsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(
            context.answer(
                "CreatePartitionsTopicResult",
                name=outcome.name,
                error_code=ErrorCode(outcome.error_code),
                error_message=error_text(outcome.error_code, outcome.error_message),
            )
            for outcome in outcomes.values()
        ),
    )


async def _grow(wanted: list[PartitionGrowth], request: Any, context: RequestContext) -> dict[str, TopicOutcome]:
    try:
        answer = await context.agent.control.create_partitions(
            CreatePartitions(wanted, request.validate_only), timeout_s=call_timeout_s(request.timeout)
        )
    except CONTROL_FAILURES as error:
        code = admin_failure(error)
        return {topic.name: TopicOutcome(topic.name, code, str(error)) for topic in wanted}
    outcomes = {outcome.name: outcome for outcome in answer.outcomes}
    if not request.validate_only:
        view = context.agent.view
        grown = [topic for topic in wanted if not outcomes[topic.name].error_code]
        await wait_until_visible(
            view,
            lambda: all(view.partition(topic.name, topic.partition_count - 1) is not None for topic in grown),
            view_wait_s(request.timeout),
        )
    return outcomes
