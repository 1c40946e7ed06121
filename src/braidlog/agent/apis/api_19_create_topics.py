"""CreateTopics."""

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.config_entries import topic_entries
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
from braidlog.control.interface import CreateTopics, NewTopic, TopicOutcome

KEY = 19
VERSIONS = range(2, 8)


async def handle(request: Any, context: RequestContext) -> Any:
    repeated = duplicates([topic.name for topic in request.topics])
    outcomes: dict[str, TopicOutcome] = {}
    wanted: list[NewTopic] = []
    for topic in request.topics:
        if topic.name in repeated:
            outcomes[topic.name] = _refused(topic, ErrorCode.invalid_request, "Duplicate topic name.")
        elif isinstance(new := _new_topic(topic), NewTopic):
            wanted.append(new)
        else:
            outcomes[topic.name] = new
    if wanted:
        outcomes |= await _create(wanted, request, context)
    view = context.agent.view
    return context.answer(
        "CreateTopicsResponse",
        throttle_time=NO_THROTTLE,
        topics=tuple(_result(outcome, view.cluster_configs, context) for outcome in outcomes.values()),
    )


async def _create(wanted: list[NewTopic], request: Any, context: RequestContext) -> dict[str, TopicOutcome]:
    try:
        answer = await context.agent.control.create_topics(
            CreateTopics(wanted, request.validate_only), timeout_s=call_timeout_s(request.timeout)
        )
    except CONTROL_FAILURES as error:
        code = admin_failure(error)
        return {topic.name: TopicOutcome(topic.name, code, str(error)) for topic in wanted}
    if not request.validate_only:
        created = [outcome.topic.topic_id for outcome in answer.outcomes if outcome.topic and not outcome.error_code]
        view = context.agent.view
        await wait_until_visible(
            view, lambda: all(topic_id in view.topics_by_id for topic_id in created), view_wait_s(request.timeout)
        )
    return {outcome.name: outcome for outcome in answer.outcomes}


def _new_topic(topic: Any) -> NewTopic | TopicOutcome:
    """What the control plane is asked for, or the reason why it is not asked."""
    partition_count, replication_factor = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        if partition_count != -1 or replication_factor != -1:
            what = "partition count" if partition_count != -1 else "replication factor"
            return _refused(
                topic,
                ErrorCode.invalid_request,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
        # Agents hold no data, so where a partition was meant to lie is not kept: only how many there are.
        indexes = sorted(assignment.partition_index for assignment in topic.assignments)
        if indexes != list(range(len(indexes))):
            return _refused(
                topic,
                ErrorCode.invalid_replica_assignment,
                "Partitions should be a consecutive 0-based integer sequence.",
            )
        factors = {len(assignment.broker_ids) for assignment in topic.assignments}
        if len(factors) != 1 or 0 in factors:
            return _refused(
                topic, ErrorCode.invalid_replica_assignment, "All partitions must have the same number of replicas."
            )
        partition_count, replication_factor = len(indexes), factors.pop()
    elif partition_count == 0 or partition_count < -1:
        return _refused(
            topic, ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    elif replication_factor == 0 or replication_factor < -1:
        return _refused(
            topic,
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        return _refused(
            topic, ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(nulls)}"
        )
    configs = {config.name: config.value for config in topic.configs}
    return NewTopic(str(topic.name), partition_count, replication_factor, configs)


def _refused(topic: Any, code: ErrorCode, message: str) -> TopicOutcome:
    return TopicOutcome(str(topic.name), code, message)


def _result(outcome: TopicOutcome, cluster_configs: dict[str, str], context: RequestContext) -> Any:
    topic = None if outcome.error_code else outcome.topic
    # Older versions have no such class.
    entries = topic_entries(topic.configs, cluster_configs) if topic is not None and context.version >= 5 else []
    return context.answer(
        "CreatableTopicResult",
        name=outcome.name,
        topic_id=UUID(bytes=topic.topic_id) if topic is not None and topic.topic_id else None,
        error_code=ErrorCode(outcome.error_code),
        error_message=error_text(outcome.error_code, outcome.error_message),
        num_partitions=len(topic.partition_ids) if topic is not None else -1,
        replication_factor=topic.replication_factor if topic is not None else -1,
        configs=tuple(
            context.answer(
                "CreatableTopicConfigs",
                name=entry.definition.name,
                value=entry.value,
                read_only=False,
                config_source=entry.source,
                is_sensitive=False,
            )
            for entry in entries
        ),
    )
