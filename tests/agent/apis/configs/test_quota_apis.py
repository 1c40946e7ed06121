"""DescribeClientQuotas and AlterClientQuotas; ElectLeaders and reassignments, which have nothing to do here."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tests.agent.apis.api_caller import ApiCaller, Part, part

Entity = dict[str, str | None]


def entry(entity: Entity, **ops: float | None) -> Part:
    return part(
        "EntryData",
        entity=[part("EntityData", entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            part("OpData", key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in ops.items()
        ],
    )


async def alter(call: ApiCaller, *entries: Part, validate_only: bool = False) -> list[ErrorCode]:
    response = await call(49, part("AlterClientQuotasRequest", entries=entries, validate_only=validate_only))
    return [each.error_code for each in response.entries]


async def describe(call: ApiCaller, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    parts = [part("ComponentData", entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    response = await call(48, part("DescribeClientQuotasRequest", components=parts, strict=strict))
    if response.error_code is not ErrorCode.none:
        return response.error_code
    return [
        ({each.entity_type: each.entity_name for each in found.entity}, {each.key: each.value for each in found.values})
        for found in response.entries
    ]


async def test_quotas_are_set_found_changed_and_removed(call: ApiCaller) -> None:
    everything: list[tuple[Entity, float]] = [
        ({"user": "u"}, 1.0),
        ({"user": "u", "client-id": "c"}, 2.0),
        ({"user": None}, 3.0),
        ({"client-id": "c"}, 4.0),
    ]
    codes = await alter(call, *(entry(entity, producer_byte_rate=rate) for entity, rate in everything))
    assert codes == [ErrorCode.none] * 4
    assert call.agent.view.quotas.limits_producers
    assert sorted(map(str, await describe(call))) == sorted(
        str((entity, {"producer_byte_rate": rate}))
        for entity, rate in [(dict(sorted(entity.items())), rate) for entity, rate in everything]
    )
    assert [values for _, values in await describe(call, ("user", 0, "u"), strict=True)] == [{"producer_byte_rate": 1}]
    assert len(await describe(call, ("user", 0, "u"))) == 2
    assert len(await describe(call, ("user", 1, None))) == 1
    assert len(await describe(call, ("user", 2, None))) == 3
    assert len(await describe(call, ("user", 2, None), ("client-id", 2, None))) == 1
    assert await alter(call, entry({"user": "u"}, producer_byte_rate=None, consumer_byte_rate=9.0)) == [ErrorCode.none]
    assert await describe(call, ("user", 0, "u"), strict=True) == [({"user": "u"}, {"consumer_byte_rate": 9.0})]
    for entity, _ in everything:
        await alter(call, entry(entity, producer_byte_rate=None, consumer_byte_rate=None))
    assert await describe(call) == []
    assert not call.agent.view.quotas.limits_producers


async def test_a_validation_changes_nothing(call: ApiCaller) -> None:
    assert await alter(call, entry({"user": "u"}, producer_byte_rate=1.0), validate_only=True) == [ErrorCode.none]
    assert await describe(call) == []


@pytest.mark.parametrize(
    ("entity", "ops"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"planet": "mars"}, {"producer_byte_rate": 1.0}),
        ({"ip": "127.0.0.1"}, {"connection_creation_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"user": "u"}, {"speed": 1.0}),
        ({"user": "u"}, {"producer_byte_rate": 0.0}),
        ({"user": "u"}, {"producer_byte_rate": -5.0}),
        ({"user": "u"}, {"producer_byte_rate": 1.5}),
    ],
)
async def test_wrong_quotas_are_refused(call: ApiCaller, entity: Entity, ops: dict[str, float]) -> None:
    good = entry({"client-id": "good"}, producer_byte_rate=1.0)
    assert await alter(call, entry(entity, **ops), good) == [ErrorCode.invalid_request, ErrorCode.none]


async def test_an_entity_cannot_be_there_twice(call: ApiCaller) -> None:
    twice = [entry({"user": "u"}, producer_byte_rate=rate) for rate in (1.0, 2.0)]
    assert await alter(call, *twice) == [ErrorCode.invalid_request] * 2


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 2, None)], ErrorCode.invalid_request),
        ([("user", 2, None), ("user", 2, None)], ErrorCode.invalid_request),
        ([("user", 7, None)], ErrorCode.invalid_request),
        ([("user", 0, None)], ErrorCode.invalid_request),
        ([("user", 1, "u")], ErrorCode.invalid_request),
        ([("ip", 2, None), ("user", 2, None)], ErrorCode.invalid_request),
        ([("planet", 2, None)], ErrorCode.unsupported_version),
    ],
)
async def test_wrong_filters_are_refused(
    call: ApiCaller, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    assert await describe(call, *components) is code


async def make_topic(call: ApiCaller) -> None:
    new = part("CreatableTopic", name="t", num_partitions=1, replication_factor=1, assignments=(), configs=())
    await call(19, part("CreateTopicsRequest", topics=[new]))


async def test_no_election_is_ever_needed(call: ApiCaller) -> None:
    await make_topic(call)
    asked = [part("TopicPartitions", topic="t", partitions=(0, 1))]
    response = await call(43, part("ElectLeadersRequest", election_type=0, topic_partitions=asked))
    assert [each.error_code for each in response.replica_election_results[0].partition_result] == [
        ErrorCode.election_not_needed,
        ErrorCode.unknown_topic_or_partition,
    ]
    everything = await call(43, part("ElectLeadersRequest", election_type=1, topic_partitions=None))
    assert (everything.error_code, everything.replica_election_results) == (ErrorCode.none, ())
    unknown = await call(43, part("ElectLeadersRequest", election_type=9, topic_partitions=asked))
    assert unknown.error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("index", "replicas", "code"),
    [
        (0, (1,), ErrorCode.none),
        (0, None, ErrorCode.no_reassignment_in_progress),
        (0, (), ErrorCode.invalid_replica_assignment),
        (0, (1, 1), ErrorCode.invalid_replica_assignment),
        (0, (1, 99), ErrorCode.invalid_replica_assignment),
        (5, (1,), ErrorCode.unknown_topic_or_partition),
    ],
)
async def test_reassignments(call: ApiCaller, index: int, replicas: tuple[int, ...] | None, code: ErrorCode) -> None:
    await make_topic(call)
    partition = part("ReassignablePartition", partition_index=index, replicas=replicas)
    topics = [part("ReassignableTopic", name="t", partitions=[partition])]
    response = await call(45, part("AlterPartitionReassignmentsRequest", topics=topics))
    assert response.responses[0].partitions[0].error_code is code
    assert (await call(46, part("ListPartitionReassignmentsRequest", topics=None))).topics == ()
