"""CreateTopics: creates topics, or only validates them."""

from collections.abc import Container
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.config_entries import topic_entries
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
from braidlog.control.interface import CreateTopics, NewTopic, TopicOutcome
from braidlog.security.acls import CREATE, DESCRIBE_CONFIGS

KEY = 19
VERSIONS = range(2, 8)


async def handle(request: Any, context: TopicContext) -> Any:
    repeated = duplicates([topic.name for topic in request.topics])
    outcomes: dict[str, TopicOutcome] = {}
    view = context.services.view
    wanted: list[NewTopic] = []
    rights = context.rights
    may_create_all = rights.cluster(CREATE)
    async for topic in context.turns.each(request.topics):
        if topic.name in repeated:
            outcomes[topic.name] = _refused(topic, ErrorCode.invalid_request, "Duplicate topic name.")
        elif not may_create_all and not rights.topic(CREATE, topic.name):
            outcomes[topic.name] = _refused(topic, ErrorCode.topic_authorization_failed, TOPIC_DENIED)
        elif isinstance(new := _new_topic(topic, view.agents), NewTopic):
            wanted.append(new)
        else:
            outcomes[topic.name] = new
    if wanted:
        outcomes |= await _create(wanted, request, context)
    return context.answer(
        "CreateTopicsResponse",
        throttle_time=NO_THROTTLE,
        topics=await context.turns.map(
            lambda outcome: _result(outcome, view.cluster_configs, context), outcomes.values()
        ),
    )


async def _create(wanted: list[NewTopic], request: Any, context: TopicContext) -> dict[str, TopicOutcome]:
    try:
        answer = await context.services.control.create_topics(
            CreateTopics(wanted, request.validate_only), timeout_s=call_timeout_s(request.timeout)
        )
    except CONTROL_FAILURES as error:
        return failed_outcomes((topic.name for topic in wanted), error)
    if not request.validate_only:
        created = [outcome.topic.topic_id for outcome in answer.outcomes if outcome.topic and not outcome.error_code]
        view = context.services.view
        await wait_until_visible(
            view, lambda: all(topic_id in view.topics_by_id for topic_id in created), view_wait_s(request.timeout)
        )
    return {outcome.name: outcome for outcome in answer.outcomes}


def _new_topic(topic: Any, node_ids: Container[int]) -> NewTopic | TopicOutcome:
    """The topic to ask the control plane for, or the reason why it is not asked."""
    refusal = _assignment_refusal(topic, node_ids) if topic.assignments else _count_refusal(topic)
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls and refusal is None:
        refusal = (ErrorCode.invalid_config, f"Null value not supported for topic configs: {','.join(nulls)}")
    if refusal is not None:
        return _refused(topic, *refusal)
    configs = {config.name: config.value for config in topic.configs}
    by_index = sorted(topic.assignments, key=lambda assignment: int(assignment.partition_index))
    assignments = [[int(node_id) for node_id in assignment.broker_ids] for assignment in by_index]
    if assignments:
        return NewTopic(str(topic.name), len(assignments), len(assignments[0]), configs, assignments)
    return NewTopic(str(topic.name), topic.num_partitions, topic.replication_factor, configs)


def _count_refusal(topic: Any) -> tuple[ErrorCode, str] | None:
    if topic.num_partitions == 0 or topic.num_partitions < -1:
        return ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
    if topic.replication_factor == 0 or topic.replication_factor < -1:
        return (
            ErrorCode.invalid_replication_factor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    return None


def _assignment_refusal(topic: Any, node_ids: Container[int]) -> tuple[ErrorCode, str] | None:
    for number, what in ((topic.num_partitions, "numPartitions"), (topic.replication_factor, "replication factor")):
        if number != -1:
            return (
                ErrorCode.invalid_request,
                f"A manual partition assignment was specified, but {what} was not set to -1.",
            )
    indexes = sorted(assignment.partition_index for assignment in topic.assignments)
    if len(set(indexes)) != len(indexes):
        reason: str | None = "Found multiple manual partition assignments for a partition."
    elif indexes != list(range(len(indexes))):
        reason = "Partitions should be a consecutive 0-based integer sequence."
    else:
        reason = reason_against_assignments((assignment.broker_ids for assignment in topic.assignments), node_ids)
    return (ErrorCode.invalid_replica_assignment, reason) if reason is not None else None


def _refused(topic: Any, code: ErrorCode, message: str) -> TopicOutcome:
    return TopicOutcome(str(topic.name), code, message)


def _result(outcome: TopicOutcome, cluster_configs: dict[str, str], context: TopicContext) -> Any:
    topic = None if outcome.error_code else outcome.topic
    config_code, topic_id = ErrorCode.none, topic.topic_id if topic is not None else b""
    if topic is not None and not context.rights.topic(DESCRIBE_CONFIGS, topic.name):
        config_code, topic = ErrorCode.topic_authorization_failed, None
    # Older versions do not have this class.
    entries = topic_entries(topic.configs, cluster_configs) if topic is not None and context.version >= 5 else []
    return context.answer(
        "CreatableTopicResult",
        name=outcome.name,
        topic_id=UUID(bytes=topic_id) if topic_id else None,
        topic_config_error_code=config_code,
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
