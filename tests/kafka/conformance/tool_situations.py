"""The table's second part: what Kafka's command-line tools and consoles ask for."""

from kio.schema.errors import ErrorCode as E
from tests.kafka.conformance.situations import (
    BROKER_KIND,
    DELETE_RECORDS,
    DESCRIBE_CONFIGS,
    DESCRIBE_PARTITIONS,
    GROUP_KIND,
    HOME,
    INCREMENTAL_ALTER,
    LOGGER_KIND,
    METADATA,
    METRICS_KIND,
    NAME,
    TIMEOUT,
    TOPIC,
    Situation,
    describe_configs,
    incremental,
)
from tests.kafka.conformance.wire import Part, part

WRITE_MARKERS, ALTER_LOG_DIRS, DESCRIBE_QUORUM, UPDATE_FEATURES, LIST_RESOURCES = 27, 34, 55, 57, 74
OFFSETS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"

NEWER, LOWER_SAFELY = 1, 2


def update_feature(name: str, level: int, how: int = NEWER) -> Part:
    update = part("FeatureUpdateKey", feature=name, max_version_level=level, upgrade_type=how)
    return part("UpdateFeaturesRequest", timeout=TIMEOUT, feature_updates=[update], validate_only=True)


def quorum(topic: str) -> Part:
    topics = [part("TopicData", topic_name=topic, partitions=[part("PartitionData", partition_index=0)])]
    return part("DescribeQuorumRequest", topics=topics)


def log_dir(path: str, topic: str) -> Part:
    topics = [part("AlterReplicaLogDirTopic", name=topic, partitions=(0,))]
    return part("AlterReplicaLogDirsRequest", dirs=[part("AlterReplicaLogDir", path=path, topics=topics)])


def abort_marker(topic: str, index: int) -> Part:
    """For a producer that has never been heard of."""
    marker = part(
        "WritableTxnMarker",
        producer_id=1 << 40,
        producer_epoch=0,
        transaction_result=False,
        topics=[part("WritableTxnMarkerTopic", name=topic, partition_indexes=(index,))],
        coordinator_epoch=0,
        transaction_version=0,
    )
    return part("WriteTxnMarkersRequest", markers=[marker])


def metadata(topic: str) -> Part:
    topics = [part("MetadataRequestTopic", name=topic, topic_id=None)]
    return part(
        "MetadataRequest",
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


TOOLS = [
    Situation("a feature that has the version already", UPDATE_FEATURES, update_feature("group.version", 1), {
        "error_code": E.none, "error_message": None,
    }),
    Situation("a feature's version that there is not", UPDATE_FEATURES, update_feature("group.version", 2), {
        "error_code": E.invalid_update_version,
    }),
    Situation("a lower version of a feature", UPDATE_FEATURES, update_feature("transaction.version", 1), {
        "error_code": E.invalid_update_version,
    }),
    Situation("a version below all", UPDATE_FEATURES, update_feature("group.version", -1), {
        "error_code": E.invalid_update_version,
    }),
    Situation("a feature that there is not", UPDATE_FEATURES, update_feature("no.such", 1), {
        "error_code": E.invalid_update_version,
    }),
    Situation("each feature has its answer", UPDATE_FEATURES, update_feature("group.version", 1), {
        "error_code": E.none, "results.0.feature": "group.version", "results.0.error_code": E.none,
    }, version=1),
    Situation("who keeps the metadata", DESCRIBE_QUORUM, quorum("__cluster_metadata"), {
        "error_code": E.none, "topics.0.partitions.0.error_code": E.none, "topics.0.partitions.0.leader_id": 1,
        "topics.0.partitions.0.current_voters.0.replica_id": 1, "topics.0.partitions.0.current_voters.1": None,
        "topics.0.partitions.0.observers.2": None, "nodes.0.node_id": 1,
    }),
    Situation("a quorum of something else", DESCRIBE_QUORUM, quorum(NAME), {
        "error_code": E.none, "topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("a directory that is not there", ALTER_LOG_DIRS, log_dir("/no/such", TOPIC), {
        "results.0.partitions.0.error_code": E.log_dir_not_found,
    }),
    Situation("an abort of nothing", WRITE_MARKERS, abort_marker(TOPIC, 0), {
        "markers.0.topics.0.partitions.0.error_code": E.none,
    }),
    Situation("an abort in a partition that is not there", WRITE_MARKERS, abort_marker(TOPIC, 9), {
        "markers.0.topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("a broker's values in force", DESCRIBE_CONFIGS, describe_configs(
        BROKER_KIND, HOME, ("group.min.session.timeout.ms",), synonyms=True), {
        "results.0.error_message": "", "results.0.configs.0.value": "6000",
        "results.0.configs.0.config_source": 5, "results.0.configs.0.synonyms.0.value": "6000",
        "results.0.configs.0.read_only": True,
    }),
    Situation("configs of another broker", DESCRIBE_CONFIGS, describe_configs(BROKER_KIND, "9999"), {
        "results.0.error_code": E.invalid_request,
    }),
    Situation("what the cluster sets by itself", DESCRIBE_CONFIGS, describe_configs(
        BROKER_KIND, "", ("min.insync.replicas",)), {"results.0.configs.0.config_source": 3}),
    Situation("configs of a group that never was", DESCRIBE_CONFIGS, describe_configs(
        GROUP_KIND, NAME, ("consumer.session.timeout.ms",), synonyms=True), {
        "results.0.error_code": E.none, "results.0.configs.0.value": "45000", "results.0.configs.0.config_source": 5,
        "results.0.configs.0.synonyms.0.source": 5,
    }),
    Situation("configs of no group", DESCRIBE_CONFIGS, describe_configs(GROUP_KIND, ""), {
        "results.0.error_code": E.invalid_request, "results.0.error_message": "Group name must not be empty",
    }),
    Situation("a group's config", INCREMENTAL_ALTER, incremental(
        GROUP_KIND, NAME, ("consumer.session.timeout.ms", 0, "50000")), {"responses.0.error_code": E.none}),
    *(
        Situation(f"a group's config: {what}", INCREMENTAL_ALTER, incremental(GROUP_KIND, NAME, (name, 0, value)), {
            "responses.0.error_code": E.invalid_config, "responses.0.error_message": message,
        })
        for what, name, value, message in (
            ("unknown", "no.such", "1", "Unknown group config name: no.such"),
            ("no number", "consumer.session.timeout.ms", "x",
             "Invalid value x for configuration consumer.session.timeout.ms: Not a number of type INT"),
            ("too short", "consumer.session.timeout.ms", "5", "consumer.session.timeout.ms must be greater than or "
             "equal to group.consumer.min.session.timeout.ms"),
            ("too long", "consumer.heartbeat.interval.ms", "49000", "consumer.heartbeat.interval.ms must be less than "
             "or equal to group.consumer.max.heartbeat.interval.ms"),
        )
    ),
    Situation("a config of no group", INCREMENTAL_ALTER, incremental(
        GROUP_KIND, "", ("consumer.session.timeout.ms", 0, "50000")), {
        "responses.0.error_code": E.invalid_request,
        "responses.0.error_message": "Default group resources are not allowed.",
    }),
    Situation("configs of client metrics", DESCRIBE_CONFIGS, describe_configs(
        METRICS_KIND, NAME, ("interval.ms",), synonyms=True), {
        "results.0.error_code": E.none, "results.0.configs.0.value": "300000", "results.0.configs.0.config_source": 5,
        "results.0.configs.0.synonyms": (),
    }),
    Situation("a config of client metrics", INCREMENTAL_ALTER, incremental(
        METRICS_KIND, NAME, ("interval.ms", 0, "5000")), {"responses.0.error_code": E.none}),
    *(
        Situation(f"a config of client metrics: {what}", INCREMENTAL_ALTER, incremental(
            METRICS_KIND, name, (key, 0, value)), {"responses.0.error_code": E.invalid_request})
        for what, name, key, value in (
            ("unknown", NAME, "no.such", "1"), ("too often", NAME, "interval.ms", "5"), ("of none", "", "match", "a"),
        )
    ),
    Situation("a broker's loggers", DESCRIBE_CONFIGS, describe_configs(LOGGER_KIND, HOME, ("root",)), {
        "results.0.error_code": E.none, "results.0.configs.0.value": "INFO", "results.0.configs.0.config_source": 6,
        "results.0.configs.0.config_type": 0, "results.0.configs.0.documentation": "",
    }),
    Situation("loggers of another broker", DESCRIBE_CONFIGS, describe_configs(LOGGER_KIND, "9999"), {
        "results.0.error_code": E.invalid_request,
    }),
    Situation("loggers of no broker", DESCRIBE_CONFIGS, describe_configs(LOGGER_KIND, ""), {
        "results.0.error_code": E.invalid_request, "results.0.error_message": "Broker id must not be empty",
    }),
    Situation("a logger's level", INCREMENTAL_ALTER, incremental(LOGGER_KIND, HOME, ("root", 0, "INFO")), {
        "responses.0.error_code": E.none,
    }),
    *(
        Situation(f"a logger's level: {what}", INCREMENTAL_ALTER, incremental(LOGGER_KIND, broker, change), {
            "responses.0.error_code": code,
        })
        for what, broker, change, code in (
            ("no such logger", HOME, ("no.such", 0, "INFO"), E.invalid_config),
            ("no such level", HOME, ("root", 0, "LOUD"), E.invalid_config),
            ("appended", HOME, ("root", 2, "INFO"), E.invalid_request),
            ("of another broker", "9999", ("root", 0, "INFO"), E.invalid_request),
            ("of no broker", "one", ("root", 0, "INFO"), E.invalid_request),
        )
    ),
    Situation("resources that there are not", LIST_RESOURCES, part(
        "ListConfigResourcesRequest", resource_types=(3,)), {"error_code": E.unsupported_version}),
    Situation("brokers that have loggers", LIST_RESOURCES, part(
        "ListConfigResourcesRequest", resource_types=(LOGGER_KIND,)), {
        "error_code": E.none, "config_resources.2.resource_type": LOGGER_KIND, "config_resources.3": None,
    }),
    *(
        Situation(f"{topic} in the metadata", METADATA, metadata(topic), {
            "topics.0.error_code": E.none, "topics.0.is_internal": True, "topics.0.partitions.0.error_code": E.none,
        })
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
    ),
    Situation("a topic that is not internal", METADATA, metadata(TOPIC), {"topics.0.is_internal": False}),
    Situation("partitions of an internal topic", DESCRIBE_PARTITIONS, part(
        "DescribeTopicPartitionsRequest", topics=[part("TopicRequest", name=OFFSETS_TOPIC)]), {
        "topics.0.error_code": E.none, "topics.0.is_internal": True,
    }),
    Situation("deleting records of an internal topic", DELETE_RECORDS, part("DeleteRecordsRequest", topics=[
        part("DeleteRecordsTopic", name=OFFSETS_TOPIC, partitions=[
            part("DeleteRecordsPartition", partition_index=0, offset=0)])], timeout=TIMEOUT), {
        "topics.0.partitions.0.error_code": E.invalid_topic_exception,
    }),
]  # fmt: skip
