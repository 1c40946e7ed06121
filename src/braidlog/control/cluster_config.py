"""Configs of the whole cluster: the broker-level names that mean something here, and what they come to.

They are kept by the control plane and hold for every agent. What Kafka reads from a broker's properties file at its
start (`num.partitions`, for one) can be changed at any time here, because there is no such file. Only an agent's own
identity is read-only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from braidlog.control.config_definition import INT_MAX, ConfigDefinition, ConfigType, InvalidConfig, by_name
from braidlog.control.topic_definitions import MINUTE_MS, TOPIC_CONFIGS
from braidlog.runtime.limits import PARTITIONS_PER_TOPIC_MAX


def _topic_defaults() -> dict[str, ConfigDefinition]:
    """The broker-level names that set a topic config's default. Only the weakest of several has a default itself."""
    definitions: dict[str, ConfigDefinition] = {}
    for topic in TOPIC_CONFIGS.values():
        for synonym in topic.synonyms:
            default = topic.default
            if synonym is not topic.synonyms[-1]:
                default = None
            elif synonym.factor != 1:
                default = str(int(topic.default or "0") // synonym.factor)
            definitions[synonym.name] = ConfigDefinition(
                synonym.name,
                topic.type if synonym.factor == 1 else ConfigType.INT,
                default,
                f"Default of the topic config {topic.name}. {topic.documentation}",
                at_least=topic.at_least,
                at_most=topic.at_most,
                one_of=topic.one_of,
                check=topic.check,
            )
    return definitions


CLUSTER_CONFIGS: dict[str, ConfigDefinition] = {
    **_topic_defaults(),
    **by_name(
        ConfigDefinition(
            "advertised.listeners",
            ConfigType.LIST,
            "",
            "Where clients reach this agent.",
            read_only=True,
        ),
        ConfigDefinition(
            "auto.create.topics.enable",
            ConfigType.BOOLEAN,
            "true",
            "Whether a topic that a client asks for and that does not exist is created.",
        ),
        ConfigDefinition("broker.id", ConfigType.INT, "-1", "Number of this agent.", read_only=True),
        ConfigDefinition("broker.rack", ConfigType.STRING, None, "Zone of this agent.", read_only=True),
        ConfigDefinition(
            "default.replication.factor",
            ConfigType.INT,
            "1",
            "Replication factor that is told for topics whose creator named none. Durability is the object store's.",
            at_least=1,
            at_most=2**15 - 1,
        ),
        ConfigDefinition(
            "delete.topic.enable", ConfigType.BOOLEAN, "true", "Whether topics can be deleted by clients."
        ),
        ConfigDefinition(
            "group.initial.rebalance.delay.ms",
            ConfigType.INT,
            "3000",
            "How long a new group waits for further members before its first assignment.",
            at_least=0,
        ),
        ConfigDefinition(
            "group.max.session.timeout.ms",
            ConfigType.INT,
            "1800000",
            "The longest session timeout that a member may ask for.",
            at_least=1,
        ),
        ConfigDefinition(
            "group.max.size",
            ConfigType.INT,
            str(INT_MAX),
            "How many members a group may have.",
            at_least=1,
        ),
        ConfigDefinition(
            "group.min.session.timeout.ms",
            ConfigType.INT,
            "6000",
            "The shortest session timeout that a member may ask for.",
            at_least=1,
        ),
        ConfigDefinition("log.dir", ConfigType.STRING, None, "The object store that holds the data.", read_only=True),
        ConfigDefinition("log.dirs", ConfigType.LIST, None, "The object store that holds the data.", read_only=True),
        ConfigDefinition("node.id", ConfigType.INT, "-1", "Number of this agent.", read_only=True),
        ConfigDefinition(
            "num.partitions",
            ConfigType.INT,
            "1",
            "Partitions of a topic whose creator named no number.",
            at_least=1,
            at_most=PARTITIONS_PER_TOPIC_MAX,
        ),
        ConfigDefinition(
            "offset.metadata.max.bytes",
            ConfigType.INT,
            "4096",
            "How much text a committed offset may carry.",
            at_least=0,
        ),
        ConfigDefinition(
            "offsets.retention.minutes",
            ConfigType.INT,
            "10080",
            "How long the offsets of a group without members are kept.",
            at_least=1,
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster's effective settings, beside those that are topic defaults."""

    auto_create_topics_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    num_partitions: int
    offset_metadata_bytes_max: int
    offsets_retention_ms: int


def effective_cluster_settings(configs: Mapping[str, str]) -> ClusterSettings:
    def number(name: str) -> int:
        definition = CLUSTER_CONFIGS[name]
        return int(definition.parse(configs.get(name) or definition.default or ""))

    def flag(name: str) -> bool:
        definition = CLUSTER_CONFIGS[name]
        return bool(definition.parse(configs.get(name) or definition.default or ""))

    return ClusterSettings(
        auto_create_topics_enable=flag("auto.create.topics.enable"),
        default_replication_factor=number("default.replication.factor"),
        delete_topic_enable=flag("delete.topic.enable"),
        group_initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
        group_max_session_timeout_ms=number("group.max.session.timeout.ms"),
        group_max_size=number("group.max.size"),
        group_min_session_timeout_ms=number("group.min.session.timeout.ms"),
        num_partitions=number("num.partitions"),
        offset_metadata_bytes_max=number("offset.metadata.max.bytes"),
        offsets_retention_ms=number("offsets.retention.minutes") * MINUTE_MS,
    )


def validate_cluster_configs(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for the first config that cannot be set on the cluster."""
    read_only = sorted(name for name in configs if name in CLUSTER_CONFIGS and CLUSTER_CONFIGS[name].read_only)
    if read_only:
        raise InvalidConfig(
            f"Cannot update these configs dynamically: {', '.join(read_only)}",
            help="These are facts about one agent, given when it is started.",
        )
    for name, value in configs.items():
        definition = CLUSTER_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(
                f"Unknown broker config name: {name}",
                help="DescribeConfigs of the broker lists the names that can be set.",
            )
        definition.parse(value)
    settings = effective_cluster_settings(configs)
    if settings.group_min_session_timeout_ms > settings.group_max_session_timeout_ms:
        raise InvalidConfig(
            f"group.min.session.timeout.ms ({settings.group_min_session_timeout_ms}) is above "
            f"group.max.session.timeout.ms ({settings.group_max_session_timeout_ms})",
            help="Raise the one or lower the other.",
        )
