"""What the agent says that it speaks. Clients choose by it what they send, and some infer a release of Kafka."""

from kio.schema.index import api_key_map

from braidlog.agent.apis.dispatch import API_VERSIONS

ADVERTISED = {
    "produce": (0, 13),
    "fetch": (4, 18),
    "list_offsets": (1, 11),
    "metadata": (0, 13),
    "offset_commit": (2, 10),
    "offset_fetch": (1, 10),
    "find_coordinator": (0, 6),
    "join_group": (0, 9),
    "heartbeat": (0, 4),
    "leave_group": (0, 5),
    "sync_group": (0, 5),
    "describe_groups": (0, 6),
    "list_groups": (0, 5),
    "sasl_handshake": (1, 1),
    "api_versions": (0, 4),
    "create_topics": (2, 7),
    "delete_topics": (1, 6),
    "delete_records": (0, 2),
    "init_producer_id": (0, 5),
    "offset_for_leader_epoch": (2, 4),
    "add_partitions_to_txn": (0, 5),
    "add_offsets_to_txn": (0, 4),
    "end_txn": (0, 5),
    "write_txn_markers": (1, 2),
    "txn_offset_commit": (0, 5),
    "describe_acls": (1, 3),
    "create_acls": (1, 3),
    "delete_acls": (1, 3),
    "describe_configs": (1, 4),
    "alter_configs": (0, 2),
    "alter_replica_log_dirs": (1, 2),
    "describe_log_dirs": (1, 4),
    "sasl_authenticate": (0, 2),
    "create_partitions": (0, 3),
    "delete_groups": (0, 2),
    "elect_leaders": (0, 2),
    "incremental_alter_configs": (0, 1),
    "alter_partition_reassignments": (0, 1),
    "list_partition_reassignments": (0, 0),
    "offset_delete": (0, 0),
    "describe_client_quotas": (0, 1),
    "alter_client_quotas": (0, 1),
    "describe_user_scram_credentials": (0, 0),
    "alter_user_scram_credentials": (0, 0),
    "describe_quorum": (0, 2),
    "update_features": (0, 2),
    "describe_cluster": (0, 2),
    "describe_producers": (0, 0),
    "describe_transactions": (0, 0),
    "list_transactions": (0, 2),
    "consumer_group_heartbeat": (0, 1),
    "consumer_group_describe": (0, 1),
    "list_config_resources": (0, 1),
    "describe_topic_partitions": (0, 0),
}
"""The lowest and the highest version of each API. A line here changes only on purpose."""

KAFKA_4_2 = {
    "produce": (0, 13),
    "fetch": (4, 18),
    "metadata": (0, 13),
    "list_offsets": (1, 11),
    "join_group": (0, 9),
    "api_versions": (0, 4),
}
"""What that release offers of the APIs by which clients tell releases apart."""


def test_the_versions_of_every_api_are_these() -> None:
    served = {api_key_map[key]: (versions[0], versions[-1]) for key, versions in API_VERSIONS.items()}
    assert served == ADVERTISED
    assert all(versions.step == 1 for versions in API_VERSIONS.values())


def test_clients_take_the_agent_for_kafka_4_2() -> None:
    assert {name: ADVERTISED[name] for name in KAFKA_4_2} == KAFKA_4_2
