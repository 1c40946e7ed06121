"""Changing configs: what AlterConfigs and IncrementalAlterConfigs share."""

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    ADMIN_CALL_TIMEOUT_S_MAX,
    CONTROL_FAILURES,
    VIEW_WAIT_S_MAX,
    admin_failure,
    duplicates,
    error_text,
    wait_until_visible,
)
from braidlog.agent.context import RequestContext
from braidlog.control.interface import AlterConfigs, ConfigChange, Outcome
from braidlog.control.topic_config import DELETE, apply_changes

TOPIC = 2
BROKER = 4


async def change_resources(request: Any, context: RequestContext, *, replace: bool) -> tuple[Any, ...]:
    """One response entity per resource, in the request's order."""
    repeated = duplicates([_identity(resource) for resource in request.resources])
    responses: list[Any] = []
    for resource in request.resources:
        if _identity(resource) in repeated:
            outcome = Outcome(ErrorCode.invalid_request, "Each resource must appear at most once.")
        else:
            outcome = _refusal(resource) or await _change(resource, request.validate_only, context, replace=replace)
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


def _refusal(resource: Any) -> Outcome | None:
    """Why the control plane is not asked at all."""
    if resource.resource_type not in (TOPIC, BROKER):
        return Outcome(ErrorCode.invalid_request, f"Unsupported resource type: {resource.resource_type}")
    if resource.resource_type == BROKER and resource.resource_name:
        return Outcome(
            ErrorCode.invalid_request,
            "Agents have no configs of their own: change the cluster's (--entity-default).",
        )
    repeated = sorted(duplicates([config.name for config in resource.configs]))
    if repeated:
        return Outcome(ErrorCode.invalid_request, f"Error due to duplicate config keys: {', '.join(repeated)}")
    nulls = [config.name for config in resource.configs if config.value is None and _operation(config) != DELETE]
    if nulls:
        return Outcome(ErrorCode.invalid_request, f"Null value not supported for: {','.join(nulls)}")
    return None


async def _change(resource: Any, validate_only: bool, context: RequestContext, *, replace: bool) -> Outcome:
    changes = [ConfigChange(config.name, _operation(config), config.value) for config in resource.configs]
    request = AlterConfigs(int(resource.resource_type), resource.resource_name, changes, replace, validate_only)
    try:
        outcome = await context.agent.control.alter_configs(request, timeout_s=ADMIN_CALL_TIMEOUT_S_MAX)
    except CONTROL_FAILURES as error:
        return Outcome(admin_failure(error), str(error))
    if outcome.error_code or validate_only:
        return outcome
    view = context.agent.view

    def current() -> Mapping[str, str] | None:
        if resource.resource_type == BROKER:
            return view.cluster_configs
        topic = view.topics_by_name.get(resource.resource_name)
        return topic.info.configs if topic is not None else None

    def visible() -> bool:
        """The changes are in where making them again would change nothing."""
        configs = current()
        return configs is None or apply_changes(configs, changes, replace=replace) == configs

    await wait_until_visible(view, visible, VIEW_WAIT_S_MAX)
    return outcome
