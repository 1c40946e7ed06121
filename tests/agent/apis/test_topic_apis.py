"""Topics, partitions, records and configs, asked for as clients do."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.apis.api_caller import ApiCaller, Part, part

from braidlog.agent.apis.config_entries import ConfigSource
from braidlog.agent.view import ClusterView
from braidlog.control.interface import CommitObject, SnapshotRequest
from braidlog.control.topic_config import CLUSTER_CONFIGS, TOPIC_CONFIGS, ConfigType
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer

CREATE, DELETE, GROW, DELETE_RECORDS = 19, 20, 37, 21
DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL = 32, 33, 44
TIMEOUT = i32Timedelta.parse(timedelta(seconds=30))
NO_TIME = i32Timedelta.parse(timedelta(0))
INCARNATION = "00112233445566778899aabbccddeeff"
SET, REMOVE, APPEND, SUBTRACT = range(4)


def topic(name: str, partitions: int = 1, factor: int = 1, assignments: Any = (), **configs: str | None) -> Part:
    return part(
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            part("CreatableReplicaAssignment", partition_index=index, broker_ids=brokers)
            for index, brokers in assignments
        ],
        configs=[
            part("CreatableTopicConfig", name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )


async def create(call: ApiCaller, *topics: Part, validate_only: bool = False, timeout: Any = TIMEOUT) -> list[Any]:
    request = part("CreateTopicsRequest", topics=topics, timeout=timeout, validate_only=validate_only)
    return list((await call(CREATE, request)).topics)


# ── CreateTopics ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_created_topic_is_visible_here_when_the_answer_comes(call: ApiCaller) -> None:
    [result] = await create(call, topic("orders", 3, 2, retention_ms="5"))
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)
    assert (result.num_partitions, result.replication_factor) == (3, 2)
    view = call.agent.view.topics_by_name["orders"]
    assert view.info.topic_id == result.topic_id.bytes
    assert len(view.partitions) == 3
    assert view.settings.retention_ms == 5
    configs = {config.name: (config.value, config.config_source) for config in result.configs}
    assert configs["retention.ms"] == ("5", ConfigSource.TOPIC)
    assert configs["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT)
    assert configs.keys() == TOPIC_CONFIGS.keys()


async def test_no_numbers_take_the_clusters(call: ApiCaller) -> None:
    await alter_cluster(call, {"num.partitions": "4", "default.replication.factor": "3", "log.retention.hours": "2"})
    [result] = await create(call, topic("orders", -1, -1))
    assert (result.num_partitions, result.replication_factor) == (4, 3)
    assert call.agent.view.topics_by_name["orders"].settings.retention_ms == 7_200_000
    configs = {config.name: (config.value, config.config_source) for config in result.configs}
    assert configs["retention.ms"] == ("7200000", ConfigSource.DYNAMIC_DEFAULT_BROKER)


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (topic("bad name"), ErrorCode.invalid_topic_exception, "bad name"),
        (topic(""), ErrorCode.invalid_topic_exception, "empty"),
        (topic("t", 0), ErrorCode.invalid_partitions, "non-positive"),
        (topic("t", -2), ErrorCode.invalid_partitions, "non-positive"),
        (topic("t", 1, 0), ErrorCode.invalid_replication_factor, "larger than 0"),
        (topic("t", no_such="1"), ErrorCode.invalid_config, "Unknown topic config name: no.such"),
        (topic("t", retention_ms="x"), ErrorCode.invalid_config, "Not a number of type LONG"),
        (topic("t", retention_ms=None), ErrorCode.invalid_config, "Null value not supported"),
        (topic("t", 1, -1, [(0, (1,))]), ErrorCode.invalid_request, "partition count was not set to -1"),
        (topic("t", -1, 1, [(0, (1,))]), ErrorCode.invalid_request, "replication factor was not set to -1"),
        (topic("t", -1, -1, [(1, (1,))]), ErrorCode.invalid_replica_assignment, "0-based"),
        (topic("t", -1, -1, [(0, (1,)), (1, (1, 2))]), ErrorCode.invalid_replica_assignment, "same number"),
    ],
)
async def test_topics_that_are_refused(call: ApiCaller, wanted: Part, code: ErrorCode, message: str) -> None:
    refused, created = await create(call, wanted, topic("fine"))
    if refused.name == "fine":
        refused, created = created, refused
    assert refused.error_code is code
    assert message in refused.error_message
    assert refused.topic_id is None
    assert created.error_code is ErrorCode.none
    assert list(call.agent.view.topics_by_name) == ["fine"]


async def test_a_manual_assignment_gives_the_numbers(call: ApiCaller) -> None:
    [result] = await create(call, topic("t", -1, -1, [(1, (5, 6)), (0, (6, 7))]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 2, 2)


async def test_a_topic_twice(call: ApiCaller) -> None:
    [result] = await create(call, topic("t"), topic("t"))
    assert result.error_code is ErrorCode.invalid_request
    await create(call, topic("t"))
    [result] = await create(call, topic("t"))
    assert result.error_code is ErrorCode.topic_already_exists


async def test_validation_alone_creates_nothing(call: ApiCaller) -> None:
    [result] = await create(call, topic("t", 5), validate_only=True)
    assert (result.error_code, result.num_partitions, result.topic_id) == (ErrorCode.none, 5, None)
    assert not call.agent.view.topics_by_name


async def test_the_wait_for_the_view_ends(call: ApiCaller) -> None:
    """A follower that is stuck delays answers, but only up to the request's own timeout."""
    call.agent.following.cancel()
    await asyncio.gather(call.agent.following, return_exceptions=True)
    [result] = await create(call, topic("t"), timeout=NO_TIME)
    assert result.error_code is ErrorCode.none
    assert "t" not in call.agent.view.topics_by_name


# ── DeleteTopics ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def delete(call: ApiCaller, *topics: tuple[str | None, UUID | None]) -> list[Any]:
    states = [part("DeleteTopicState", name=name, topic_id=topic_id) for name, topic_id in topics]
    return list((await call(DELETE, part("DeleteTopicsRequest", topics=states, timeout=TIMEOUT))).responses)


async def test_topics_are_deleted_by_name_and_by_id(call: ApiCaller) -> None:
    first, second, third = await create(call, topic("a"), topic("b"), topic("c"))
    by_name, by_id = await delete(call, ("a", None), (None, second.topic_id))
    assert (by_name.error_code, by_name.name, by_name.topic_id) == (ErrorCode.none, "a", first.topic_id)
    assert (by_id.error_code, by_id.name, by_id.topic_id) == (ErrorCode.none, "b", second.topic_id)
    assert list(call.agent.view.topics_by_name) == ["c"]
    request = part("DeleteTopicsRequest", topic_names=("c",), timeout=TIMEOUT)
    [old] = (await call(DELETE, request, version=1)).responses
    assert old.error_code is ErrorCode.none
    assert third.topic_id.bytes not in call.agent.view.topics_by_id


async def test_topics_that_cannot_be_deleted(call: ApiCaller) -> None:
    [created] = await create(call, topic("a"))
    codes = [
        result.error_code
        for result in await delete(
            call,
            ("nowhere", None),
            (None, UUID(int=9)),
            ("a", created.topic_id),
            (None, None),
            ("b", None),
            ("b", None),
        )
    ]
    assert sorted(codes) == sorted(
        [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, *[ErrorCode.invalid_request] * 3]
    )
    await alter_cluster(call, {"delete.topic.enable": "false"})
    [refused] = await delete(call, ("a", None))
    assert refused.error_code is ErrorCode.topic_deletion_disabled
    assert "a" in call.agent.view.topics_by_name


@pytest.mark.parametrize("version", range(1, 6))
async def test_a_topic_without_a_name_and_one_named_twice(call: ApiCaller, version: int) -> None:
    request = part("DeleteTopicsRequest", topic_names=("", "b", "b"), timeout=TIMEOUT)
    results = (await call(DELETE, request, version=version)).responses
    assert [(result.name, result.error_code) for result in results] == [
        ("", ErrorCode.invalid_request),
        ("b", ErrorCode.invalid_request),
    ]


async def test_a_topic_deleted_and_created_again_has_a_new_id(call: ApiCaller) -> None:
    [old] = await create(call, topic("a"))
    await delete(call, ("a", None))
    [new] = await create(call, topic("a"))
    assert new.error_code is ErrorCode.none
    assert new.topic_id != old.topic_id


# ── CreatePartitions ──────────────────────────────────────────────────────────────────────────────────────────────────


async def grow(call: ApiCaller, *topics: tuple[str, int], validate_only: bool = False) -> dict[str, Any]:
    request = part(
        "CreatePartitionsRequest",
        topics=[part("CreatePartitionsTopic", name=name, count=count, assignments=None) for name, count in topics],
        timeout=TIMEOUT,
        validate_only=validate_only,
    )
    return {result.name: result for result in (await call(GROW, request)).results}


async def test_partitions_are_added(call: ApiCaller) -> None:
    await create(call, topic("a", 2))
    results = await grow(call, ("a", 5), ("nowhere", 3), ("b", 1), ("b", 2))
    assert results["a"].error_code is ErrorCode.none
    assert results["nowhere"].error_code is ErrorCode.unknown_topic_or_partition
    assert results["b"].error_code is ErrorCode.invalid_request
    assert len(call.agent.view.topics_by_name["a"].partitions) == 5
    for count in (5, 4, 0, -1):
        assert (await grow(call, ("a", count)))["a"].error_code is ErrorCode.invalid_partitions
    assert (await grow(call, ("a", 9), validate_only=True))["a"].error_code is ErrorCode.none
    assert len(call.agent.view.topics_by_name["a"].partitions) == 5


# ── configs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def alter_cluster(call: ApiCaller, configs: dict[str, str]) -> None:
    [outcome] = await alter(call, INCREMENTAL, 4, "", [(name, SET, value) for name, value in configs.items()])
    assert outcome.error_code is ErrorCode.none, outcome.error_message


async def alter(
    call: ApiCaller, key: int, kind: int, name: str, changes: list[tuple[str, int, str | None]], validate: bool = False
) -> list[Any]:
    configs = [part("AlterableConfig", name=each, config_operation=op, value=value) for each, op, value in changes]
    resource = part("AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)
    class_name = "AlterConfigsRequest" if key == ALTER_CONFIGS else "IncrementalAlterConfigsRequest"
    response = await call(key, part(class_name, resources=[resource], validate_only=validate))
    assert [(each.resource_type, each.resource_name) for each in response.responses] == [(kind, name)]
    return list(response.responses)


async def describe(call: ApiCaller, kind: int, name: str, keys: tuple[str, ...] | None = None, **asked: bool) -> Any:
    resource = part("DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=keys)
    asked = {"include_synonyms": True, "include_documentation": True} | asked
    [result] = (await call(DESCRIBE_CONFIGS, part("DescribeConfigsRequest", resources=[resource], **asked))).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def synonyms(config: Any) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


async def test_configs_of_a_topic(call: ApiCaller) -> None:
    await create(call, topic("a", retention_ms="5"))
    await alter_cluster(call, {"log.retention.minutes": "7", "log.cleanup.policy": "compact"})
    result = await describe(call, 2, "a")
    assert result.error_code is ErrorCode.none
    configs = {config.name: config for config in result.configs}
    assert configs.keys() == TOPIC_CONFIGS.keys()
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source, retention.config_type) == (
        "5",
        ConfigSource.TOPIC,
        ConfigType.LONG,
    )
    assert synonyms(retention) == [
        ("retention.ms", "5", ConfigSource.TOPIC),
        ("log.retention.minutes", "7", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.retention.hours", "168", ConfigSource.DEFAULT),
    ]
    assert retention.documentation
    assert not retention.read_only
    assert not retention.is_sensitive
    policy = configs["cleanup.policy"]
    assert (policy.value, policy.config_source) == ("compact", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    throttled = configs["leader.replication.throttled.replicas"]
    assert (throttled.value, throttled.config_source) == ("", ConfigSource.DEFAULT)


async def test_only_what_is_asked_for(call: ApiCaller) -> None:
    await create(call, topic("a"))
    asked = ("retention.ms", "no.such")
    result = await describe(call, 2, "a", asked, include_synonyms=False, include_documentation=False)
    [config] = result.configs
    assert (config.name, config.synonyms, config.documentation) == ("retention.ms", (), None)
    assert len((await describe(call, 2, "a", ())).configs) == len(TOPIC_CONFIGS)


async def test_configs_of_an_agent_and_of_the_cluster(call: ApiCaller) -> None:
    assert (await describe(call, 4, "")).configs == ()
    await alter_cluster(call, {"num.partitions": "4"})
    [config] = (await describe(call, 4, "")).configs
    assert (config.name, config.value, config.config_source) == (
        "num.partitions",
        "4",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )
    configs = {config.name: config for config in (await describe(call, 4, str(call.agent.node_id))).configs}
    assert configs.keys() == CLUSTER_CONFIGS.keys()
    assert configs["num.partitions"].value == "4"
    assert not configs["num.partitions"].read_only
    assert (configs["node.id"].value, configs["node.id"].read_only) == (str(call.agent.node_id), True)
    assert configs["node.id"].config_source == ConfigSource.STATIC_BROKER
    assert configs["broker.rack"].value == "zone-a"
    assert configs["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert configs["log.dirs"].value == "memory://apis"


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (2, "nowhere", ErrorCode.unknown_topic_or_partition),
        (4, "x", ErrorCode.invalid_request),
        (4, "77", ErrorCode.invalid_request),
        (8, "0", ErrorCode.invalid_request),
    ],
)
async def test_configs_of_what_does_not_exist(call: ApiCaller, kind: int, name: str, code: ErrorCode) -> None:
    result = await describe(call, kind, name)
    assert (result.error_code, result.configs) == (code, ())
    assert result.error_message


async def test_incremental_changes(call: ApiCaller) -> None:
    await create(call, topic("a", retention_ms="5"))
    changes = [("segment.ms", SET, "6"), ("retention.ms", REMOVE, None), ("cleanup.policy", APPEND, "compact")]
    [outcome] = await alter(call, INCREMENTAL, 2, "a", changes)
    assert (outcome.error_code, outcome.error_message) == (ErrorCode.none, None)
    configs = call.agent.view.topics_by_name["a"].info.configs
    assert configs == {"segment.ms": "6", "cleanup.policy": "delete,compact"}
    [outcome] = await alter(call, INCREMENTAL, 2, "a", [("cleanup.policy", SUBTRACT, "delete")], validate=True)
    assert outcome.error_code is ErrorCode.none
    assert call.agent.view.topics_by_name["a"].info.configs == configs


async def test_altering_drops_what_is_not_named(call: ApiCaller) -> None:
    await create(call, topic("a", retention_ms="5", segment_ms="6"))
    [outcome] = await alter(call, ALTER_CONFIGS, 2, "a", [("segment.ms", SET, "7")])
    assert outcome.error_code is ErrorCode.none
    assert call.agent.view.topics_by_name["a"].info.configs == {"segment.ms": "7"}


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (2, "nowhere", ("retention.ms", SET, "5"), ErrorCode.unknown_topic_or_partition),
        (2, "a", ("no.such", SET, "5"), ErrorCode.invalid_config),
        (2, "a", ("retention.ms", SET, "x"), ErrorCode.invalid_config),
        (2, "a", ("retention.ms", APPEND, "5"), ErrorCode.invalid_config),
        (2, "a", ("retention.ms", SET, None), ErrorCode.invalid_request),
        (4, "", ("node.id", SET, "5"), ErrorCode.invalid_config),
        (4, "0", ("num.partitions", SET, "5"), ErrorCode.invalid_request),
        (8, "0", ("root", SET, "DEBUG"), ErrorCode.invalid_request),
    ],
)
async def test_changes_that_are_refused(call: ApiCaller, kind: int, name: str, change: Any, code: ErrorCode) -> None:
    await create(call, topic("a"))
    [outcome] = await alter(call, INCREMENTAL, kind, name, [change])
    assert outcome.error_code is code
    assert outcome.error_message
    assert call.agent.view.topics_by_name["a"].info.configs == {}


async def test_the_same_config_or_resource_twice(call: ApiCaller) -> None:
    await create(call, topic("a"))
    [outcome] = await alter(call, INCREMENTAL, 2, "a", [("retention.ms", SET, "5"), ("retention.ms", SET, "6")])
    assert outcome.error_code is ErrorCode.invalid_request
    resource = part("AlterConfigsResource", resource_type=2, resource_name="a", configs=())
    response = await call(ALTER_CONFIGS, part("AlterConfigsRequest", resources=[resource] * 2, validate_only=False))
    assert [each.error_code for each in response.responses] == [ErrorCode.invalid_request] * 2


async def test_what_can_be_described_is_listed(call: ApiCaller) -> None:
    await create(call, topic("b"), topic("a"))
    response = await call(74, part("ListConfigResourcesRequest"))
    listed = [(each.resource_type, each.resource_name) for each in response.config_resources]
    assert listed == [(2, "a"), (2, "b"), *[(4, str(node_id)) for node_id in sorted(call.agent.view.agents)]]
    assert (await call(74, part("ListConfigResourcesRequest"), version=0)).config_resources == ()
    refused = await call(74, part("ListConfigResourcesRequest", resource_types=(2, 99)))
    assert refused.error_code is ErrorCode.unsupported_version


# ── records ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def append(agent: SimpleNamespace, topic_name: str, records: int) -> None:
    """Sequence an object with one batch, and let the view know."""
    batch = BatchEntry(100, records, 0, 1)
    extent = ExtentEntry(
        agent.view.topics_by_name[topic_name].info.topic_id, 0, 0, 100, records, 1, 1, KAFKA_BATCHES, [batch]
    )
    nonce = agent.entropy.token(16)
    footer = Footer(nonce, agent.write_epoch, INCARNATION, 1, "zone-a", [extent])
    verdict = await agent.control.commit_object(
        CommitObject(data_key(agent.write_epoch, INCARNATION, 1), 400, msgspec.msgpack.encode(footer))
    )
    assert verdict.error_code == 0
    assert verdict.extents[0].verdicts[0].error_code == 0
    agent.view.load(await agent.control.snapshot(SnapshotRequest()))


async def delete_records(call: ApiCaller, topic_name: str, offset: int, index: int = 0) -> tuple[ErrorCode, int]:
    partition = part("DeleteRecordsPartition", partition_index=index, offset=offset)
    wanted = part("DeleteRecordsTopic", name=topic_name, partitions=[partition])
    response = await call(DELETE_RECORDS, part("DeleteRecordsRequest", topics=[wanted], timeout=TIMEOUT))
    [result] = response.topics[0].partitions
    return result.error_code, result.low_watermark


async def test_records_are_deleted_up_to_an_offset(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    assert await delete_records(call, "a", 4) == (ErrorCode.none, 4)
    assert await delete_records(call, "a", 2) == (ErrorCode.none, 4)
    assert await delete_records(call, "a", 11) == (ErrorCode.offset_out_of_range, -1)
    assert await delete_records(call, "a", -2) == (ErrorCode.offset_out_of_range, -1)
    assert await delete_records(call, "a", -1) == (ErrorCode.none, 10)
    assert await delete_records(call, "a", 0, 1) == (ErrorCode.unknown_topic_or_partition, -1)
    assert await delete_records(call, "nowhere", 0) == (ErrorCode.unknown_topic_or_partition, -1)


@pytest.mark.parametrize(
    ("policy", "code"), [("compact", ErrorCode.policy_violation), ("compact,delete", ErrorCode.none)]
)
async def test_records_of_compacted_topics(call: ApiCaller, policy: str, code: ErrorCode) -> None:
    await create(call, topic("a", cleanup_policy=policy))
    assert (await delete_records(call, "a", 0))[0] is code


async def test_where_epochs_end(call: ApiCaller) -> None:
    await create(call, topic("a"))
    await append(call.agent, "a", 10)
    stale, call.agent.view = call.agent.view, ClusterView()
    call.agent.view.load(await call.agent.control.snapshot(SnapshotRequest()))
    call.agent.view.topics_by_name["a"].partitions[0].high_watermark = 3  # behind: it must not be what counts
    asked = [(-1, 0), (0, 0), (1, 0), (0, 1), (0, -1)]
    partitions = [
        part("OffsetForLeaderPartition", partition=0, current_leader_epoch=current, leader_epoch=epoch)
        for current, epoch in asked
    ]
    partitions.append(part("OffsetForLeaderPartition", partition=1, leader_epoch=0))
    topics = [part("OffsetForLeaderTopic", topic="a", partitions=partitions)]
    [result] = (await call(23, part("OffsetForLeaderEpochRequest", topics=topics))).topics
    call.agent.view = stale
    assert [(each.error_code, each.leader_epoch, each.end_offset) for each in result.partitions] == [
        (ErrorCode.none, 0, 10),
        (ErrorCode.none, 0, 10),
        (ErrorCode.unknown_leader_epoch, -1, -1),
        (ErrorCode.none, -1, -1),
        (ErrorCode.none, -1, -1),
        (ErrorCode.unknown_topic_or_partition, -1, -1),
    ]


async def test_every_partition_has_its_size_told_by_one_agent(call: ApiCaller) -> None:
    """Tools sum over brokers."""
    await create(call, topic("a"), topic("b", 5))
    await append(call.agent, "a", 10)

    async def told(topics: list[Part] | None) -> list[tuple[str, int, int]]:
        found = []
        for node_id in sorted(call.agent.view.agents):
            call.agent.node_id = node_id
            [directory] = (await call(35, part("DescribeLogDirsRequest", topics=topics))).results
            assert directory.log_dir == "memory://apis"
            found += [
                (each.name, partition.partition_index, partition.partition_size)
                for each in directory.topics
                for partition in each.partitions
            ]
        return sorted(found)

    assert await told(None) == [("a", 0, 100), *(("b", index, 0) for index in range(5))]
    wanted = [
        part("DescribableLogDirTopic", topic="b", partitions=(1, 2, 9)),
        part("DescribableLogDirTopic", topic="nowhere", partitions=(0,)),
    ]
    assert await told(wanted) == [("b", 1, 0), ("b", 2, 0)]


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_cluster(call: ApiCaller) -> None:
    asked = {"include_cluster_authorized_operations": True, "include_fenced_brokers": False}
    response = await call(60, part("DescribeClusterRequest", **asked))
    assert response.error_code is ErrorCode.none
    assert response.cluster_id == call.agent.view.cluster_id
    assert response.controller_id == min(call.agent.view.agents)
    assert [(each.host, each.port, each.rack) for each in response.brokers] == [
        ("127.0.0.1", 9092, "zone-a"),
        ("127.0.0.1", 9093, "zone-b"),
    ]
    assert response.cluster_authorized_operations == 8096
    for endpoint_type, code in ((2, ErrorCode.mismatched_endpoint_type), (3, ErrorCode.unsupported_endpoint_type)):
        response = await call(60, part("DescribeClusterRequest", endpoint_type=endpoint_type, **asked))
        assert (response.error_code, response.brokers) == (code, ())


async def test_topics_page_by_page(call: ApiCaller) -> None:
    await create(call, topic("a", 3), topic("b", 2), topic("c", 4))
    seen: list[tuple[str, int]] = []
    cursor, pages = None, 0
    while True:
        request = part("DescribeTopicPartitionsRequest", topics=(), response_partition_limit=2, cursor=cursor)
        response = await call(75, request)
        pages += 1
        seen += [(each.name, partition.partition_index) for each in response.topics for partition in each.partitions]
        assert all(partition.leader_id >= 0 for each in response.topics for partition in each.partitions)
        if response.next_cursor is None:
            break
        follow = response.next_cursor
        cursor = part("Cursor", topic_name=follow.topic_name, partition_index=follow.partition_index)
    assert seen == [(name, index) for name, count in (("a", 3), ("b", 2), ("c", 4)) for index in range(count)]
    assert pages == 5
    [unknown] = (
        await call(75, part("DescribeTopicPartitionsRequest", topics=[part("TopicRequest", name="nowhere")]))
    ).topics
    assert unknown.error_code is ErrorCode.unknown_topic_or_partition


# ── producers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_producer_ids_are_all_different(call: ApiCaller) -> None:
    request = part("InitProducerIdRequest", transactional_id=None, transaction_timeout=TIMEOUT)
    answers = [await call(22, request) for _ in range(3)]
    assert {answer.error_code for answer in answers} == {ErrorCode.none}
    assert len({answer.producer_id for answer in answers}) == 3
    assert {answer.producer_epoch for answer in answers} == {0}
