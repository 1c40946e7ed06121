"""Every advertised version of every cold API takes its smallest request, and one that names everything."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta, i64Timedelta
from tests.agent.apis.api_caller import ApiCaller, Part, part

from braidlog.agent.apis.registry import COLD_APIS
from braidlog.runtime.errors import ControlUnavailable

SECOND = i32Timedelta.parse(timedelta(seconds=10))
TOPIC_ID = UUID(int=7)

OWNER = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
OLD_OWNER = {f"v3_and_below_{name}": value for name, value in OWNER.items()}

SMALLEST = {
    8: part("OffsetCommitRequest", group_id="g", member_id="", topics=()),
    9: part("OffsetFetchRequest", group_id="g", topics=(), groups=()),
    10: part("FindCoordinatorRequest", key="g"),
    11: part("JoinGroupRequest", group_id="g", session_timeout=SECOND, member_id="m", protocol_type="c", protocols=()),
    12: part("HeartbeatRequest", group_id="g", generation_id=1, member_id="m"),
    13: part("LeaveGroupRequest", group_id="g", member_id="m", members=()),
    14: part("SyncGroupRequest", group_id="g", generation_id=1, member_id="m", assignments=()),
    15: part("DescribeGroupsRequest", include_authorized_operations=False),
    16: part("ListGroupsRequest"),
    19: part("CreateTopicsRequest", topics=()),
    20: part("DeleteTopicsRequest", timeout=SECOND, topics=()),
    21: part("DeleteRecordsRequest", topics=(), timeout=SECOND),
    22: part("InitProducerIdRequest", transactional_id=None, transaction_timeout=SECOND),
    23: part("OffsetForLeaderEpochRequest", topics=()),
    24: part("AddPartitionsToTxnRequest", **OLD_OWNER, v3_and_below_topics=(), transactions=()),
    25: part("AddOffsetsToTxnRequest", **OWNER, group_id="g"),
    26: part("EndTxnRequest", **OWNER, committed=True),
    27: part("WriteTxnMarkersRequest", markers=()),
    28: part("TxnOffsetCommitRequest", **OWNER, group_id="g", topics=()),
    29: part(
        "DescribeAclsRequest",
        resource_type_filter=1,
        resource_name_filter=None,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    ),
    30: part("CreateAclsRequest", creations=()),
    31: part("DeleteAclsRequest", filters=()),
    32: part("DescribeConfigsRequest", resources=()),
    33: part("AlterConfigsRequest", resources=(), validate_only=False),
    34: part("AlterReplicaLogDirsRequest", dirs=()),
    35: part("DescribeLogDirsRequest", topics=None),
    37: part("CreatePartitionsRequest", topics=(), timeout=SECOND, validate_only=False),
    42: part("DeleteGroupsRequest"),
    43: part("ElectLeadersRequest", election_type=0, topic_partitions=None),
    44: part("IncrementalAlterConfigsRequest", resources=(), validate_only=False),
    45: part("AlterPartitionReassignmentsRequest", topics=()),
    46: part("ListPartitionReassignmentsRequest", topics=None),
    47: part("OffsetDeleteRequest", group_id="g", topics=()),
    48: part("DescribeClientQuotasRequest", components=(), strict=False),
    49: part("AlterClientQuotasRequest", entries=(), validate_only=False),
    50: part("DescribeUserScramCredentialsRequest", users=None),
    51: part("AlterUserScramCredentialsRequest", deletions=(), upsertions=()),
    55: part("DescribeQuorumRequest", topics=()),
    57: part("UpdateFeaturesRequest", timeout=SECOND, feature_updates=(), validate_only=False),
    60: part("DescribeClusterRequest", include_cluster_authorized_operations=False, include_fenced_brokers=False),
    61: part("DescribeProducersRequest", topics=()),
    65: part("DescribeTransactionsRequest", transactional_ids=()),
    66: part("ListTransactionsRequest", state_filters=(), producer_id_filters=()),
    68: part("ConsumerGroupHeartbeatRequest", group_id="g", member_id="m", member_epoch=1, topic_partitions=None),
    69: part("ConsumerGroupDescribeRequest", include_authorized_operations=False),
    74: part("ListConfigResourcesRequest"),
    75: part("DescribeTopicPartitionsRequest", topics=()),
}


def _resource(kind: int, name: str, configs: tuple[Part, ...]) -> Part:
    return part("AlterConfigsResource", resource_type=kind, resource_name=name, configs=configs)


ACL_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": "nowhere",
    "pattern_type_filter": 3,
    "principal_filter": "User:a",
    "host_filter": "*",
    "operation": 3,
    "permission_type": 3,
}

FULL = {
    50: part("DescribeUserScramCredentialsRequest", users=[part("UserName", name="nobody")]),
    51: part(
        "AlterUserScramCredentialsRequest",
        deletions=[part("ScramCredentialDeletion", name="nobody", mechanism=2)],
        upsertions=[
            part(
                "ScramCredentialUpsertion",
                name="somebody",
                mechanism=1,
                iterations=4096,
                salt=b"salt",
                salted_password=b"salted",
            )
        ],
    ),
    29: part("DescribeAclsRequest", **ACL_FILTER),
    30: part(
        "CreateAclsRequest",
        creations=[
            part(
                "AclCreation",
                resource_type=2,
                resource_name="nowhere",
                resource_pattern_type=3,
                principal="User:a",
                host="*",
                operation=3,
                permission_type=3,
            )
        ],
    ),
    31: part("DeleteAclsRequest", filters=[part("DeleteAclsFilter", **ACL_FILTER)]),
    8: part(
        "OffsetCommitRequest",
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time=i64Timedelta.parse(timedelta(milliseconds=-1)),
        topics=[
            part(
                "OffsetCommitRequestTopic",
                name="nowhere",
                topic_id=TOPIC_ID,
                partitions=[
                    part(
                        "OffsetCommitRequestPartition",
                        partition_index=0,
                        committed_offset=3,
                        committed_leader_epoch=0,
                        committed_metadata=None,
                    )
                ],
            )
        ],
    ),
    9: part(
        "OffsetFetchRequest",
        group_id="g",
        topics=[part("OffsetFetchRequestTopic", name="nowhere", partition_indexes=(0, 1))],
        require_stable=True,
        groups=[
            part(
                "OffsetFetchRequestGroup",
                group_id="g",
                topics=[part("OffsetFetchRequestTopics", name="nowhere", topic_id=TOPIC_ID, partition_indexes=(0, 1))],
            ),
            part("OffsetFetchRequestGroup", group_id="h", topics=None),
        ],
    ),
    10: part("FindCoordinatorRequest", key="g", key_type=0, coordinator_keys=("g", "h")),
    11: part(
        "JoinGroupRequest",
        group_id="full",
        session_timeout=SECOND,
        rebalance_timeout=SECOND,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[part("JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
        reason="because",
    ),
    12: part("HeartbeatRequest", group_id="g", generation_id=1, member_id="m", group_instance_id="i"),
    13: part(
        "LeaveGroupRequest",
        group_id="g",
        member_id="m",
        members=[part("MemberIdentity", member_id="m", group_instance_id=None, reason="done")],
    ),
    14: part(
        "SyncGroupRequest",
        group_id="g",
        generation_id=1,
        member_id="m",
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[part("SyncGroupRequestAssignment", member_id="m", assignment=b"a")],
    ),
    15: part("DescribeGroupsRequest", groups=("g", "h"), include_authorized_operations=True),
    16: part("ListGroupsRequest", states_filter=("Stable",), types_filter=("classic",)),
    19: part(
        "CreateTopicsRequest",
        topics=[
            part(
                "CreatableTopic",
                name="full",
                num_partitions=2,
                replication_factor=1,
                assignments=(),
                configs=[part("CreatableTopicConfig", name="retention.ms", value="5")],
            )
        ],
        timeout=SECOND,
        validate_only=False,
    ),
    20: part(
        "DeleteTopicsRequest",
        topic_names=("nowhere",),
        topics=[
            part("DeleteTopicState", name="nowhere", topic_id=None),
            part("DeleteTopicState", name=None, topic_id=TOPIC_ID),
        ],
        timeout=SECOND,
    ),
    21: part(
        "DeleteRecordsRequest",
        topics=[
            part(
                "DeleteRecordsTopic",
                name="nowhere",
                partitions=[part("DeleteRecordsPartition", partition_index=0, offset=-1)],
            )
        ],
        timeout=SECOND,
    ),
    22: part(
        "InitProducerIdRequest",
        transactional_id="t",
        transaction_timeout=SECOND,
        producer_id=-1,
        producer_epoch=-1,
    ),
    23: part(
        "OffsetForLeaderEpochRequest",
        replica_id=-1,
        topics=[
            part(
                "OffsetForLeaderTopic",
                topic="nowhere",
                partitions=[
                    part("OffsetForLeaderPartition", partition=0, current_leader_epoch=0, leader_epoch=0),
                ],
            )
        ],
    ),
    24: part(
        "AddPartitionsToTxnRequest",
        **OLD_OWNER,
        v3_and_below_topics=[part("AddPartitionsToTxnTopic", name="nowhere", partitions=(0,))],
        transactions=[
            part(
                "AddPartitionsToTxnTransaction",
                **OWNER,
                verify_only=verify_only,
                topics=[part("AddPartitionsToTxnTopic", name="nowhere", partitions=(0,))],
            )
            for verify_only in (False, True)
        ],
    ),
    25: part("AddOffsetsToTxnRequest", **OWNER, group_id="g"),
    26: part("EndTxnRequest", **OWNER, committed=False),
    28: part(
        "TxnOffsetCommitRequest",
        **OWNER,
        group_id="g",
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=[
            part(
                "TxnOffsetCommitRequestTopic",
                name="nowhere",
                partitions=[
                    part(
                        "TxnOffsetCommitRequestPartition",
                        partition_index=0,
                        committed_offset=3,
                        committed_leader_epoch=-1,
                        committed_metadata=None,
                    )
                ],
            )
        ],
    ),
    32: part(
        "DescribeConfigsRequest",
        resources=[
            part("DescribeConfigsResource", resource_type=2, resource_name="nowhere", configuration_keys=None),
            part("DescribeConfigsResource", resource_type=4, resource_name="", configuration_keys=()),
            part("DescribeConfigsResource", resource_type=4, resource_name="x", configuration_keys=None),
            part("DescribeConfigsResource", resource_type=99, resource_name="x", configuration_keys=None),
        ],
        include_synonyms=True,
        include_documentation=True,
    ),
    33: part(
        "AlterConfigsRequest",
        resources=[_resource(2, "nowhere", (part("AlterableConfig", name="retention.ms", value="5"),))],
        validate_only=True,
    ),
    35: part("DescribeLogDirsRequest", topics=[part("DescribableLogDirTopic", topic="nowhere", partitions=(0,))]),
    37: part(
        "CreatePartitionsRequest",
        topics=[part("CreatePartitionsTopic", name="nowhere", count=3, assignments=None)],
        timeout=SECOND,
        validate_only=True,
    ),
    42: part("DeleteGroupsRequest", groups_names=("nobody",)),
    44: part(
        "IncrementalAlterConfigsRequest",
        resources=[_resource(4, "", (part("AlterableConfig", name="num.partitions", config_operation=0, value="5"),))],
        validate_only=True,
    ),
    43: part(
        "ElectLeadersRequest",
        election_type=1,
        topic_partitions=[part("TopicPartitions", topic="nowhere", partitions=(0,))],
        timeout=SECOND,
    ),
    27: part(
        "WriteTxnMarkersRequest",
        markers=[
            part(
                "WritableTxnMarker",
                producer_id=1,
                producer_epoch=0,
                transaction_result=False,
                topics=[part("WritableTxnMarkerTopic", name="nowhere", partition_indexes=(0,))],
                coordinator_epoch=0,
                transaction_version=0,
            )
        ],
    ),
    34: part(
        "AlterReplicaLogDirsRequest",
        dirs=[
            part(
                "AlterReplicaLogDir",
                path="memory://apis",
                topics=[part("AlterReplicaLogDirTopic", name="nowhere", partitions=(0,))],
            )
        ],
    ),
    55: part(
        "DescribeQuorumRequest",
        topics=[
            part(
                "TopicData",
                topic_name="__cluster_metadata",
                partitions=[part("PartitionData", partition_index=0)],
            )
        ],
    ),
    57: part(
        "UpdateFeaturesRequest",
        timeout=SECOND,
        feature_updates=[
            part(
                "FeatureUpdateKey",
                feature="group.version",
                max_version_level=1,
                allow_downgrade=False,
                upgrade_type=1,
            )
        ],
        validate_only=True,
    ),
    45: part(
        "AlterPartitionReassignmentsRequest",
        timeout=SECOND,
        allow_replication_factor_change=False,
        topics=[
            part(
                "ReassignableTopic",
                name="nowhere",
                partitions=[part("ReassignablePartition", partition_index=0, replicas=(1, 2))],
            )
        ],
    ),
    46: part(
        "ListPartitionReassignmentsRequest",
        timeout=SECOND,
        topics=[part("ListPartitionReassignmentsTopics", name="nowhere", partition_indexes=(0,))],
    ),
    48: part(
        "DescribeClientQuotasRequest",
        components=[part("ComponentData", entity_type="user", match_type=0, match="u")],
        strict=True,
    ),
    49: part(
        "AlterClientQuotasRequest",
        entries=[
            part(
                "EntryData",
                entity=[part("EntityData", entity_type="user", entity_name=None)],
                ops=[part("OpData", key="producer_byte_rate", value=1000.0, remove=False)],
            )
        ],
        validate_only=True,
    ),
    68: part(
        "ConsumerGroupHeartbeatRequest",
        group_id="g",
        member_id="m",
        member_epoch=0,
        instance_id="i",
        rack_id="r",
        rebalance_timeout=SECOND,
        subscribed_topic_names=("t",),
        subscribed_topic_regex="t.*",
        server_assignor="uniform",
        topic_partitions=[part("TopicPartitions", topic_id=TOPIC_ID, partitions=(0, 1))],
    ),
    69: part("ConsumerGroupDescribeRequest", group_ids=("nobody",), include_authorized_operations=True),
    47: part(
        "OffsetDeleteRequest",
        group_id="nobody",
        topics=[
            part(
                "OffsetDeleteRequestTopic",
                name="nowhere",
                partitions=[part("OffsetDeleteRequestPartition", partition_index=0)],
            )
        ],
    ),
    60: part(
        "DescribeClusterRequest",
        include_cluster_authorized_operations=True,
        endpoint_type=2,
        include_fenced_brokers=True,
    ),
    61: part("DescribeProducersRequest", topics=[part("TopicRequest", name="nowhere", partition_indexes=(0,))]),
    65: part("DescribeTransactionsRequest", transactional_ids=("nobody", "")),
    66: part(
        "ListTransactionsRequest",
        state_filters=("Ongoing", "?"),
        producer_id_filters=(1,),
        duration_filter=5,
        transactional_id_pattern="t.*",
    ),
    74: part("ListConfigResourcesRequest", resource_types=(2, 4)),
    75: part(
        "DescribeTopicPartitionsRequest",
        topics=[part("TopicRequest", name="nowhere")],
        response_partition_limit=5,
        cursor=part("Cursor", topic_name="a", partition_index=0),
    ),
}

ELSEWHERE = {2}
"""ListOffsets reads records, and is tested with the read path."""
CASES = [(key, version) for key, api in COLD_APIS.items() if key not in ELSEWHERE for version in api.versions]


def test_every_api_has_a_request_here() -> None:
    assert SMALLEST.keys() == FULL.keys() == COLD_APIS.keys() - ELSEWHERE


@pytest.fixture(params=["smallest", "full"])
def requests(request: pytest.FixtureRequest) -> dict[int, Part]:
    return SMALLEST if request.param == "smallest" else FULL


async def test_every_version_is_answered(call: ApiCaller, requests: dict[int, Part]) -> None:
    """All in one test. It takes a second where it runs first: loading the schemas of 117 versions does."""
    for key, version in CASES:
        request = requests[key]
        if key == 11:  # a second member would wait for the first
            request = part(request.class_name, **request.values | {"group_id": f"group-{version}"})
        response = await call(key, request, version=version)
        assert int(response.__version__) == version
        assert int(response.__api_key__) == key


@pytest.mark.parametrize("requests", ["full"], indirect=True)
async def test_every_version_is_answered_without_a_control_plane(call: ApiCaller, requests: dict[int, Part]) -> None:
    """With codes that clients retry, or that say nothing of the control plane at all; never with an exception."""
    call.agent.control = Unreachable()
    for key, version in CASES:
        for code in _codes(await call(key, requests[key], version=version)):
            assert code.retriable or code in NOT_ABOUT_CONTROL, (key, version, code)


NOT_ABOUT_CONTROL = {
    ErrorCode.none,
    ErrorCode.resource_not_found,
    ErrorCode.unknown_topic_id,
    ErrorCode.invalid_request,
    ErrorCode.mismatched_endpoint_type,
    ErrorCode.transactional_id_authorization_failed,
}


class Unreachable:
    """A control plane that no call gets to."""

    def __getattr__(self, name: str) -> Any:
        async def fail(*_: Any, **__: Any) -> Any:
            raise ControlUnavailable("nobody is there", help="start one")

        return fail


def _codes(entity: Any) -> list[ErrorCode]:
    if isinstance(entity, ErrorCode):
        return [entity]
    if isinstance(entity, tuple):
        return [code for item in entity for code in _codes(item)]
    if hasattr(entity, "__dataclass_fields__"):
        return [code for name in entity.__dataclass_fields__ for code in _codes(getattr(entity, name))]
    return []
