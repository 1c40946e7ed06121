"""Configs as clients see them: the value that holds, where it comes from, and what else was in line for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from braidlog.control.topic_config import CLUSTER_CONFIGS, TOPIC_CONFIGS, ConfigDefinition


class ConfigSource(IntEnum):
    """Kafka's numbers."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


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
    """All that could set the value, the one that did first."""


def topic_entries(configs: Mapping[str, str], cluster_configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Every topic config, as it holds for a topic with these configs of its own."""
    return [_topic_entry(definition, configs, cluster_configs) for definition in TOPIC_CONFIGS.values()]


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
    weakest = definition.synonyms[-1].name if definition.synonyms else definition.name
    default = CLUSTER_CONFIGS[weakest].default if definition.synonyms else definition.default
    synonyms.append(SourcedValue(weakest, default, ConfigSource.DEFAULT))
    return ConfigEntry(definition, value, source, tuple(synonyms))


def _scaled(text: str, factor: int) -> str:
    return str(int(text) * factor) if factor != 1 and int(text) > 0 else text


def agent_entries(cluster_configs: Mapping[str, str], facts: Mapping[str, str | None]) -> list[ConfigEntry]:
    """Every broker config, as it holds for one agent. `facts` are what it was started with."""
    entries: list[ConfigEntry] = []
    for definition in CLUSTER_CONFIGS.values():
        synonyms = [SourcedValue(definition.name, definition.default, ConfigSource.DEFAULT)]
        if definition.name in facts:
            synonyms.insert(0, SourcedValue(definition.name, facts[definition.name], ConfigSource.STATIC_BROKER))
        if (text := cluster_configs.get(definition.name)) is not None:
            synonyms.insert(0, SourcedValue(definition.name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER))
        entries.append(ConfigEntry(definition, synonyms[0].value, synonyms[0].source, tuple(synonyms)))
    return entries


def cluster_entries(cluster_configs: Mapping[str, str]) -> list[ConfigEntry]:
    """Only what was set for the whole cluster, as Kafka tells it for the default broker."""
    return [
        ConfigEntry(
            CLUSTER_CONFIGS[name],
            value,
            ConfigSource.DYNAMIC_DEFAULT_BROKER,
            (SourcedValue(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),),
        )
        for name, value in sorted(cluster_configs.items())
        if name in CLUSTER_CONFIGS
    ]


def selected(entries: Iterable[ConfigEntry], names: Iterable[str] | None) -> list[ConfigEntry]:
    """Those that a request asks for by name. None, or no names, asks for all."""
    wanted = frozenset(names or ())
    return [entry for entry in entries if not wanted or entry.definition.name in wanted]
