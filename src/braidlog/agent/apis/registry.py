"""The cold APIs that are served, by key."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from braidlog.agent.apis import (
    api_02_list_offsets,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_19_create_topics,
    api_20_delete_topics,
    api_21_delete_records,
    api_22_init_producer_id,
    api_23_offset_for_leader_epoch,
    api_24_add_partitions_to_txn,
    api_25_add_offsets_to_txn,
    api_26_end_txn,
    api_28_txn_offset_commit,
    api_32_describe_configs,
    api_33_alter_configs,
    api_35_describe_log_dirs,
    api_37_create_partitions,
    api_42_delete_groups,
    api_43_elect_leaders,
    api_44_incremental_alter_configs,
    api_45_alter_partition_reassignments,
    api_46_list_partition_reassignments,
    api_47_offset_delete,
    api_48_describe_client_quotas,
    api_49_alter_client_quotas,
    api_60_describe_cluster,
    api_61_describe_producers,
    api_65_describe_transactions,
    api_66_list_transactions,
    api_68_consumer_group_heartbeat,
    api_69_consumer_group_describe,
    api_74_list_config_resources,
    api_75_describe_topic_partitions,
)
from braidlog.agent.context import RequestContext


class ColdApi(NamedTuple):
    versions: range
    """Half-open: the versions that are advertised."""
    handle: Callable[[Any, RequestContext], Awaitable[Any]]


COLD_APIS: dict[int, ColdApi] = {
    api.KEY: ColdApi(api.VERSIONS, api.handle)
    for api in (
        api_02_list_offsets,
        api_08_offset_commit,
        api_09_offset_fetch,
        api_10_find_coordinator,
        api_11_join_group,
        api_12_heartbeat,
        api_13_leave_group,
        api_14_sync_group,
        api_15_describe_groups,
        api_16_list_groups,
        api_19_create_topics,
        api_20_delete_topics,
        api_21_delete_records,
        api_22_init_producer_id,
        api_23_offset_for_leader_epoch,
        api_24_add_partitions_to_txn,
        api_25_add_offsets_to_txn,
        api_26_end_txn,
        api_28_txn_offset_commit,
        api_32_describe_configs,
        api_33_alter_configs,
        api_35_describe_log_dirs,
        api_37_create_partitions,
        api_42_delete_groups,
        api_43_elect_leaders,
        api_44_incremental_alter_configs,
        api_45_alter_partition_reassignments,
        api_46_list_partition_reassignments,
        api_47_offset_delete,
        api_48_describe_client_quotas,
        api_49_alter_client_quotas,
        api_60_describe_cluster,
        api_61_describe_producers,
        api_65_describe_transactions,
        api_66_list_transactions,
        api_68_consumer_group_heartbeat,
        api_69_consumer_group_describe,
        api_74_list_config_resources,
        api_75_describe_topic_partitions,
    )
}
