"""The configs of groups and of client metrics: checked, stored and reported here."""

from collections import Counter
from collections.abc import Mapping

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.configs.definition import ConfigDefinition, InvalidConfig
from braidlog.configs.resources import CLIENT_METRICS_RESOURCE, GROUP_RESOURCE
from braidlog.configs.topic import apply_changes
from braidlog.control.foundation import Foundation
from braidlog.control.groups.config import (
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    validate_client_metrics_configs,
    validate_group_configs,
)
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import AlterConfigs, Outcome
from braidlog.control.metadata.store import Transaction

DEFINITIONS: Mapping[int, Mapping[str, ConfigDefinition]] = {
    CLIENT_METRICS_RESOURCE: CLIENT_METRICS_CONFIGS,
    GROUP_RESOURCE: GROUP_CONFIGS,
}
NO_NAME = {
    CLIENT_METRICS_RESOURCE: "Subscription name can't be empty",
    GROUP_RESOURCE: "Default group resources are not allowed.",
}
RESOURCES_MAX = 10_000


class ResourceConfigs:
    """Knows these configs.

    Reads are from memory. A change takes the state lock, and is durable before it is visible.
    """

    def __init__(self, foundation: Foundation, settings: GroupSettings) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._settings = settings
        self._configs: dict[tuple[int, str], dict[str, str]] = {}

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query("SELECT resource_type, resource_name, configs FROM resource_configs")
        )
        for kind, name, text in rows:
            self._configs[kind, name] = msgspec.json.decode(text, type=dict[str, str])

    def names(self, resource_type: int) -> list[str]:
        return sorted(name for kind, name in self._configs if kind == resource_type)

    def of(self, resource_type: int, name: str) -> dict[str, str]:
        """Return the configs that were set on a resource."""
        return dict(self._configs.get((resource_type, name), {}))

    async def alter(self, request: AlterConfigs) -> Outcome:
        async with self._state_lock:
            kind, key = request.resource_type, (request.resource_type, request.resource_name)
            if not request.resource_name:
                return Outcome(int(ErrorCode.invalid_request), NO_NAME[kind])
            if max(Counter(change.name for change in request.changes).values(), default=0) > 1:
                return Outcome(int(ErrorCode.invalid_request), "A config is in the request twice.")
            try:
                configs = apply_changes(
                    self.of(*key), request.changes, replace=request.replace, definitions=DEFINITIONS[kind]
                )
                if kind == GROUP_RESOURCE:
                    validate_group_configs(configs, self._settings)
                else:
                    validate_client_metrics_configs(configs)
            except InvalidConfig as error:
                # Kafka refuses bad configs of client metrics with another code.
                code = ErrorCode.invalid_config if kind == GROUP_RESOURCE else ErrorCode.invalid_request
                return Outcome(int(code), str(error))
            if configs and key not in self._configs and len(self._configs) >= RESOURCES_MAX:
                return Outcome(int(ErrorCode.policy_violation), f"{RESOURCES_MAX} resources have configs already.")
            if not request.validate_only:
                await self._metadata.plan(lambda tx: _write(tx, key, configs))
                self._configs.pop(key, None)
                if configs:
                    self._configs[key] = configs
            return Outcome(0)


def _write(tx: Transaction, key: tuple[int, str], configs: dict[str, str]) -> None:
    tx.execute("DELETE FROM resource_configs WHERE resource_type = ? AND resource_name = ?", key)
    if configs:
        text = msgspec.json.encode(configs, order="sorted").decode()
        tx.execute(
            "INSERT INTO resource_configs (resource_type, resource_name, configs) VALUES (?, ?, ?)", (*key, text)
        )
