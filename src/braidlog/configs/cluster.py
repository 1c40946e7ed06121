"""Configs of the whole cluster: broker-level names that have an effect here.

The control plane keeps them, and they hold for every agent. Kafka reads some (such as `num.partitions`) from a broker's
properties file at startup; here there is no such file, so they can be changed at any time. An agent's own identity is
read-only, and so are the settings that the control plane is started with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from braidlog.configs.definition import ConfigDefinition, ConfigType, InvalidConfig, by_name
from braidlog.configs.topic_definitions import TOPIC_CONFIGS
from braidlog.runtime.limits import PARTITIONS_PER_TOPIC_MAX


def _topic_defaults() -> dict[str, ConfigDefinition]:
    """Return the broker-level names that set the default of a topic config.

    Only the weakest name has a default itself.
    """
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


def _started_with(name: str, default: int, documentation: str) -> ConfigDefinition:
    """Define a setting that the control plane is started with. The default is Kafka's."""
    return ConfigDefinition(
        name, ConfigType.INT, str(default), f"{documentation} Set when the control plane is started.", read_only=True
    )


CONTROL_CONFIG = "braidlog.control"
METRICS_CONFIG = "braidlog.metrics"
UPLOAD_CONFIGS = {
    "braidlog.upload.budget.usd.month": "Money for uploads that start early, for a month.",
    "braidlog.upload.interval.ms": "An object is closed this long after its first record at the latest.",
    "braidlog.upload.size.bytes": "An object is closed at this size.",
    "braidlog.store.price": "The price list for the budget.",
    "braidlog.shards": "How many processes this agent has.",
}
"""The settings of an agent's uploads that a console shows."""


def _own_setting(name: str, documentation: str) -> ConfigDefinition:
    """Define a setting that an agent is started with."""
    return ConfigDefinition(name, ConfigType.STRING, None, documentation, read_only=True)


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
        ConfigDefinition(
            CONTROL_CONFIG,
            ConfigType.STRING,
            None,
            "Where this agent's control plane is. Spark jobs that name an agent find it by this.",
            read_only=True,
        ),
        _own_setting(METRICS_CONFIG, "Where this agent serves its metrics. A console reads them there."),
        *(_own_setting(name, documentation) for name, documentation in UPLOAD_CONFIGS.items()),
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
        _started_with(
            "group.consumer.heartbeat.interval.ms", 5_000, "How often consumer groups' members are heard of."
        ),
        _started_with("group.consumer.session.timeout.ms", 45_000, "When a consumer group's member is taken for gone."),
        _started_with("group.initial.rebalance.delay.ms", 3_000, "How long a new group waits for more members."),
        _started_with("group.max.session.timeout.ms", 1_800_000, "The longest session timeout to ask for."),
        _started_with("group.max.size", 2_147_483_647, "How many members a group may have."),
        _started_with("group.min.session.timeout.ms", 6_000, "The shortest session timeout to ask for."),
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
        _started_with("offset.metadata.max.bytes", 4_096, "How much text a committed offset may carry."),
        _started_with("offsets.retention.minutes", 10_080, "How long the offsets of a group without members are kept."),
        _started_with("transaction.max.timeout.ms", 900_000, "The longest transaction timeout to ask for."),
        _started_with("transactional.id.expiration.ms", 604_800_000, "How long an unused transactional id is kept."),
    ),
}


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster's effective settings, beside those that are topic defaults."""

    auto_create_topics_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    num_partitions: int


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
        num_partitions=number("num.partitions"),
    )


def validate_cluster_configs(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for the first config that cannot be set on the cluster."""
    read_only = sorted(name for name in configs if name in CLUSTER_CONFIGS and CLUSTER_CONFIGS[name].read_only)
    if read_only:
        raise InvalidConfig(
            f"Cannot update these configs dynamically: {', '.join(read_only)}",
            help="They are given when an agent or the control plane is started.",
        )
    for name, value in configs.items():
        definition = CLUSTER_CONFIGS.get(name)
        if definition is None:
            raise InvalidConfig(
                f"Unknown broker config name: {name}",
                help="DescribeConfigs of the broker lists the names that can be set.",
            )
        definition.parse(value)
