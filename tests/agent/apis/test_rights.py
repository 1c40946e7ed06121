"""Every advertised API, asked by a client without rights, with each right alone and with all that it needs."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from tests.agent.apis.api_caller import ApiCaller, Part, part
from tests.agent.apis.test_every_version import FULL, OWNER, SECOND
from tests.agent.apis.topic_calls import create, topic

from braidlog.agent.apis.dispatch import API_VERSIONS
from braidlog.agent.apis.registry import COLD_APIS
from braidlog.control.interface import CommitOffsets, InitProducerId, OffsetToCommit
from braidlog.security.acls import ALLOW, CLUSTER, CLUSTER_NAME, LITERAL, OPERATIONS_OF, Acl
from braidlog.security.decisions import AclBook
from braidlog.security.requirements import REQUIREMENTS, Requirement, Right
from braidlog.security.rights import AclRights
from braidlog.wire.messages import error_codes

DENIALS = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
RIGHTS = [Right(operation, kind) for kind, operations in OPERATIONS_OF.items() for operation in operations]

RAW = {0, 1, 3, 17, 18, 36}
"""APIs that are not asked here: `tests/kafka/test_security.py` has them."""


def _config_resource(key: int, kind: int, name: str) -> Part:
    if key == 32:
        resource = part("DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None)
        return part("DescribeConfigsRequest", resources=[resource])
    names = {33: ("AlterConfigsRequest",), 44: ("IncrementalAlterConfigsRequest",)}[key]
    resource = part("AlterConfigsResource", resource_type=kind, resource_name=name, configs=())
    return part(names[0], resources=[resource], validate_only=True)


REQUESTS: dict[tuple[int, str], Part] = {
    (10, "of a transactional id"): part("FindCoordinatorRequest", key="t", key_type=1, coordinator_keys=("t",)),
    (22, "with a transactional id"): part("InitProducerIdRequest", transactional_id="t", transaction_timeout=SECOND),
    (22, "without a transactional id"): part(
        "InitProducerIdRequest", transactional_id=None, transaction_timeout=SECOND
    ),
    **{(key, "a topic"): _config_resource(key, 2, "orders") for key in (32, 33, 44)},
    **{(key, "a group"): _config_resource(key, 32, "readers") for key in (32, 33, 44)},
    **{(key, "an agent, the cluster, loggers, client metrics"): _config_resource(key, 4, "") for key in (32, 33, 44)},
    (2, ""): part(
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        timeout=SECOND,
        topics=[
            part(
                "ListOffsetsTopic",
                name="orders",
                partitions=[part("ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=-1)],
            )
        ],
    ),
    (12, ""): part("HeartbeatRequest", group_id="readers", generation_id=1, member_id="m"),
    (19, ""): part(
        "CreateTopicsRequest",
        topics=[
            part("CreatableTopic", name="orders", num_partitions=1, replication_factor=1, assignments=(), configs=())
        ],
        timeout=SECOND,
        validate_only=True,
    ),
    (16, ""): part("ListGroupsRequest"),
    (47, ""): part("OffsetDeleteRequest", **FULL[47].values | {"group_id": "readers"}),
    (66, ""): part("ListTransactionsRequest", state_filters=(), producer_id_filters=()),
    (68, ""): part(
        "ConsumerGroupHeartbeatRequest",
        group_id="g",
        member_id="m",
        member_epoch=5,
        subscribed_topic_names=("orders",),
        topic_partitions=None,
    ),
    (28, ""): part(
        "TxnOffsetCommitRequest",
        **OWNER,
        group_id="g",
        topics=[
            part(
                "TxnOffsetCommitRequestTopic",
                name="orders",
                partitions=[
                    part(
                        "TxnOffsetCommitRequestPartition",
                        partition_index=0,
                        committed_offset=1,
                        committed_leader_epoch=-1,
                        committed_metadata=None,
                    )
                ],
            )
        ],
    ),
}

VERSIONS = {(24, "up to version 3"): 3, (9, ""): 7, (8, ""): 9}
"""Where not the newest version is asked."""

CASES = [
    (key, requirement)
    for key, requirements in sorted(REQUIREMENTS.items())
    for requirement in requirements
    if key not in RAW
]


def _rights(*granted: Right) -> AclRights:
    book = AclBook()
    book.load(
        Acl(kind, CLUSTER_NAME if kind == CLUSTER else "*", LITERAL, "User:a", "*", operation, ALLOW)
        for operation, kind in granted
    )
    return AclRights(book, "User:a", "127.0.0.1", allow_unlisted=False)


def test_every_advertised_api_is_in_the_table_of_requirements() -> None:
    assert REQUIREMENTS.keys() == API_VERSIONS.keys()


@pytest.fixture
async def furnished(agent: SimpleNamespace) -> SimpleNamespace:
    """With a topic, a group and a transactional id that everybody would like to see."""
    await create(ApiCaller(agent), topic("orders"))
    topic_id = agent.view.topics_by_name["orders"].info.topic_id
    await agent.control.commit_offsets(CommitOffsets("readers", -1, "", None, [OffsetToCommit(topic_id, 0, 0, -1, "")]))
    await agent.control.init_producer_id(InitProducerId("payments", 10_000, -1, -1))
    return agent


def _is_denied(requirement: Requirement, responses: list[Any]) -> bool:
    codes = {code for response in responses for code in error_codes(response)}
    if not requirement.is_silent:
        return bool(codes & DENIALS)
    assert not codes
    return not any(getattr(each, "groups", ()) or getattr(each, "transaction_states", ()) for each in responses)


async def test_each_api_asks_for_exactly_its_rights(furnished: SimpleNamespace) -> None:
    for key, requirement in CASES:
        request = REQUESTS.get((key, requirement.when)) or FULL[key]
        version = VERSIONS.get((key, requirement.when))
        grants = [(), *((right,) for right in RIGHTS), *requirement.ways, *(way[:-1] for way in requirement.ways)]
        for granted in dict.fromkeys(grants):
            rights = _rights(*granted)
            enough = any(all(rights.allows(*right, _name(right)) for right in way) for way in requirement.ways)
            callers = ApiCaller(furnished, rights=rights).everywhere() if requirement.is_silent else None
            one = ApiCaller(furnished, rights=rights)
            responses = [await caller(key, request, version=version) for caller in callers or [one]]
            denied = _is_denied(requirement, responses)
            told = ", ".join(map(str, granted)) or "no right"
            assert denied is not enough, f"{COLD_APIS[key].handle.__module__} ({requirement.when}) with {told}"


def _name(right: Right) -> str:
    return CLUSTER_NAME if right.resource_type == CLUSTER else "orders"


async def test_acls_are_created_listed_and_deleted(agent: SimpleNamespace) -> None:
    call = ApiCaller(agent)
    creation = {"resource_type": 2, "resource_pattern_type": 4, "principal": "User:a", "host": "*", "operation": 3}
    wanted = [
        part("AclCreation", **creation, resource_name="ord", permission_type=3),
        part("AclCreation", **creation, resource_name="ord", permission_type=2),
        part("AclCreation", **creation, resource_name="", permission_type=3),
    ]
    created = await call(30, part("CreateAclsRequest", creations=wanted))
    assert [each.error_code for each in created.results] == [0, 0, ErrorCode.invalid_request]
    query = {"resource_type_filter": 2, "resource_name_filter": "orders", "operation": 1, "permission_type": 1}
    anybody = {"principal_filter": None, "host_filter": None}
    described = await call(29, part("DescribeAclsRequest", **query, **anybody, pattern_type_filter=2))
    assert [(each.resource_name, len(each.acls)) for each in described.resources] == [("ord", 2)]
    assert not (await call(29, part("DescribeAclsRequest", **query, **anybody, pattern_type_filter=3))).resources
    unknown = await call(29, part("DescribeAclsRequest", **query | {"operation": 99}, **anybody, pattern_type_filter=1))
    assert unknown.error_code == ErrorCode.invalid_request
    filters = [part("DeleteAclsFilter", **query | {"permission_type": 2}, **anybody, pattern_type_filter=2)]
    deleted = await call(31, part("DeleteAclsRequest", filters=filters))
    assert [len(each.matching_acls) for each in deleted.filter_results] == [1]
    assert [each.permission for each in agent.view.acls.acls] == [ALLOW]


async def test_without_an_authorizer_acls_are_refused_as_kafka_refuses_them(agent: SimpleNamespace) -> None:
    agent.authorizer = SimpleNamespace(is_on=False)
    call = ApiCaller(agent)
    assert (await call(29, FULL[29])).error_code == ErrorCode.security_disabled
    assert (await call(30, FULL[30])).results[0].error_code == ErrorCode.security_disabled
    assert (await call(31, FULL[31])).filter_results[0].error_code == ErrorCode.security_disabled
    assert not agent.view.acls.acls


async def test_names_are_left_out_where_the_client_may_not_see_them(furnished: SimpleNamespace) -> None:
    """Offsets of all topics, and configs of a topic that was created without the right to see them."""
    everything = part("OffsetFetchRequest", groups=[part("OffsetFetchRequestGroup", group_id="readers", topics=None)])
    describe_group, read_topic = Right(8, 3), Right(3, 2)
    hidden = await ApiCaller(furnished, rights=_rights(describe_group))(9, everything, version=9)
    assert hidden.groups[0].topics == ()
    seen = await ApiCaller(furnished, rights=_rights(describe_group, read_topic))(9, everything, version=9)
    assert [topic.name for topic in seen.groups[0].topics] == ["orders"]
    created = await ApiCaller(furnished, rights=_rights(Right(5, 4)))(19, REQUESTS[19, ""])
    assert created.topics[0].error_code == ErrorCode.topic_already_exists


async def test_a_topic_created_without_the_right_to_see_its_configs_hides_them(agent: SimpleNamespace) -> None:
    call = ApiCaller(agent, rights=_rights(Right(5, 4)))
    (created,) = (await call(19, REQUESTS[19, ""])).topics
    assert (created.error_code, created.topic_config_error_code) == (0, ErrorCode.topic_authorization_failed)
    assert (created.num_partitions, created.configs) == (-1, ())


async def test_no_topic_is_deleted_by_an_id_whose_name_is_not_known_yet(furnished: SimpleNamespace) -> None:
    """Rights are about names. Whoever lacks them must not win by asking an agent that has not heard of the topic."""
    topic_id = furnished.view.topics_by_name["orders"].info.topic_id
    furnished.view.topics_by_id.pop(topic_id)
    asked = part(
        "DeleteTopicsRequest",
        topics=[part("DeleteTopicState", name=None, topic_id=UUID(bytes=topic_id))],
        timeout=SECOND,
    )
    (told,) = (await ApiCaller(furnished, rights=_rights(Right(3, 2)))(20, asked)).responses
    assert told.error_code == ErrorCode.unknown_topic_id
    created = await ApiCaller(furnished)(19, REQUESTS[19, ""])
    assert created.topics[0].error_code == ErrorCode.topic_already_exists


async def test_a_pattern_tells_nothing_of_topics_that_the_client_may_not_see(furnished: SimpleNamespace) -> None:
    asked = part(
        "ConsumerGroupHeartbeatRequest",
        group_id="patterns",
        member_id="0123456789abcdef",
        member_epoch=0,
        rebalance_timeout=SECOND,
        subscribed_topic_names=None,
        subscribed_topic_regex=".*",
        topic_partitions=(),
    )
    read_group, describe_topic = Right(3, 3), Right(8, 2)
    seen = await ApiCaller(furnished, rights=_rights(read_group, describe_topic))(68, asked)
    assert (seen.error_code, len(seen.assignment.topic_partitions)) == (0, 1)
    hidden = await ApiCaller(furnished, rights=_rights(read_group))(68, asked)
    assert (hidden.error_code, hidden.assignment.topic_partitions) == (0, ())
