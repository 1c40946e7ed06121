"""Each situation of the table, by hand-made requests."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster import wait_until
from tests.kafka.conformance.situations import (
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    GROUP,
    GROUP_KIND,
    HOME,
    INCREMENTAL_ALTER,
    NAME,
    SITUATIONS,
    TOPIC,
    Situation,
    describe_configs,
    incremental,
)
from tests.kafka.conformance.tool_situations import LIST_RESOURCES, TOOLS
from tests.kafka.conformance.wire import Part, Wire, part

NOT_READY = {5, 6, 14, 15, 16}
"""A leader or a coordinator that is only just there."""


def filled(value: Any, names: dict[str, str]) -> Any:
    """The request with real names for the placeholders."""
    if isinstance(value, Part):
        return Part(value.class_name, {key: filled(item, names) for key, item in value.values.items()})
    if isinstance(value, (list, tuple)):
        return type(value)(filled(item, names) for item in value)
    return names.get(value, value) if isinstance(value, str) else value


def at(entity: Any, path: str) -> Any:
    """None where the answer has nothing there."""
    for step in path.split("."):
        if step.isdigit():
            entity = entity[int(step)] if int(step) < len(entity) else None
        else:
            entity = getattr(entity, step, None)
        if entity is None:
            return None
    return entity


def mentions(value: Any, placeholder: str) -> bool:
    if isinstance(value, Part):
        return any(mentions(item, placeholder) for item in value.values.values())
    if isinstance(value, (list, tuple)):
        return any(mentions(item, placeholder) for item in value)
    return bool(value == placeholder)


@pytest.mark.parametrize("situation", [*SITUATIONS, *TOOLS], ids=lambda situation: situation.name)
def test_situation(
    situation: Situation, wire: Wire, home: int, unique: Callable[[str], str], new_topic: Callable[..., str]
) -> None:
    if situation.key not in wire.versions:
        pytest.skip(f"the broker does not offer API {situation.key}")
    oldest, newest = wire.versions[situation.key]
    if situation.version is not None and not oldest <= situation.version <= newest:
        pytest.skip(f"the broker does not offer version {situation.version} of API {situation.key}")
    names = {NAME: unique("nobody"), GROUP: unique("group"), HOME: str(home)}
    if mentions(situation.request, TOPIC):
        names[TOPIC] = new_topic(2, **situation.settings)
    request = filled(situation.request, names)

    found: dict[str, Any] = {}

    def answered() -> bool:
        answer = wire.call(situation.key, request, version=situation.version)
        found.clear()
        found.update({path: at(answer, path) for path in situation.expected}, answer=answer)
        return not any(value in NOT_READY for path, value in found.items() if path.endswith("error_code"))

    wait_until(answered, what="an answer that is not about the broker's own start", interval_s=0.1)
    answer = found.pop("answer")
    assert found == situation.expected, answer


def test_bytes_behind_a_request_are_ignored(wire: Wire) -> None:
    a_key = b"\0\1k"
    plain = wire.exchange_raw(FIND_COORDINATOR, 0, a_key, flexible=False)
    assert wire.exchange_raw(FIND_COORDINATOR, 0, a_key + b"and more", flexible=False) == plain


def test_what_was_set_for_a_group_is_told_and_listed(wire: Wire, unique: Callable[[str], str]) -> None:
    group, name = unique("group"), "consumer.session.timeout.ms"
    assert wire.call(INCREMENTAL_ALTER, incremental(GROUP_KIND, group, (name, 0, "50000"))).responses[0].error_code == 0

    def told() -> tuple[str, int, list[int]]:
        answer = wire.call(DESCRIBE_CONFIGS, describe_configs(GROUP_KIND, group, (name,), synonyms=True))
        [config] = answer.results[0].configs
        return config.value, config.config_source, [each.source for each in config.synonyms]

    def is_listed() -> bool:
        answer = wire.call(LIST_RESOURCES, part("ListConfigResourcesRequest", resource_types=(GROUP_KIND,)))
        return group in [each.resource_name for each in answer.config_resources]

    wait_until(lambda: told() == ("50000", 8, [8]), what="what was set")
    wait_until(is_listed, what="the group in the list")
    assert wire.call(INCREMENTAL_ALTER, incremental(GROUP_KIND, group, (name, 1, None))).responses[0].error_code == 0
    wait_until(lambda: told() == ("45000", 5, [5]), what="the default")
