"""Configs as clients see them: effective value, source and synonyms.

Synonyms are the other values that the config could have had.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from braidlog.configs.topic import CLUSTER_CONFIGS, TOPIC_CONFIGS, ConfigDefinition, ConfigType
from braidlog.control.groups.config import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from braidlog.runtime.logs import log_level


class ConfigSource(IntEnum):
    """Kafka's numbers for the source of a value."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class SourcedValue:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    definition: ConfigDefinition
    value: str | None
    source: ConfigSource
    synonyms: tuple[SourcedValue, ...]
    """All sources of the value, the effective one first."""


ROOT_LOGGER = "root"
LOG_LEVELS = {
    "FATAL": "critical",
    "ERROR": "error",
    "WARN": "warning",
    "INFO": "info",
    "DEBUG": "debug",
    "TRACE": "debug",
}
"""Kafka's log levels, and the ones used here."""
_LEVEL_NAMES = {ours: kafkas for kafkas, ours in reversed(LOG_LEVELS.items())}

IN_FORCE = {"min.insync.replicas": "1"}
"""Configs that Kafka 4.2 itself sets for the whole cluster."""


def topic_entries(configs: Mapping[str, str], cluster_configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Every topic config, for a topic with these configs of its own."""
    return [_topic_entry(definition, configs, {**IN_FORCE, **cluster_configs}) for definition in TOPIC_CONFIGS.values()]


def _topic_entry(
    definition: ConfigDefinition, configs: Mapping[str, str], cluster_configs: Mapping[str, str]
) -> ConfigEntry:
    synonyms: list[SourcedValue] = []
    value, source = definition.default, ConfigSource.DEFAULT
    for synonym in reversed(definition.synonyms):
        text = cluster_configs.get(synonym.name)
        if text is not None:
            synonyms.insert(0, SourcedValue(synonym.name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER))
            value, source = _scaled(text, synonym.factor), ConfigSource.DYNAMIC_DEFAULT_BROKER
    if (text := configs.get(definition.name)) is not None:
        synonyms.insert(0, SourcedValue(definition.name, text, ConfigSource.TOPIC))
        value, source = text, ConfigSource.TOPIC
    # Of several synonyms, Kafka lists the default of the first one only, and most of those have none.
    name = definition.synonyms[0].name if definition.synonyms else definition.name
    default = CLUSTER_CONFIGS[name].default if definition.synonyms else definition.default
    if default is not None:
        synonyms.append(SourcedValue(name, default, ConfigSource.DEFAULT))
    return ConfigEntry(definition, value, source, tuple(synonyms))


def _scaled(text: str, factor: int) -> str:
    return str(int(text) * factor) if factor != 1 and int(text) > 0 else text


def agent_entries(cluster_configs: Mapping[str, str], facts: Mapping[str, str | None]) -> list[ConfigEntry]:
    """Every broker config of one agent.

    `facts` are the settings that it was started with.
    """
    cluster_configs = {**IN_FORCE, **cluster_configs}
    return [_agent_entry(definition, cluster_configs, facts) for definition in CLUSTER_CONFIGS.values()]


def _agent_entry(
    definition: ConfigDefinition, cluster_configs: Mapping[str, str], facts: Mapping[str, str | None]
) -> ConfigEntry:
    values = (
        (cluster_configs.get(definition.name), ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (_differing(facts.get(definition.name), definition.default), ConfigSource.STATIC_BROKER),
        (definition.default, ConfigSource.DEFAULT),
    )
    synonyms = tuple(SourcedValue(definition.name, text, source) for text, source in values if text is not None)
    if not synonyms:
        return ConfigEntry(definition, None, ConfigSource.DEFAULT, ())
    return ConfigEntry(definition, synonyms[0].value, synonyms[0].source, synonyms)


def _differing(text: str | None, default: str | None) -> str | None:
    return None if text == default else text


def cluster_entries(cluster_configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Only the configs that were set for the whole cluster.

    Kafka lists these for the default broker.
    """
    return [
        ConfigEntry(
            CLUSTER_CONFIGS[name],
            value,
            ConfigSource.DYNAMIC_DEFAULT_BROKER,
            (SourcedValue(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),),
        )
        for name, value in sorted({**IN_FORCE, **cluster_configs}.items())
        if name in CLUSTER_CONFIGS
    ]


def group_entries(configs: Mapping[str, str], defaults: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a group with these configs of its own."""
    entries: list[ConfigEntry] = []
    for name, definition in GROUP_CONFIGS.items():
        source = ConfigSource.GROUP if name in configs else ConfigSource.DEFAULT
        value = SourcedValue(name, configs.get(name, defaults.get(name, definition.default)), source)
        entries.append(ConfigEntry(definition, value.value, source, (value,)))
    return entries


def client_metrics_entries(configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Every config of a subscription to client metrics."""
    entries: list[ConfigEntry] = []
    for name, definition in CLIENT_METRICS_CONFIGS.items():
        if name in configs:
            value = SourcedValue(name, configs[name], ConfigSource.CLIENT_METRICS)
            entries.append(ConfigEntry(definition, value.value, value.source, (value,)))
        else:  # Kafka lists no synonyms for these
            entries.append(ConfigEntry(definition, definition.default, ConfigSource.DEFAULT, ()))
    return entries


def logger_entries() -> list[ConfigEntry]:
    """The one logger of this process."""
    definition = ConfigDefinition(ROOT_LOGGER, ConfigType.UNKNOWN, None, "")
    return [ConfigEntry(definition, _LEVEL_NAMES[log_level()], ConfigSource.BROKER_LOGGER, ())]


def selected(entries: Iterable[ConfigEntry], names: Iterable[str] | None) -> list[ConfigEntry]:
    """The entries that a request names. None, or no names, means all."""
    wanted = frozenset(names or ())
    return [entry for entry in entries if not wanted or entry.definition.name in wanted]
