"""DescribeConfigs: of a topic, of an agent (Kafka's broker) and of the whole cluster (the broker without a name)."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.config_entries import ConfigEntry, agent_entries, cluster_entries, selected, topic_entries
from braidlog.agent.apis.shared import NO_THROTTLE
from braidlog.agent.context import RequestContext
from braidlog.control.topic_names import reason_against_topic_name

KEY = 32
VERSIONS = range(1, 5)

TOPIC = 2
BROKER = 4


class _Refusal(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def handle(request: Any, context: RequestContext) -> Any:
    return context.answer(
        "DescribeConfigsResponse",
        throttle_time=NO_THROTTLE,
        results=tuple(_result(resource, request, context) for resource in request.resources),
    )


def _result(resource: Any, request: Any, context: RequestContext) -> Any:
    code, message, entries = ErrorCode.none, None, list[ConfigEntry]()
    try:
        entries = selected(_entries(resource, context), resource.configuration_keys)
    except _Refusal as refusal:
        code, message = refusal.code, str(refusal)
    documented = getattr(request, "include_documentation", False)
    return context.answer(
        "DescribeConfigsResult",
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(_config(entry, request.include_synonyms, documented, context) for entry in entries),
    )


def _entries(resource: Any, context: RequestContext) -> list[ConfigEntry]:
    view, name = context.agent.view, resource.resource_name
    if resource.resource_type == TOPIC:
        topic = view.topics_by_name.get(name)
        if topic is None:
            if reason := reason_against_topic_name(name):
                raise _Refusal(ErrorCode.invalid_topic_exception, reason)
            raise _Refusal(ErrorCode.unknown_topic_or_partition, f"There is no topic named {name!r}.")
        return topic_entries(topic.info.configs, view.cluster_configs)
    if resource.resource_type == BROKER:
        if not name:
            return cluster_entries(view.cluster_configs)
        return agent_entries(view.cluster_configs, _facts(name, context))
    raise _Refusal(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")


def _facts(name: str, context: RequestContext) -> dict[str, str | None]:
    """What an agent was started with. Any agent can answer for any other."""
    try:
        node_id = int(name)
    except ValueError:
        raise _Refusal(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}") from None
    agent = context.agent.view.agents.get(node_id)
    if agent is None:
        raise _Refusal(ErrorCode.invalid_request, f"There is no agent with the node id {node_id}.")
    facts = {
        "advertised.listeners": f"PLAINTEXT://{agent.host}:{agent.port}",
        "broker.id": str(node_id),
        "broker.rack": agent.zone or None,
        "log.dir": context.agent.settings.store_url,
        "log.dirs": context.agent.settings.store_url,
        "node.id": str(node_id),
    }
    if node_id == context.agent.node_id and not context.agent.settings.auto_create_topics_enable:
        facts["auto.create.topics.enable"] = "false"
    return facts


def _config(entry: ConfigEntry, synonyms: bool, documented: bool, context: RequestContext) -> Any:
    return context.answer(
        "DescribeConfigsResourceResult",
        name=entry.definition.name,
        value=entry.value,
        read_only=entry.definition.read_only,
        config_source=entry.source,
        is_sensitive=False,
        config_type=entry.definition.type,
        documentation=entry.definition.documentation if documented else None,
        synonyms=tuple(
            context.answer("DescribeConfigsSynonym", name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if synonyms else ())
        ),
    )
