"""Topics and partitions, asked for as clients do."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.apis.api_caller import ApiCaller, Part, part
from tests.agent.apis.topic_calls import TIMEOUT, alter_cluster, append, create, topic

from braidlog.agent.apis.configs.config_entries import ConfigSource
from braidlog.agent.cluster.placement import places_of
from braidlog.configs.topic import TOPIC_CONFIGS
from braidlog.control.interface import SnapshotRequest

DELETE, GROW = 20, 37
REASSIGN = 45
NO_TIME = i32Timedelta.parse(timedelta(0))


# ── CreateTopics ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_request_adds_only_so_many_partitions(call: ApiCaller) -> None:
    for counts in ((10_001,), (5_000, 5_001), (-1, 10_000)):
        results = await create(call, *(topic(f"t{number}", count) for number, count in enumerate(counts)))
        assert {result.error_code for result in results} == {ErrorCode.policy_violation}
    [result] = await create(call, topic("t", 2_000_000_000))
    assert result.error_code == ErrorCode.invalid_partitions
    await create(call, topic("t", 2))
    growth = [part("CreatePartitionsTopic", name="t", count=10_003, assignments=None)]
    request = part("CreatePartitionsRequest", topics=growth, timeout=TIMEOUT, validate_only=False)
    [grown] = (await call(GROW, request)).results
    assert grown.error_code == ErrorCode.policy_violation
    assert len(call.agent.view.topics_by_name["t"].partitions) == 2


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
        (topic("t", 1, -1, [(0, (1,))]), ErrorCode.invalid_request, "numPartitions was not set to -1"),
        (topic("t", -1, 1, [(0, (1,))]), ErrorCode.invalid_request, "replication factor was not set to -1"),
        (topic("t", -1, -1, [(1, (1,))]), ErrorCode.invalid_replica_assignment, "0-based"),
        (topic("t", -1, -1, [(0, (1,)), (1, (1, 2))]), ErrorCode.invalid_replica_assignment, "not consistent"),
        (topic("t", -1, -1, [(0, (1, 9))]), ErrorCode.invalid_replica_assignment, "broker 9, but no such broker"),
        (topic("t", -1, -1, [(0, (1, 1))]), ErrorCode.invalid_replica_assignment, "broker 1 more than once"),
        (topic("t", -1, -1, [(0, ())]), ErrorCode.invalid_replica_assignment, "an empty replica list"),
        (topic("t", -1, -1, [(0, (1,)), (0, (2,))]), ErrorCode.invalid_replica_assignment, "multiple"),
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


def replicas(call: ApiCaller, name: str) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, the leader first."""
    places = places_of(call.agent.view, call.agent.view.topics_by_name[name], "")
    assert all(place.leader == place.replicas[0] for place in places)
    return [place.replicas for place in places]


async def test_a_manual_assignment_is_shown_as_given(call: ApiCaller) -> None:
    [result] = await create(call, topic("t", -1, -1, [(1, (2, 1)), (0, (1, 2))]))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (ErrorCode.none, 2, 2)
    assert replicas(call, "t") == [(1, 2), (2, 1)]
    grown = await grow(call, ("t", 4), assignments=((2, 1), (1, 2)))
    assert grown["t"].error_code is ErrorCode.none
    assert replicas(call, "t") == [(1, 2), (2, 1), (2, 1), (1, 2)]


@pytest.mark.parametrize("wrong", [((1, 2),), ((1, 2), (1, 9)), ((1, 1), (1, 2)), ((1,), (2,)), ((), ()), ()])
async def test_wrong_replicas_for_new_partitions(call: ApiCaller, wrong: tuple[tuple[int, ...], ...]) -> None:
    await create(call, topic("t", 2, 2))
    assert (await grow(call, ("t", 4), assignments=wrong))["t"].error_code is ErrorCode.invalid_replica_assignment
    assert len(call.agent.view.topics_by_name["t"].partitions) == 2


async def test_a_reassignment_is_shown_at_once_and_survives_a_reload(call: ApiCaller) -> None:
    await create(call, topic("t", 1, 2))
    for wanted in ((1, 2), (2, 1), (2,)):
        partition = part("ReassignablePartition", partition_index=0, replicas=wanted)
        topics = [part("ReassignableTopic", name="t", partitions=[partition])]
        answer = await call(REASSIGN, part("AlterPartitionReassignmentsRequest", timeout=TIMEOUT, topics=topics))
        assert answer.responses[0].partitions[0].error_code is ErrorCode.none
        assert replicas(call, "t") == [wanted]
    await call.agent.control.parts.catalog.load()
    call.agent.view.load(await call.agent.control.snapshot(SnapshotRequest()))
    assert replicas(call, "t") == [(2,)]


@pytest.mark.parametrize(("factor", "shown"), [(1, 1), (2, 2), (3, 2)])
async def test_a_topic_shows_as_many_replicas_as_there_are_agents_for(call: ApiCaller, factor: int, shown: int) -> None:
    await create(call, topic("t", 5, factor))
    assert {len(each) for each in replicas(call, "t")} == {shown}


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


async def grow(
    call: ApiCaller,
    *topics: tuple[str, int],
    validate_only: bool = False,
    assignments: tuple[tuple[int, ...], ...] | None = None,
) -> dict[str, Any]:
    named = None if assignments is None else [part("CreatePartitionsAssignment", broker_ids=ids) for ids in assignments]
    request = part(
        "CreatePartitionsRequest",
        topics=[part("CreatePartitionsTopic", name=name, count=count, assignments=named) for name, count in topics],
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


async def test_every_partition_has_its_size_told_by_one_agent(call: ApiCaller) -> None:
    """Tools sum over brokers."""
    await create(call, topic("a"), topic("b", 5))
    await append(call.agent, "a", 10)

    async def told(topics: list[Part] | None) -> list[tuple[str, int, int]]:
        found = []
        for node_id in sorted(call.agent.view.agents):
            call.agent.session.node_id = node_id
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
