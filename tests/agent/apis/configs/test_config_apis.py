"""Configs of topics, agents, groups and client metrics, asked for as clients do."""

import logging
from datetime import timedelta
from typing import Any

import pytest
import structlog
from kio.schema.errors import ErrorCode
from tests.agent.apis.api_caller import ApiCaller, part
from tests.agent.apis.topic_calls import ALTER_CONFIGS, INCREMENTAL, SET, TIMEOUT, alter, alter_cluster, create, topic

from braidlog.agent.apis.configs.config_entries import ConfigSource
from braidlog.configs.topic import CLUSTER_CONFIGS, TOPIC_CONFIGS, ConfigType
from braidlog.control.groups.config import GROUP_CONFIGS
from braidlog.runtime.logs import log_level, set_log_level
from braidlog.runtime.settings import AgentSettings

DESCRIBE_CONFIGS = 32
REMOVE, APPEND, SUBTRACT = 1, 2, 3


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


async def test_an_agent_has_no_configs_to_set_and_none_to_delete(call: ApiCaller) -> None:
    own, change = str(call.agent.session.node_id), ("leader.replication.throttled.rate", REMOVE, None)
    for name, changes, code in (
        (own, [change], ErrorCode.none),
        ("77", [change], ErrorCode.invalid_request),
        (own, [change, ("num.partitions", SET, "4")], ErrorCode.invalid_request),
    ):
        [outcome] = await alter(call, INCREMENTAL, 4, name, changes)
        assert outcome.error_code is code


async def test_configs_of_an_agent_and_of_the_cluster(call: ApiCaller) -> None:
    assert [each.name for each in (await describe(call, 4, "")).configs] == ["min.insync.replicas"]
    await alter_cluster(call, {"num.partitions": "4"})
    [_, config] = (await describe(call, 4, "")).configs
    assert (config.name, config.value, config.config_source) == (
        "num.partitions",
        "4",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )
    configs = {config.name: config for config in (await describe(call, 4, str(call.agent.session.node_id))).configs}
    assert configs.keys() == CLUSTER_CONFIGS.keys()
    assert configs["num.partitions"].value == "4"
    assert not configs["num.partitions"].read_only
    assert (configs["node.id"].value, configs["node.id"].read_only) == (str(call.agent.session.node_id), True)
    assert configs["node.id"].config_source == ConfigSource.STATIC_BROKER
    assert configs["broker.rack"].value == "zone-a"
    assert configs["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert configs["log.dirs"].value == "memory://apis"


async def test_clients_are_not_told_the_credentials_of_the_store(call: ApiCaller) -> None:
    url = "s3://bucket/logs?region=eu-1&access_key_id=AKIA&secret_access_key=hush"
    call.agent.settings = AgentSettings(store_url=url)
    configs = {config.name: config for config in (await describe(call, 4, str(call.agent.session.node_id))).configs}
    [directory] = (await call(35, part("DescribeLogDirsRequest", topics=None))).results
    told = {configs["log.dir"].value, configs["log.dirs"].value, directory.log_dir}
    assert told == {"s3://bucket/logs?region=eu-1"}


async def test_what_the_control_plane_was_started_with_is_told(call: ApiCaller) -> None:
    configs = {config.name: config for config in (await describe(call, 4, str(call.agent.session.node_id))).configs}
    told = {name: (config.value, config.config_source) for name, config in configs.items()}
    assert told["group.min.session.timeout.ms"] == ("6000", ConfigSource.DEFAULT)
    assert told["group.initial.rebalance.delay.ms"] == ("0", ConfigSource.STATIC_BROKER)  # these tests' own
    assert all(value is not None for name, (value, _) in told.items() if name.startswith(("group.", "transaction")))


async def test_a_group_has_configs_of_its_own(call: ApiCaller) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    [outcome] = await alter(call, INCREMENTAL, 32, "g", [(session, SET, "50000"), (heartbeat, SET, "7000")])
    assert outcome.error_code is ErrorCode.none
    told = {config.name: (config.value, config.config_source) for config in (await describe(call, 32, "g")).configs}
    assert told.keys() == GROUP_CONFIGS.keys()
    assert told[session] == ("50000", ConfigSource.GROUP)
    assert told["share.auto.offset.reset"] == ("latest", ConfigSource.DEFAULT)
    assert (await heart_beat(call, "g")).heartbeat_interval == timedelta(seconds=7)
    assert (await heart_beat(call, "other")).heartbeat_interval == timedelta(seconds=5)
    [outcome] = await alter(call, INCREMENTAL, 32, "g", [(heartbeat, REMOVE, None)])
    assert (await heart_beat(call, "g", epoch=1)).heartbeat_interval == timedelta(seconds=5)
    response = await call(74, part("ListConfigResourcesRequest", resource_types=(32, 16)))
    assert [(each.resource_type, each.resource_name) for each in response.config_resources] == [(32, "g")]


async def heart_beat(call: ApiCaller, group: str, epoch: int = 0) -> Any:
    request = part(
        "ConsumerGroupHeartbeatRequest",
        group_id=group,
        member_id="m",
        member_epoch=epoch,
        rebalance_timeout=TIMEOUT,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    response = await call(68, request)
    assert response.error_code is ErrorCode.none
    return response


async def test_configs_of_client_metrics_are_kept(call: ApiCaller) -> None:
    [outcome] = await alter(call, INCREMENTAL, 16, "m", [("match", APPEND, "a=b"), ("interval.ms", SET, "5000")])
    assert outcome.error_code is ErrorCode.none
    await call.agent.control.parts.administration.load()
    told = {config.name: (config.value, config.config_source) for config in (await describe(call, 16, "m")).configs}
    assert told == {
        "interval.ms": ("5000", ConfigSource.CLIENT_METRICS),
        "match": ("a=b", ConfigSource.CLIENT_METRICS),
        "metrics": ("", ConfigSource.DEFAULT),
    }
    [outcome] = await alter(call, INCREMENTAL, 16, "m", [("match", REMOVE, None), ("interval.ms", REMOVE, None)])
    assert (await call(74, part("ListConfigResourcesRequest"), version=0)).config_resources == ()


async def test_the_level_of_the_log_is_changed(call: ApiCaller) -> None:
    own, before = str(call.agent.session.node_id), log_level()
    try:
        [outcome] = await alter(call, INCREMENTAL, 8, own, [("root", SET, "ERROR")])
        assert outcome.error_code is ErrorCode.none
        assert [config.value for config in (await describe(call, 8, own)).configs] == ["ERROR"]
        assert not structlog.get_logger().is_enabled_for(logging.WARNING)
        [outcome] = await alter(call, INCREMENTAL, 8, own, [("root", SET, "WARN")], validate=True)
        assert log_level() == "error"
    finally:
        set_log_level(before)


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
    agents = [(kind, str(node_id)) for kind in (4, 8) for node_id in sorted(call.agent.view.agents)]
    assert listed == [(2, "a"), (2, "b"), *agents]
    assert (await call(74, part("ListConfigResourcesRequest"), version=0)).config_resources == ()
    refused = await call(74, part("ListConfigResourcesRequest", resource_types=(2, 99)))
    assert refused.error_code is ErrorCode.unsupported_version
