"""The configs of single groups and of client metrics, as Kafka 4.2 has them.

Those of consumer groups have an effect. Share groups, streams groups and client metrics are not offered: their configs
are kept and reported.
"""

from collections.abc import Mapping
from dataclasses import replace

from braidlog.configs.definition import ConfigDefinition, ConfigType, InvalidConfig, by_name
from braidlog.control.groups.settings import GroupSettings

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
INTERVAL_MS = "interval.ms"

_KEPT = "Kept for tools that set it."


def _milliseconds(name: str, default: int, documentation: str, at_least: int, at_most: int) -> ConfigDefinition:
    return ConfigDefinition(name, ConfigType.INT, str(default), documentation, at_least=at_least, at_most=at_most)


GROUP_CONFIGS = by_name(
    _milliseconds(SESSION_TIMEOUT, 45_000, "When a silent member is taken for gone.", 1, 1_800_000),
    _milliseconds(HEARTBEAT_INTERVAL, 5_000, "How often members are heard of.", 1, 600_000),
    ConfigDefinition("share.auto.offset.reset", ConfigType.STRING, "latest", _KEPT),
    _milliseconds("share.heartbeat.interval.ms", 5_000, _KEPT, 5_000, 15_000),
    ConfigDefinition(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        _KEPT,
        one_of=("read_uncommitted", "read_committed"),
    ),
    _milliseconds("share.record.lock.duration.ms", 30_000, _KEPT, 15_000, 60_000),
    _milliseconds("share.session.timeout.ms", 45_000, _KEPT, 45_000, 60_000),
    _milliseconds("streams.heartbeat.interval.ms", 5_000, _KEPT, 5_000, 15_000),
    _milliseconds("streams.initial.rebalance.delay.ms", 3_000, _KEPT, 0, 2**31 - 1),
    ConfigDefinition("streams.num.standby.replicas", ConfigType.INT, "0", _KEPT, at_least=0, at_most=2),
    _milliseconds("streams.session.timeout.ms", 45_000, _KEPT, 45_000, 60_000),
)

CLIENT_METRICS_CONFIGS = by_name(
    ConfigDefinition(INTERVAL_MS, ConfigType.INT, "300000", _KEPT, at_least=100, at_most=3_600_000),
    ConfigDefinition("match", ConfigType.LIST, "", _KEPT),
    ConfigDefinition("metrics", ConfigType.LIST, "", _KEPT),
)


def group_defaults(settings: GroupSettings) -> dict[str, str]:
    """Return the values of a group for which nothing was set."""
    return {
        **{name: definition.default or "" for name, definition in GROUP_CONFIGS.items()},
        SESSION_TIMEOUT: str(settings.consumer_session_timeout_ms),
        HEARTBEAT_INTERVAL: str(settings.consumer_heartbeat_interval_ms),
    }


def with_configs(settings: GroupSettings, configs: Mapping[str, str]) -> GroupSettings:
    """Return the settings of a group for which these configs were set."""
    values = {**group_defaults(settings), **configs}
    return replace(
        settings,
        consumer_session_timeout_ms=int(values[SESSION_TIMEOUT]),
        consumer_heartbeat_interval_ms=int(values[HEARTBEAT_INTERVAL]),
    )


def validate_group_configs(configs: Mapping[str, str], settings: GroupSettings) -> None:
    """Raise `InvalidConfig` for the first config that a group cannot have.

    The bounds are Kafka's, widened if the operator's own setting lies outside of them.
    """
    for name, text in configs.items():
        if name not in GROUP_CONFIGS:
            raise InvalidConfig(f"Unknown group config name: {name}", help="DescribeConfigs of a group lists them.")
        GROUP_CONFIGS[name].parse(text)
    for name, low, high, usual in (
        (SESSION_TIMEOUT, 45_000, 60_000, settings.consumer_session_timeout_ms),
        (HEARTBEAT_INTERVAL, 5_000, 15_000, settings.consumer_heartbeat_interval_ms),
    ):
        value, kind = int(configs.get(name, usual)), name.removeprefix("consumer.")
        if value < min(low, usual):
            raise InvalidConfig(f"{name} must be greater than or equal to group.consumer.min.{kind}", help="Raise it.")
        if value > max(high, usual):
            raise InvalidConfig(f"{name} must be less than or equal to group.consumer.max.{kind}", help="Lower it.")
    merged = {**group_defaults(settings), **configs}
    if int(merged[SESSION_TIMEOUT]) <= int(merged[HEARTBEAT_INTERVAL]):
        raise InvalidConfig(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}", help="Change one of them.")


def validate_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for the first config invalid for client metrics."""
    for name, text in configs.items():
        definition = CLIENT_METRICS_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(
                f"Unknown client metrics configuration: {name}", help="There are interval.ms, match, metrics."
            )
        definition.parse(text)
