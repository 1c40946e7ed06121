"""Changes configs, for AlterConfigs and IncrementalAlterConfigs."""

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.configs.config_entries import LOG_LEVELS, ROOT_LOGGER
from braidlog.agent.apis.configs.config_rights import config_denial
from braidlog.agent.apis.configs.services import ConfigContext
from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CONTROL_FAILURES,
    VIEW_WAIT_S_MAX,
    admin_failure,
    duplicates,
    error_text,
    wait_until_visible,
)
from braidlog.configs.resources import BROKER_RESOURCE, LOGGER_RESOURCE, RESOURCE_TYPES, TOPIC_RESOURCE
from braidlog.configs.topic import DELETE, SET, apply_changes
from braidlog.control.interface import AlterConfigs, ConfigChange, Outcome
from braidlog.runtime.logs import set_log_level
from braidlog.security.acls import ALTER_CONFIGS

_OPERATIONS = {2: "APPEND", 3: "SUBTRACT"}


async def change_resources(request: Any, context: ConfigContext, *, replace: bool) -> tuple[Any, ...]:
    """Change configs.

    Returns one response entity per resource, in the order of the request.
    """
    repeated = duplicates([_identity(resource) for resource in request.resources])
    responses: list[Any] = []
    for resource in request.resources:
        if _identity(resource) in repeated:
            outcome = Outcome(ErrorCode.invalid_request, "Each resource must appear at most once.")
        else:
            outcome = (
                _denial(resource, context)
                or _refusal(resource)
                or _agents_own(resource, context)
                or _set_log_level(resource, request.validate_only, context, replace=replace)
                or await _change(resource, request.validate_only, context, replace=replace)
            )
        responses.append(
            context.answer(
                "AlterConfigsResourceResponse",
                error_code=ErrorCode(outcome.error_code),
                error_message=error_text(outcome.error_code, outcome.error_message),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return tuple(responses)


def _identity(resource: Any) -> str:
    return f"{resource.resource_type}/{resource.resource_name}"


def _operation(config: Any) -> int:
    return int(getattr(config, "config_operation", 0))


def _denial(resource: Any, context: ConfigContext) -> Outcome | None:
    code = config_denial(ALTER_CONFIGS, resource, context)
    return None if code is None else Outcome(code, "The client may not alter these configs.")


def _refusal(resource: Any) -> Outcome | None:
    """The reason not to ask the control plane at all, if there is one."""
    if resource.resource_type not in RESOURCE_TYPES:
        return Outcome(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")
    repeated = sorted(duplicates([config.name for config in resource.configs]))
    if repeated:
        return Outcome(ErrorCode.invalid_request, f"Error due to duplicate config keys: {', '.join(repeated)}")
    nulls = [config.name for config in resource.configs if config.value is None and _operation(config) != DELETE]
    if nulls:
        return Outcome(ErrorCode.invalid_request, f"Null value not supported for: {','.join(nulls)}")
    return None


def _agents_own(resource: Any, context: ConfigContext) -> Outcome | None:
    """The outcome for the configs of a single agent.

    Agents have none, so nothing can be set or deleted.
    """
    if resource.resource_type != BROKER_RESOURCE or not resource.resource_name:
        return None
    if resource.resource_name not in map(str, context.services.view.agents):
        return Outcome(ErrorCode.invalid_request, f"There is no agent with the node id {resource.resource_name}.")
    if all(_operation(config) == DELETE for config in resource.configs):
        return Outcome(0)  # as kafka-reassign-partitions does, to clear throttles
    return Outcome(
        ErrorCode.invalid_request, "Agents have no configs of their own: change the cluster's (--entity-default)."
    )


def _set_log_level(resource: Any, validate_only: bool, context: ConfigContext, *, replace: bool) -> Outcome | None:
    """The outcome for this agent's logger, which only IncrementalAlterConfigs changes."""
    if resource.resource_type != LOGGER_RESOURCE:
        return None
    own, named = context.services.session.node_id, resource.resource_name
    if replace:
        return Outcome(ErrorCode.invalid_request, f"Unsupported resource type: {LOGGER_RESOURCE}")
    if not named.isdigit():
        return Outcome(ErrorCode.invalid_request, f"Node id must be an integer, but it is: {named}")
    if int(named) != own:
        return Outcome(ErrorCode.invalid_request, f"Unexpected node id. Expected {own}, but received {named}")
    for config in resource.configs:
        if _operation(config) not in (SET, DELETE):
            operation = _OPERATIONS.get(_operation(config), "UNKNOWN")
            message = f"{operation} operation is not allowed for the BROKER_LOGGER resource"
            return Outcome(ErrorCode.invalid_request, message)
        if config.name != ROOT_LOGGER:
            return Outcome(ErrorCode.invalid_config, f"Logger {config.name} does not exist!")
        if _operation(config) == DELETE:
            return Outcome(ErrorCode.invalid_request, "Removing the log level of the root logger is not allowed")
        if config.value not in LOG_LEVELS:
            message = f"Cannot set the log level of {config.name} to {config.value} as it is not a supported log level."
            return Outcome(ErrorCode.invalid_config, message)
    if not validate_only:
        for config in resource.configs:
            set_log_level(LOG_LEVELS[config.value])
    return Outcome(0)


async def _change(resource: Any, validate_only: bool, context: ConfigContext, *, replace: bool) -> Outcome:
    changes = [ConfigChange(config.name, _operation(config), config.value) for config in resource.configs]
    request = AlterConfigs(int(resource.resource_type), resource.resource_name, changes, replace, validate_only)
    try:
        outcome = await context.services.control.alter_configs(request, timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)
    except CONTROL_FAILURES as error:
        return Outcome(admin_failure(error), str(error))
    if outcome.error_code or validate_only or resource.resource_type not in (TOPIC_RESOURCE, BROKER_RESOURCE):
        return outcome
    view = context.services.view

    def current() -> Mapping[str, str] | None:
        if resource.resource_type == BROKER_RESOURCE:
            return view.cluster_configs
        topic = view.topics_by_name.get(resource.resource_name)
        return topic.info.configs if topic is not None else None

    def visible() -> bool:
        """Whether the view has the changes: making them again would change nothing."""
        configs = current()
        return configs is None or apply_changes(configs, changes, replace=replace) == configs

    await wait_until_visible(view, visible, VIEW_WAIT_S_MAX)
    return outcome
