"""The settings of a topic, from its own configs and the cluster's.

A topic config that was not set takes the cluster's value under its broker-level name (`retention.ms` from
`log.retention.ms`, then `.minutes`, then `.hours`), or else its default.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from braidlog.configs.cluster import (
    CLUSTER_CONFIGS,
    ClusterSettings,
    effective_cluster_settings,
    validate_cluster_configs,
)
from braidlog.configs.definition import ConfigDefinition, ConfigType, InvalidConfig, Synonym, split_list
from braidlog.configs.topic_definitions import CLASSIC, LIGHTNING, TOPIC_CONFIGS, TOPIC_TYPE

__all__ = [
    "CLASSIC",
    "CLUSTER_CONFIGS",
    "LIGHTNING",
    "TOPIC_CONFIGS",
    "TOPIC_TYPE",
    "ClusterSettings",
    "ConfigDefinition",
    "ConfigType",
    "InvalidConfig",
    "Synonym",
    "TopicSettings",
    "apply_changes",
    "effective_cluster_settings",
    "effective_settings",
    "validate_cluster_configs",
    "validate_topic_configs",
]

SET, DELETE, APPEND, SUBTRACT = range(4)
"""Kafka's config operations."""

_DEFINITIONS = {**CLUSTER_CONFIGS, **TOPIC_CONFIGS}


class Change(Protocol):
    """A change of one config.

    `value` None removes the setting (SET) or is not used (DELETE).
    """

    @property
    def name(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def value(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The effective settings of a topic. A retention of -1 means no limit."""

    topic_type: str
    cleanup_policy: frozenset[str]
    retention_ms: int
    retention_bytes: int
    max_message_bytes: int
    message_timestamp_type: str
    """CreateTime or LogAppendTime."""
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    delete_retention_ms: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    segment_bytes: int
    segment_ms: int
    min_insync_replicas: int

    @property
    def is_lightning(self) -> bool:
        """Whether writes are acknowledged before they are sequenced."""
        return self.topic_type == LIGHTNING

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def expires(self) -> bool:
        """Whether records are removed for their age or for the log's size."""
        return "delete" in self.cleanup_policy

    @property
    def records_deletable(self) -> bool:
        """Whether DeleteRecords may remove records.

        In a topic that is only compacted, that would lose the newest of a key.
        """
        return not self.compacted or self.expires

    @property
    def compression_level(self) -> int | None:
        """The compression level for the codec of `compression_type`.

        None if the codec has no levels, or uses its own default.
        """
        match self.compression_type:
            case "gzip":
                return self.compression_gzip_level if self.compression_gzip_level != -1 else None
            case "lz4":
                return self.compression_lz4_level
            case "zstd":
                return self.compression_zstd_level
            case _:
                return None

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def _effective(definition: ConfigDefinition, configs: Mapping[str, str], cluster_configs: Mapping[str, str]) -> Any:
    if (text := configs.get(definition.name)) is not None:
        return definition.parse(text)
    for synonym in definition.synonyms:
        if (text := cluster_configs.get(synonym.name)) is not None:
            value = CLUSTER_CONFIGS[synonym.name].parse(text)
            # A negative value means "no limit". It is not an amount, and is not scaled.
            return value * synonym.factor if synonym.factor != 1 and value > 0 else value
    return definition.parse(definition.default or "")


def effective_settings(configs: Mapping[str, str], cluster_configs: Mapping[str, str]) -> TopicSettings:
    """Return the effective settings of a topic, from its configs and the cluster's.

    Unknown names are skipped.
    """
    return _settings_of(frozenset(configs.items()), frozenset(cluster_configs.items()))


@lru_cache(maxsize=1024)
def _settings_of(topic_items: frozenset[tuple[str, str]], cluster_items: frozenset[tuple[str, str]]) -> TopicSettings:
    """Make the settings once for all topics that are alike.

    It takes a while, and nearly all are alike.
    """
    configs, cluster_configs = dict(topic_items), dict(cluster_items)

    def value(name: str) -> Any:
        return _effective(TOPIC_CONFIGS[name], configs, cluster_configs)

    return TopicSettings(
        topic_type=value(TOPIC_TYPE),
        cleanup_policy=frozenset(value("cleanup.policy")),
        retention_ms=value("retention.ms"),
        retention_bytes=value("retention.bytes"),
        max_message_bytes=value("max.message.bytes"),
        message_timestamp_type=value("message.timestamp.type"),
        message_timestamp_before_max_ms=value("message.timestamp.before.max.ms"),
        message_timestamp_after_max_ms=value("message.timestamp.after.max.ms"),
        compression_type=value("compression.type"),
        compression_gzip_level=value("compression.gzip.level"),
        compression_lz4_level=value("compression.lz4.level"),
        compression_zstd_level=value("compression.zstd.level"),
        delete_retention_ms=value("delete.retention.ms"),
        min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=value("min.compaction.lag.ms"),
        max_compaction_lag_ms=value("max.compaction.lag.ms"),
        segment_bytes=value("segment.bytes"),
        segment_ms=value("segment.ms"),
        min_insync_replicas=value("min.insync.replicas"),
    )


def validate_topic_configs(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for the first config that a topic cannot have.

    Two configs that contradict each other are refused, too.
    """
    for name, text in configs.items():
        definition = TOPIC_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(
                f"Unknown topic config name: {name}",
                help="DescribeConfigs of any topic lists the names that can be set.",
            )
        definition.parse(text)
    settings = effective_settings(configs, {})
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({settings.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({settings.max_compaction_lag_ms})",
            help="Raise the one or lower the other.",
        )


def apply_changes(
    current: Mapping[str, str],
    changes: Iterable[Change],
    *,
    replace: bool,
    definitions: Mapping[str, ConfigDefinition] = _DEFINITIONS,
) -> dict[str, str]:
    """Return the configs after `changes`, without validating the values.

    `replace` drops every config that is not named. APPEND and SUBTRACT start from the default if the config is not set,
    and raise `InvalidConfig` if it is not a list.
    """
    result = {} if replace else dict(current)
    for change in changes:
        if change.operation == SET and change.value is not None:
            result[change.name] = change.value
        elif change.operation in (SET, DELETE):
            result.pop(change.name, None)
        elif change.operation in (APPEND, SUBTRACT):
            result[change.name] = _changed_list(current if replace else result, change, definitions)
        else:
            raise InvalidConfig(
                f"Unknown config operation {change.operation} for {change.name}",
                help="Operations are SET (0), DELETE (1), APPEND (2) and SUBTRACT (3).",
            )
    return result


def _changed_list(current: Mapping[str, str], change: Change, definitions: Mapping[str, ConfigDefinition]) -> str:
    word = "append to" if change.operation == APPEND else "subtract from"
    definition = definitions.get(change.name)
    if definition is None or definition.type is not ConfigType.LIST:
        raise InvalidConfig(
            f"Can't {word} key {change.name} because its type is not LIST.",
            help="Use SET for configs that are not lists.",
        )
    items = list(split_list(current.get(change.name, definition.default or "")))
    for item in split_list(change.value or ""):
        if change.operation == APPEND and item not in items:
            items.append(item)
        elif change.operation == SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)
