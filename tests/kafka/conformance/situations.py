"""The table: situations that a client can bring about, and what Kafka answers.

A situation is a request and what is expected of the answer, as paths into it: `topics.0.error_code`. `TOPIC` in a
request stands for a topic with two partitions that exists and is empty, `NAME` for a name that nobody uses, and `GROUP`
for a group of no members. `HOME` is the number of the broker that is asked.
"""

from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode as E
from tests.kafka.conformance.wire import Part, ms, part

TOPIC = "\0topic"
NAME = "\0name"
GROUP = "\0group"
HOME = "\0home"

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE_GROUPS, LIST_GROUPS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS = 15, 16, 19, 20, 21
INIT_PRODUCER, EPOCH_END, DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS = 22, 23, 32, 33, 37
DELETE_GROUPS, ELECT_LEADERS, INCREMENTAL_ALTER, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 42, 43, 44, 45, 46
OFFSET_DELETE, DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_CLUSTER = 47, 48, 49, 60
CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE, DESCRIBE_PARTITIONS = 68, 69, 75

TIMEOUT = ms(10_000)
TOPIC_KIND, BROKER_KIND, LOGGER_KIND, METRICS_KIND, GROUP_KIND = 2, 4, 8, 16, 32


@dataclass(frozen=True)
class Situation:
    name: str
    key: int
    request: Part
    expected: dict[str, Any]
    version: int | None = None
    """None: the newest that both sides know."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The settings of `TOPIC`."""


def new_topic(name: str, partitions: int = 1, factor: int = 1, **values: Any) -> Part:
    configs = [part("CreatableTopicConfig", name=key, value=value) for key, value in values.pop("configs", {}).items()]
    return part(
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=values.get("assignments", ()),
        configs=configs,
    )


def create(*topics: Part, **values: Any) -> Part:
    return part("CreateTopicsRequest", topics=topics, timeout=TIMEOUT, **values)


def assigned(*replicas: tuple[int, ...]) -> list[Part]:
    """The replicas of each partition of a new topic."""
    return [
        part("CreatableReplicaAssignment", partition_index=index, broker_ids=ids) for index, ids in enumerate(replicas)
    ]


def grow(name: str, count: int, replicas: tuple[tuple[int, ...], ...] | None = None, **values: Any) -> Part:
    named = None if replicas is None else [part("CreatePartitionsAssignment", broker_ids=ids) for ids in replicas]
    topic = part("CreatePartitionsTopic", name=name, count=count, assignments=named)
    return part("CreatePartitionsRequest", topics=[topic], timeout=TIMEOUT, validate_only=False, **values)


def incremental(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Part:
    configs = [part("AlterableConfig", name=key, config_operation=how, value=value) for key, how, value in changes]
    resource = part("AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    return part("IncrementalAlterConfigsRequest", resources=[resource], validate_only=False)


def describe_configs(kind: int, name: str, keys: tuple[str, ...] | None = None, *, synonyms: bool = False) -> Part:
    resource = part("DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys)
    return part("DescribeConfigsRequest", resources=[resource], include_synonyms=synonyms)


def with_operations(request: str, **values: Any) -> Part:
    flags = ("include_cluster_authorized_operations", "include_topic_authorized_operations")
    return part(request, **values, **dict.fromkeys((*flags, "include_authorized_operations"), True))


def list_offsets(name: str, index: int, timestamp: int) -> Part:
    partition = part("ListOffsetsPartition", partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
    topic = part("ListOffsetsTopic", name=name, partitions=[partition])
    return part("ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=[topic], timeout=TIMEOUT)


def commit(group: str, topic: str, generation: int = -1, member: str = "", *, index: int = 0, text: str = "") -> Part:
    partition = part(
        "OffsetCommitRequestPartition",
        partition_index=index,
        committed_offset=1,
        committed_leader_epoch=-1,
        committed_metadata=text,
    )
    return part(
        "OffsetCommitRequest",
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[part("OffsetCommitRequestTopic", name=topic, partitions=[partition])],
    )


def join(group: str, member: str = "", **values: Any) -> Part:
    return part(
        "JoinGroupRequest",
        **{
            "group_id": group,
            "session_timeout": ms(60_000),
            "rebalance_timeout": TIMEOUT,
            "member_id": member,
            "protocol_type": "consumer",
            "protocols": [part("JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
            **values,
        },
    )


def consumer(group: str, epoch: int = 0, **values: Any) -> Part:
    return part(
        "ConsumerGroupHeartbeatRequest",
        **{
            "group_id": group,
            "member_id": "member-1",
            "member_epoch": epoch,
            "rebalance_timeout": TIMEOUT if epoch == 0 else ms(-1),
            "subscribed_topic_names": (TOPIC,) if epoch == 0 else None,
            "topic_partitions": () if epoch == 0 else None,
            **values,
        },
    )


def elect(topic: str) -> Part:
    partitions = [part("TopicPartitions", topic=topic, partitions=(0,))]
    return part("ElectLeadersRequest", election_type=0, timeout=TIMEOUT, topic_partitions=partitions)


def move(topic: str, replicas: tuple[int, ...] | None) -> Part:
    partition = part("ReassignablePartition", partition_index=0, replicas=replicas)
    moved = part("ReassignableTopic", name=topic, partitions=[partition])
    return part("AlterPartitionReassignmentsRequest", timeout=TIMEOUT, topics=[moved])


def quota(entity: dict[str, str | None], **ops: float | None) -> Part:
    entry = part(
        "EntryData",
        entity=[part("EntityData", entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[part("OpData", key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
    )
    return part("AlterClientQuotasRequest", entries=[entry], validate_only=True)


EVERY_TOPIC_OPERATION, EVERY_GROUP_OPERATION, EVERY_CLUSTER_OPERATION = 3576, 3400, 8096
OPERATIONS_UNKNOWN = -(2**31)

TOPICS = [
    Situation("what may be done with a topic", METADATA, with_operations("MetadataRequest", topics=[
        part("MetadataRequestTopic", name=TOPIC, topic_id=None),
        part("MetadataRequestTopic", name=NAME, topic_id=None)], allow_auto_topic_creation=False), {
        "topics.0.topic_authorized_operations": EVERY_TOPIC_OPERATION,
        "topics.1.topic_authorized_operations": EVERY_TOPIC_OPERATION,
    }),
    Situation("what may be done with a topic is not asked", METADATA, part("MetadataRequest", topics=[
        part("MetadataRequestTopic", name=TOPIC, topic_id=None)], allow_auto_topic_creation=False,
        include_topic_authorized_operations=False), {
        "topics.0.topic_authorized_operations": OPERATIONS_UNKNOWN,
    }),
    Situation("what may be done with the cluster", METADATA, with_operations(
        "MetadataRequest", topics=(), allow_auto_topic_creation=False), {
        "cluster_authorized_operations": EVERY_CLUSTER_OPERATION,
    }, version=10),
    Situation("what may be done with the cluster, asked for itself", DESCRIBE_CLUSTER, with_operations(
        "DescribeClusterRequest", endpoint_type=1, include_fenced_brokers=False), {
        "cluster_authorized_operations": EVERY_CLUSTER_OPERATION,
    }),
    Situation("what may be done with a topic that is not there", DESCRIBE_PARTITIONS, part(
        "DescribeTopicPartitionsRequest", topics=[part("TopicRequest", name=NAME)]), {
        "topics.0.topic_authorized_operations": EVERY_TOPIC_OPERATION,
    }),
    Situation("a topic is created", CREATE_TOPICS, create(new_topic(NAME, 3)), {
        "topics.0.error_code": E.none, "topics.0.num_partitions": 3, "topics.0.replication_factor": 1,
    }),
    Situation("a topic with default numbers", CREATE_TOPICS, create(new_topic(NAME, -1, -1)), {
        "topics.0.error_code": E.none,
    }),
    Situation("a topic that exists", CREATE_TOPICS, create(new_topic(TOPIC)), {
        "topics.0.error_code": E.topic_already_exists,
    }),
    Situation("a topic twice in a request", CREATE_TOPICS, create(new_topic(NAME), new_topic(NAME)), {
        "topics.0.error_code": E.invalid_request,
    }),
    Situation("no partitions", CREATE_TOPICS, create(new_topic(NAME, 0)), {
        "topics.0.error_code": E.invalid_partitions,
    }),
    Situation("no replicas", CREATE_TOPICS, create(new_topic(NAME, 1, 0)), {
        "topics.0.error_code": E.invalid_replication_factor,
    }),
    Situation("a name with a slash", CREATE_TOPICS, create(new_topic("a/b")), {
        "topics.0.error_code": E.invalid_topic_exception,
    }),
    Situation("an empty name", CREATE_TOPICS, create(new_topic("")), {
        "topics.0.error_code": E.invalid_topic_exception,
    }),
    Situation("two dots as a name", CREATE_TOPICS, create(new_topic("..")), {
        "topics.0.error_code": E.invalid_topic_exception,
    }),
    Situation("a name of 250 characters", CREATE_TOPICS, create(new_topic("x" * 250)), {
        "topics.0.error_code": E.invalid_topic_exception,
    }),
    Situation("an unknown config", CREATE_TOPICS, create(new_topic(NAME, configs={"no.such": "1"})), {
        "topics.0.error_code": E.invalid_config,
    }),
    Situation("a config with a bad value", CREATE_TOPICS, create(new_topic(NAME, configs={"retention.ms": "soon"})), {
        "topics.0.error_code": E.invalid_config,
    }),
    Situation("a validation only", CREATE_TOPICS, create(new_topic(NAME), validate_only=True), {
        "topics.0.error_code": E.none,
    }),
    Situation("replicas by hand", CREATE_TOPICS, create(
        new_topic(NAME, -1, -1, assignments=assigned((1, 2), (2, 3)))), {
        "topics.0.error_code": E.none, "topics.0.num_partitions": 2, "topics.0.replication_factor": 2,
    }),
    Situation("replicas on a broker that is not there", CREATE_TOPICS, create(
        new_topic(NAME, -1, -1, assignments=assigned((1, 9999)))), {
        "topics.0.error_code": E.invalid_replica_assignment, "topics.0.error_message":
        "The manual partition assignment includes broker 9999, but no such broker is registered.",
    }),
    Situation("replicas twice on a broker", CREATE_TOPICS, create(
        new_topic(NAME, -1, -1, assignments=assigned((1, 1)))), {
        "topics.0.error_code": E.invalid_replica_assignment, "topics.0.error_message":
        "The manual partition assignment includes the broker 1 more than once.",
    }),
    Situation("more replicas here than there", CREATE_TOPICS, create(
        new_topic(NAME, -1, -1, assignments=assigned((1, 2), (1,)))), {
        "topics.0.error_code": E.invalid_replica_assignment,
    }),
    Situation("no replicas by hand", CREATE_TOPICS, create(new_topic(NAME, -1, -1, assignments=assigned(()))), {
        "topics.0.error_code": E.invalid_replica_assignment,
    }),
    Situation("replicas by hand, and how many partitions", CREATE_TOPICS, create(
        new_topic(NAME, 1, -1, assignments=assigned((1,)))), {
        "topics.0.error_code": E.invalid_request, "topics.0.error_message":
        "A manual partition assignment was specified, but numPartitions was not set to -1.",
    }),
    Situation("new partitions by hand", CREATE_PARTITIONS, grow(TOPIC, 4, ((1,), (2,))), {
        "results.0.error_code": E.none,
    }),
    *(
        Situation(f"new partitions with {what}", CREATE_PARTITIONS, grow(TOPIC, 4, wrong), {
            "results.0.error_code": E.invalid_replica_assignment,
        })
        for what, wrong in {
            "too few assignments": ((1,),), "too many assignments": ((1,),) * 3, "no assignments": (),
            "a broker that is not there": ((1,), (9999,)), "too many replicas": ((1, 2), (1, 2)),
            "no replicas": ((), ()),
        }.items()
    ),
    Situation("growing to more", CREATE_PARTITIONS, grow(TOPIC, 4), {"results.0.error_code": E.none}),
    Situation("growing to as many", CREATE_PARTITIONS, grow(TOPIC, 2), {
        "results.0.error_code": E.invalid_partitions,
    }),
    Situation("shrinking", CREATE_PARTITIONS, grow(TOPIC, 1), {"results.0.error_code": E.invalid_partitions}),
    Situation("growing what is not there", CREATE_PARTITIONS, grow(NAME, 4), {
        "results.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("deleting", DELETE_TOPICS, part("DeleteTopicsRequest", topics=[
        part("DeleteTopicState", name=TOPIC, topic_id=None)], timeout=TIMEOUT), {"responses.0.error_code": E.none}),
    Situation("deleting what is not there", DELETE_TOPICS, part("DeleteTopicsRequest", topics=[
        part("DeleteTopicState", name=NAME, topic_id=None)], timeout=TIMEOUT), {
        "responses.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("metadata of a name that is not there", METADATA, part("MetadataRequest", topics=[
        part("MetadataRequestTopic", name=NAME, topic_id=None)], allow_auto_topic_creation=False,
        include_topic_authorized_operations=False), {"topics.0.error_code": E.unknown_topic_or_partition}),
    Situation("metadata of a bad name", METADATA, part("MetadataRequest", topics=[
        part("MetadataRequestTopic", name="a/b", topic_id=None)], allow_auto_topic_creation=True,
        include_topic_authorized_operations=False), {"topics.0.error_code": E.invalid_topic_exception}),
    Situation("partitions of a topic that is not there", DESCRIBE_PARTITIONS, part(
        "DescribeTopicPartitionsRequest", topics=[part("TopicRequest", name=NAME)]), {
        "topics.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("partitions of a topic", DESCRIBE_PARTITIONS, part(
        "DescribeTopicPartitionsRequest", topics=[part("TopicRequest", name=TOPIC)]), {
        "topics.0.error_code": E.none, "topics.0.partitions.1.partition_index": 1,
        "topics.0.partitions.0.eligible_leader_replicas": (), "topics.0.partitions.0.last_known_elr": (),
        "topics.0.partitions.0.offline_replicas": (), "next_cursor": None,
    }),
    Situation("deleting records past the end", DELETE_RECORDS, part("DeleteRecordsRequest", timeout=TIMEOUT, topics=[
        part("DeleteRecordsTopic", name=TOPIC, partitions=[
            part("DeleteRecordsPartition", partition_index=0, offset=5)])]), {
        "topics.0.partitions.0.error_code": E.offset_out_of_range,
    }),
    Situation("deleting records of a partition that is not there", DELETE_RECORDS, part(
        "DeleteRecordsRequest", timeout=TIMEOUT, topics=[part("DeleteRecordsTopic", name=TOPIC, partitions=[
            part("DeleteRecordsPartition", partition_index=7, offset=0)])]), {
        "topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("deleting records of a compacted topic", DELETE_RECORDS, part(
        "DeleteRecordsRequest", timeout=TIMEOUT, topics=[part("DeleteRecordsTopic", name=TOPIC, partitions=[
            part("DeleteRecordsPartition", partition_index=0, offset=0)])]), {
        "topics.0.partitions.0.error_code": E.policy_violation,
    }, settings={"cleanup_policy": "compact"}),
]  # fmt: skip

CONFIGS = [
    Situation("configs of a topic", DESCRIBE_CONFIGS, describe_configs(2, TOPIC, ("retention.ms",)), {
        "results.0.error_code": E.none, "results.0.configs.0.name": "retention.ms",
        "results.0.configs.0.value": "604800000", "results.0.configs.0.config_source": 5,
    }),
    Situation("configs of a topic that is not there", DESCRIBE_CONFIGS, describe_configs(2, NAME), {
        "results.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("configs of a bad name", DESCRIBE_CONFIGS, describe_configs(2, "a/b"), {
        "results.0.error_code": E.invalid_topic_exception,
    }),
    Situation("configs of a broker with a name that is no number", DESCRIBE_CONFIGS, describe_configs(4, "one"), {
        "results.0.error_code": E.invalid_request,
    }),
    Situation("setting a config", INCREMENTAL_ALTER, incremental(2, TOPIC, ("retention.ms", 0, "1000")), {
        "responses.0.error_code": E.none,
    }),
    Situation("a config that is not known", INCREMENTAL_ALTER, incremental(2, TOPIC, ("no.such", 0, "1")), {
        "responses.0.error_code": E.invalid_config,
    }),
    Situation("a config with a bad value", INCREMENTAL_ALTER, incremental(2, TOPIC, ("retention.ms", 0, "x")), {
        "responses.0.error_code": E.invalid_config,
    }),
    Situation("a config set to null", INCREMENTAL_ALTER, incremental(2, TOPIC, ("retention.ms", 0, None)), {
        "responses.0.error_code": E.invalid_request,
    }),
    Situation("appending to what is no list", INCREMENTAL_ALTER, incremental(2, TOPIC, ("retention.ms", 2, "1")), {
        "responses.0.error_code": E.invalid_config,
    }),
    Situation("appending to a list", INCREMENTAL_ALTER, incremental(2, TOPIC, ("cleanup.policy", 2, "compact")), {
        "responses.0.error_code": E.none,
    }),
    Situation("a config twice", INCREMENTAL_ALTER, incremental(
        2, TOPIC, ("retention.ms", 0, "1"), ("retention.ms", 0, "2")), {"responses.0.error_code": E.invalid_request}),
    Situation("a config of a topic that is not there", INCREMENTAL_ALTER, incremental(
        2, NAME, ("retention.ms", 0, "1")), {"responses.0.error_code": E.unknown_topic_or_partition}),
]  # fmt: skip

OFFSETS = [
    Situation("the latest offset of an empty log", LIST_OFFSETS, list_offsets(TOPIC, 0, -1), {
        "topics.0.partitions.0.error_code": E.none, "topics.0.partitions.0.offset": 0,
    }),
    Situation("the earliest offset of an empty log", LIST_OFFSETS, list_offsets(TOPIC, 0, -2), {
        "topics.0.partitions.0.error_code": E.none, "topics.0.partitions.0.offset": 0,
    }),
    Situation("the largest timestamp of an empty log", LIST_OFFSETS, list_offsets(TOPIC, 0, -3), {
        "topics.0.partitions.0.error_code": E.none, "topics.0.partitions.0.offset": -1,
    }),
    Situation("an offset by time in an empty log", LIST_OFFSETS, list_offsets(TOPIC, 0, 1000), {
        "topics.0.partitions.0.error_code": E.none, "topics.0.partitions.0.offset": -1,
    }),
    Situation("offsets of a partition that is not there", LIST_OFFSETS, list_offsets(TOPIC, 9, -1), {
        "topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("offsets of a topic that is not there", LIST_OFFSETS, list_offsets(NAME, 0, -1), {
        "topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("the end of the first leader epoch", EPOCH_END, part("OffsetForLeaderEpochRequest", topics=[
        part("OffsetForLeaderTopic", topic=TOPIC, partitions=[part(
            "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0)])]), {
        "topics.0.partitions.0.error_code": E.none, "topics.0.partitions.0.end_offset": 0,
    }),
    Situation("the end of an epoch of a topic that is not there", EPOCH_END, part(
        "OffsetForLeaderEpochRequest", topics=[part("OffsetForLeaderTopic", topic=NAME, partitions=[part(
            "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0)])]), {
        "topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
]  # fmt: skip

GROUPS = [
    Situation("a commit from outside any group", OFFSET_COMMIT, commit(GROUP, TOPIC), {
        "topics.0.partitions.0.error_code": E.none,
    }, version=9),
    Situation("a commit for a topic that is not there", OFFSET_COMMIT, commit(GROUP, NAME), {
        "topics.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }, version=9),
    Situation("a commit with too much text", OFFSET_COMMIT, commit(GROUP, TOPIC, text="x" * 5000), {
        "topics.0.partitions.0.error_code": E.offset_metadata_too_large,
    }, version=9),
    Situation("a commit of a generation that never was", OFFSET_COMMIT, commit(GROUP, TOPIC, 5, "member"), {
        "topics.0.partitions.0.error_code": E.illegal_generation,
    }, version=8),
    Situation("offsets of a group that never was", OFFSET_FETCH, part("OffsetFetchRequest", groups=[
        part("OffsetFetchRequestGroup", group_id=NAME, topics=[
            part("OffsetFetchRequestTopics", name=TOPIC, partition_indexes=(0,))])], require_stable=False), {
        "groups.0.error_code": E.none, "groups.0.topics.0.partitions.0.committed_offset": -1,
    }, version=8),
    Situation("a first join gets an id", JOIN, join(NAME), {"error_code": E.member_id_required}, version=5),
    Situation("a join with an id that nobody gave", JOIN, join(NAME, "stranger"), {
        "error_code": E.unknown_member_id,
    }, version=5),
    Situation("a join without a group", JOIN, join(""), {"error_code": E.invalid_group_id}, version=5),
    Situation("a join with a session of no time", JOIN, join(NAME, session_timeout=ms(1)), {
        "error_code": E.invalid_session_timeout,
    }, version=5),
    Situation("a join without protocols", JOIN, join(NAME, protocols=()), {
        "error_code": E.inconsistent_group_protocol,
    }, version=5),
    Situation("a heartbeat of a stranger", HEARTBEAT, part(
        "HeartbeatRequest", group_id=NAME, generation_id=1, member_id="m"), {"error_code": E.unknown_member_id}),
    Situation("a sync of a stranger", SYNC, part(
        "SyncGroupRequest", group_id=NAME, generation_id=1, member_id="m", protocol_type="consumer",
        protocol_name="range", assignments=()), {"error_code": E.unknown_member_id}),
    Situation("a stranger leaves", LEAVE, part("LeaveGroupRequest", group_id=NAME, members=[
        part("MemberIdentity", member_id="m", group_instance_id=None)]), {
        "error_code": E.none, "members.0.error_code": E.unknown_member_id,
    }),
    Situation("a group that never was, described", DESCRIBE_GROUPS, part(
        "DescribeGroupsRequest", groups=(NAME,), include_authorized_operations=False), {
        "groups.0.error_code": E.group_id_not_found, "groups.0.group_state": "Dead",
    }, version=6),
    Situation("the same to an older client", DESCRIBE_GROUPS, part(
        "DescribeGroupsRequest", groups=(NAME,), include_authorized_operations=False), {
        "groups.0.error_code": E.none, "groups.0.group_state": "Dead",
    }, version=5),
    Situation("deleting a group that never was", DELETE_GROUPS, part("DeleteGroupsRequest", groups_names=(NAME,)), {
        "results.0.error_code": E.group_id_not_found,
    }),
    Situation("deleting offsets of a group that never was", OFFSET_DELETE, part(
        "OffsetDeleteRequest", group_id=NAME, topics=[part("OffsetDeleteRequestTopic", name=TOPIC, partitions=[
            part("OffsetDeleteRequestPartition", partition_index=0)])]), {"error_code": E.group_id_not_found}),
    Situation("the coordinator of a group", FIND_COORDINATOR, part(
        "FindCoordinatorRequest", key_type=0, coordinator_keys=(NAME,)), {"coordinators.0.error_code": E.none}),
    Situation("the coordinator of something else", FIND_COORDINATOR, part(
        "FindCoordinatorRequest", key_type=9, coordinator_keys=(NAME,)), {
        "coordinators.0.error_code": E.invalid_request,
    }),
]  # fmt: skip

GROUPS += [
    Situation("what may be done with a group that never was", DESCRIBE_GROUPS, with_operations(
        "DescribeGroupsRequest", groups=(NAME,)), {"groups.0.authorized_operations": OPERATIONS_UNKNOWN}, version=6),
    Situation("what may be done with a group that is dead", DESCRIBE_GROUPS, with_operations(
        "DescribeGroupsRequest", groups=(NAME,)), {"groups.0.authorized_operations": EVERY_GROUP_OPERATION},
        version=5),
    Situation("a session just too short", JOIN, join(NAME, session_timeout=ms(5_999)), {
        "error_code": E.invalid_session_timeout,
    }),
    Situation("the shortest session", JOIN, join(NAME, session_timeout=ms(6_000)), {
        "error_code": E.member_id_required,
    }),
]  # fmt: skip

CONFIGS += [
    Situation("no error has no message", DESCRIBE_CONFIGS, describe_configs(TOPIC_KIND, TOPIC, ("no.such",)), {
        "results.0.error_code": E.none, "results.0.error_message": "", "results.0.configs": (),
    }),
    Situation("a config that the cluster sets by itself", DESCRIBE_CONFIGS, describe_configs(
        TOPIC_KIND, TOPIC, ("min.insync.replicas",), synonyms=True), {
        "results.0.configs.0.config_source": 3, "results.0.configs.0.value": "1",
        "results.0.configs.0.synonyms.0.source": 3, "results.0.configs.0.synonyms.1.source": 5,
    }),
    Situation("a config that several others set", DESCRIBE_CONFIGS, describe_configs(
        TOPIC_KIND, TOPIC, ("retention.ms",), synonyms=True), {
        "results.0.configs.0.config_source": 5, "results.0.configs.0.synonyms": (),
    }),
    Situation("a config that another sets", DESCRIBE_CONFIGS, describe_configs(
        TOPIC_KIND, TOPIC, ("max.message.bytes",), synonyms=True), {
        "results.0.configs.0.synonyms.0.name": "message.max.bytes",
        "results.0.configs.0.synonyms.0.source": 5, "results.0.configs.0.synonyms.1": None,
    }),
]  # fmt: skip

CONSUMER_GROUPS = [
    Situation("a subscription by name and by pattern", CONSUMER_HEARTBEAT, consumer(
        NAME, subscribed_topic_regex="nothing-.*"), {
        "error_code": E.none, "member_epoch": 1, "assignment.topic_partitions.0.partitions": (0, 1),
    }),
    Situation("a subscription to nothing and by pattern", CONSUMER_HEARTBEAT, consumer(
        NAME, subscribed_topic_names=(), subscribed_topic_regex="nothing-.*"), {
        "error_code": E.none, "member_epoch": 1, "assignment.topic_partitions": (),
    }),
    Situation("no time for rebalances", CONSUMER_HEARTBEAT, consumer(NAME, rebalance_timeout=ms(0)), {
        "error_code": E.none, "member_epoch": 1,
    }),
    Situation("a member joins", CONSUMER_HEARTBEAT, consumer(NAME), {
        "error_code": E.none, "member_id": "member-1", "member_epoch": 1,
    }),
    Situation("a member without an id", CONSUMER_HEARTBEAT, consumer(NAME, member_id=""), {
        "error_code": E.invalid_request,
    }, version=1),
    Situation("an older member without an id gets one", CONSUMER_HEARTBEAT, consumer(NAME, member_id=""), {
        "error_code": E.none, "member_epoch": 1,
    }, version=0),
    Situation("no group", CONSUMER_HEARTBEAT, consumer(""), {"error_code": E.invalid_request}),
    Situation("joining with partitions", CONSUMER_HEARTBEAT, consumer(NAME, topic_partitions=[
        part("TopicPartitions", topic_id=None, partitions=(0,))]), {"error_code": E.invalid_request}),
    Situation("joining without a subscription", CONSUMER_HEARTBEAT, consumer(NAME, subscribed_topic_names=None), {
        "error_code": E.invalid_request,
    }),
    Situation("joining without a timeout", CONSUMER_HEARTBEAT, consumer(NAME, rebalance_timeout=ms(-1)), {
        "error_code": E.invalid_request,
    }),
    Situation("an epoch below all", CONSUMER_HEARTBEAT, consumer(NAME, -3), {"error_code": E.invalid_request}),
    Situation("leaving for a moment without being static", CONSUMER_HEARTBEAT, consumer(NAME, -2), {
        "error_code": E.invalid_request,
    }),
    Situation("an assignor that is not there", CONSUMER_HEARTBEAT, consumer(NAME, server_assignor="best"), {
        "error_code": E.unsupported_assignor,
    }),
    Situation("a pattern that is none", CONSUMER_HEARTBEAT, consumer(
        NAME, subscribed_topic_names=None, subscribed_topic_regex="("), {"error_code": E.invalid_regular_expression}),
    Situation("a heartbeat to a group that never was", CONSUMER_HEARTBEAT, consumer(NAME, 5), {
        "error_code": E.group_id_not_found,
    }),
    Situation("leaving a group that never was", CONSUMER_HEARTBEAT, consumer(NAME, -1), {
        "error_code": E.group_id_not_found,
    }),
    Situation("describing a group that never was", CONSUMER_DESCRIBE, part(
        "ConsumerGroupDescribeRequest", group_ids=(NAME,), include_authorized_operations=False), {
        "groups.0.error_code": E.group_id_not_found,
    }),
]  # fmt: skip

CLUSTER = [
    Situation("a quota for a user and a client", ALTER_QUOTAS, quota(
        {"user": "u", "client-id": "c"}, producer_byte_rate=1000.0), {"entries.0.error_code": E.none}),
    Situation("a quota for all clients", ALTER_QUOTAS, quota({"client-id": None}, consumer_byte_rate=1000.0), {
        "entries.0.error_code": E.none,
    }),
    Situation("a quota that is not known", ALTER_QUOTAS, quota({"user": "u"}, speed=1.0), {
        "entries.0.error_code": E.invalid_request,
    }),
    Situation("a quota of nothing", ALTER_QUOTAS, quota({"user": "u"}, producer_byte_rate=-1.0), {
        "entries.0.error_code": E.invalid_request,
    }),
    Situation("a quota of an unknown entity", ALTER_QUOTAS, quota({"planet": "mars"}, producer_byte_rate=1.0), {
        "entries.0.error_code": E.invalid_request,
    }),
    Situation("a quota filter with a type twice", DESCRIBE_QUOTAS, part("DescribeClientQuotasRequest", components=[
        part("ComponentData", entity_type="user", match_type=2, match=None)] * 2, strict=False), {
        "error_code": E.invalid_request,
    }),
    Situation("a quota filter with an unknown type", DESCRIBE_QUOTAS, part(
        "DescribeClientQuotasRequest", components=[
            part("ComponentData", entity_type="planet", match_type=2, match=None)], strict=False), {
        "error_code": E.unsupported_version,
    }),
    Situation("an election that is not needed", ELECT_LEADERS, elect(TOPIC), {
        "replica_election_results.0.partition_result.0.error_code": E.election_not_needed,
    }),
    Situation("an election where nothing is", ELECT_LEADERS, elect(NAME), {
        "replica_election_results.0.partition_result.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("cancelling a move that is not under way", ALTER_REASSIGNMENTS, move(TOPIC, None), {
        "responses.0.partitions.0.error_code": E.no_reassignment_in_progress,
    }),
    Situation("moving to a broker that is not there", ALTER_REASSIGNMENTS, move(TOPIC, (9999,)), {
        "responses.0.partitions.0.error_code": E.invalid_replica_assignment,
    }),
    Situation("moving to no broker", ALTER_REASSIGNMENTS, move(TOPIC, ()), {
        "responses.0.partitions.0.error_code": E.invalid_replica_assignment,
    }),
    Situation("moving what is not there", ALTER_REASSIGNMENTS, move(NAME, (1,)), {
        "responses.0.partitions.0.error_code": E.unknown_topic_or_partition,
    }),
    Situation("moves under way", LIST_REASSIGNMENTS, part(
        "ListPartitionReassignmentsRequest", timeout=TIMEOUT, topics=None), {"error_code": E.none, "topics": ()}),
    Situation("a producer id", INIT_PRODUCER, part(
        "InitProducerIdRequest", transactional_id=None, transaction_timeout=TIMEOUT), {
        "error_code": E.none, "producer_epoch": 0,
    }),
    Situation("an empty transactional id", INIT_PRODUCER, part(
        "InitProducerIdRequest", transactional_id="", transaction_timeout=TIMEOUT), {"error_code": E.invalid_request}),
    Situation("a transaction of no time", INIT_PRODUCER, part(
        "InitProducerIdRequest", transactional_id=NAME, transaction_timeout=ms(0)), {
        "error_code": E.invalid_transaction_timeout,
    }),
    Situation("a transaction of a month", INIT_PRODUCER, part(
        "InitProducerIdRequest", transactional_id=NAME, transaction_timeout=ms(2_000_000_000)), {
        "error_code": E.invalid_transaction_timeout,
    }),
]  # fmt: skip

SITUATIONS = [*TOPICS, *CONFIGS, *OFFSETS, *GROUPS, *CONSUMER_GROUPS, *CLUSTER]
