"""DescribeConfigs: describes the configs of all kinds of resources.

They are topics, agents, the whole cluster, groups, client metrics and loggers.

To clients an agent is a broker, and the cluster is the broker without a name.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.config_entries import (
    ConfigEntry,
    ConfigSource,
    agent_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    logger_entries,
    selected,
    topic_entries,
)
from braidlog.agent.apis.configs.config_rights import config_denial
from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import ADMIN_CALL_TIMEOUT_S_MAX, CONTROL_FAILURES, NO_THROTTLE, admin_failure
from braidlog.configs.cluster import CONTROL_CONFIG, METRICS_CONFIG
from braidlog.configs.names import reason_against_topic_name
from braidlog.configs.resources import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    LOGGER_RESOURCE,
    TOPIC_RESOURCE,
)
from braidlog.control.interface import AgentInfo, DescribeConfigs, DescribedConfigs
from braidlog.cost.prices import PRICES, price_for
from braidlog.objects.open import redacted
from braidlog.security.acls import DESCRIBE_CONFIGS

KEY = 32
VERSIONS = range(1, 5)

_NO_NAME = {
    LOGGER_RESOURCE: "Broker id must not be empty",
    CLIENT_METRICS_RESOURCE: "Client metrics subscription name must not be empty",
    GROUP_RESOURCE: "Group name must not be empty",
}


_LOGGER_SOURCE = ConfigSource.BROKER_LOGGER
"""Kafka gives loggers an empty documentation, even if nobody asks for it."""


class _Refusal(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def handle(request: Any, context: ConfigContext) -> Any:
    results: list[Any] = []
    # A repeated resource is answered once: an answer is a hundred times as long as the question.
    for resource in dict.fromkeys(request.resources):
        await context.turns.wait()
        results.append(await _result(resource, request, context))
    return context.answer("DescribeConfigsResponse", throttle_time=NO_THROTTLE, results=tuple(results))


async def _result(resource: Any, request: Any, context: ConfigContext) -> Any:
    code, message, entries = ErrorCode.none, "", list[ConfigEntry]()
    try:
        _check_rights(resource, context)
        entries = selected(await _entries(resource, context), resource.configuration_keys)
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


def _check_rights(resource: Any, context: ConfigContext) -> None:
    code = config_denial(DESCRIBE_CONFIGS, resource, context)
    if code is not None:
        raise _Refusal(code, "")


async def _entries(resource: Any, context: ConfigContext) -> list[ConfigEntry]:
    view, kind, name = context.services.view, resource.resource_type, resource.resource_name
    if kind == TOPIC_RESOURCE:
        topic = view.topics_by_name.get(name)
        if topic is None:
            if reason := reason_against_topic_name(name):
                raise _Refusal(ErrorCode.invalid_topic_exception, reason)
            raise _Refusal(ErrorCode.unknown_topic_or_partition, f"There is no topic named {name!r}.")
        return topic_entries(topic.info.configs, view.cluster_configs)
    if kind == BROKER_RESOURCE and not name:
        return cluster_entries(view.cluster_configs)
    if kind in _NO_NAME and not name:
        raise _Refusal(ErrorCode.invalid_request, _NO_NAME[kind])
    if kind == BROKER_RESOURCE:
        _check_node(name, "or empty string, ", context)
        started_with = (await _ask_control(kind, "", context)).defaults
        return agent_entries(view.cluster_configs, {**_facts(context), **started_with})
    if kind == LOGGER_RESOURCE:
        _check_node(name, "", context)
        return logger_entries()
    if kind == CLIENT_METRICS_RESOURCE:
        return client_metrics_entries((await _ask_control(kind, name, context)).configs)
    if kind == GROUP_RESOURCE:
        told = await _ask_control(kind, name, context)
        return group_entries(told.configs, told.defaults)
    raise _Refusal(ErrorCode.invalid_request, f"Unsupported resource type: {kind}")


async def _ask_control(kind: int, name: str, context: ConfigContext) -> DescribedConfigs:
    try:
        return await context.services.control.describe_configs(
            DescribeConfigs(kind, name), timeout_s=ADMIN_CALL_TIMEOUT_S_MAX
        )
    except CONTROL_FAILURES as error:
        raise _Refusal(admin_failure(error), str(error)) from error


def _check_node(name: str, others: str, context: ConfigContext) -> None:
    """Refuse another agent's node id.

    Like a broker, an agent knows only its own settings.
    """
    own = context.services.session.node_id
    try:
        node_id = int(name)
    except ValueError:
        raise _Refusal(ErrorCode.invalid_request, f"Broker id must be an integer, but it is: {name}") from None
    if node_id != own:
        raise _Refusal(
            ErrorCode.invalid_request, f"Unexpected broker id, expected {own} {others}but received {node_id}"
        )


def _facts(context: ConfigContext) -> dict[str, str | None]:
    """The settings that this agent was started with, under Kafka's names."""
    settings, node_id = context.services.settings, context.services.session.node_id
    info = context.services.view.agents.get(node_id)
    facts = {
        "advertised.listeners": _advertised(info, settings.security_protocol) if info is not None else None,
        "broker.id": str(node_id),
        "broker.rack": (info.zone or None) if info is not None else None,
        CONTROL_CONFIG: str(settings.control),
        METRICS_CONFIG: str(settings.metrics_listen) if settings.metrics_listen is not None else None,
        "braidlog.upload.budget.usd.month": f"{settings.upload_budget_usd_month:g}",
        "braidlog.upload.interval.ms": str(settings.upload_interval_ms),
        "braidlog.upload.size.bytes": str(settings.upload_size_bytes),
        "braidlog.store.price": (PRICES.get(settings.store_price) or price_for(settings.store_url)).name,
        "braidlog.shards": str(max(1, settings.shards)),
        "log.dir": redacted(settings.store_url),
        "log.dirs": redacted(settings.store_url),
        "node.id": str(node_id),
    }
    if not settings.auto_create_topics_enable:
        facts["auto.create.topics.enable"] = "false"
    return facts


def _advertised(info: AgentInfo, protocol: str) -> str:
    listeners = info.listeners or {protocol: (info.host, info.port)}
    return ",".join(f"{name}://{host}:{port}" for name, (host, port) in listeners.items())


def _config(entry: ConfigEntry, synonyms: bool, documented: bool, context: ConfigContext) -> Any:
    return context.answer(
        "DescribeConfigsResourceResult",
        name=entry.definition.name,
        value=entry.value,
        read_only=entry.definition.read_only,
        config_source=entry.source,
        is_sensitive=False,
        config_type=entry.definition.type,
        documentation=entry.definition.documentation if documented or entry.source is _LOGGER_SOURCE else None,
        synonyms=tuple(
            context.answer("DescribeConfigsSynonym", name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if synonyms else ())
        ),
    )
