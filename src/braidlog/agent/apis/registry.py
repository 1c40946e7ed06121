"""The table of cold APIs: their versions, handlers and services."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from braidlog.agent.apis.cluster import api_55_describe_quorum, api_57_update_features, api_60_describe_cluster
from braidlog.agent.apis.cluster.services import ClusterServices
from braidlog.agent.apis.configs import (
    api_32_describe_configs,
    api_33_alter_configs,
    api_44_incremental_alter_configs,
    api_48_describe_client_quotas,
    api_49_alter_client_quotas,
    api_74_list_config_resources,
)
from braidlog.agent.apis.configs.services import ConfigServices
from braidlog.agent.apis.context import RequestContext
from braidlog.agent.apis.groups import (
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_42_delete_groups,
    api_47_offset_delete,
    api_68_consumer_group_heartbeat,
    api_69_consumer_group_describe,
)
from braidlog.agent.apis.groups.services import GroupServices
from braidlog.agent.apis.records import api_02_list_offsets, api_21_delete_records, api_23_offset_for_leader_epoch
from braidlog.agent.apis.records.services import RecordServices
from braidlog.agent.apis.security import (
    api_29_describe_acls,
    api_30_create_acls,
    api_31_delete_acls,
    api_50_describe_user_scram_credentials,
    api_51_alter_user_scram_credentials,
)
from braidlog.agent.apis.security.services import SecurityServices
from braidlog.agent.apis.topics import (
    api_19_create_topics,
    api_20_delete_topics,
    api_34_alter_replica_log_dirs,
    api_35_describe_log_dirs,
    api_37_create_partitions,
    api_43_elect_leaders,
    api_45_alter_partition_reassignments,
    api_46_list_partition_reassignments,
    api_75_describe_topic_partitions,
)
from braidlog.agent.apis.topics.services import TopicServices
from braidlog.agent.apis.transactions import (
    api_22_init_producer_id,
    api_24_add_partitions_to_txn,
    api_25_add_offsets_to_txn,
    api_26_end_txn,
    api_27_write_txn_markers,
    api_28_txn_offset_commit,
    api_61_describe_producers,
    api_65_describe_transactions,
    api_66_list_transactions,
)
from braidlog.agent.apis.transactions.services import TransactionServices

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
Handle = Callable[[Any, RequestContext[Any]], Awaitable[Any]]


class ApiModule(Protocol[S_contra]):
    """The module of a cold API."""

    KEY: int
    VERSIONS: range

    async def handle(self, request: Any, context: RequestContext[S_contra], /) -> Any: ...


class ColdApi(NamedTuple):
    versions: range
    """The versions that are advertised, as a half-open range."""
    handle: Handle
    services: type
    """The class of the services that the handler uses."""


def _served(services: type[S], *apis: ApiModule[S]) -> dict[int, ColdApi]:
    return {api.KEY: ColdApi(api.VERSIONS, api.handle, services) for api in apis}


COLD_APIS: dict[int, ColdApi] = {
    **_served(RecordServices, api_02_list_offsets, api_21_delete_records, api_23_offset_for_leader_epoch),
    **_served(
        GroupServices,
        api_08_offset_commit,
        api_09_offset_fetch,
        api_10_find_coordinator,
        api_11_join_group,
        api_12_heartbeat,
        api_13_leave_group,
        api_14_sync_group,
        api_15_describe_groups,
        api_16_list_groups,
        api_42_delete_groups,
        api_47_offset_delete,
        api_68_consumer_group_heartbeat,
        api_69_consumer_group_describe,
    ),
    **_served(
        TransactionServices,
        api_22_init_producer_id,
        api_24_add_partitions_to_txn,
        api_25_add_offsets_to_txn,
        api_26_end_txn,
        api_27_write_txn_markers,
        api_28_txn_offset_commit,
        api_61_describe_producers,
        api_65_describe_transactions,
        api_66_list_transactions,
    ),
    **_served(
        TopicServices,
        api_19_create_topics,
        api_20_delete_topics,
        api_34_alter_replica_log_dirs,
        api_35_describe_log_dirs,
        api_37_create_partitions,
        api_43_elect_leaders,
        api_45_alter_partition_reassignments,
        api_46_list_partition_reassignments,
        api_75_describe_topic_partitions,
    ),
    **_served(
        ConfigServices,
        api_32_describe_configs,
        api_33_alter_configs,
        api_44_incremental_alter_configs,
        api_48_describe_client_quotas,
        api_49_alter_client_quotas,
        api_74_list_config_resources,
    ),
    **_served(
        SecurityServices,
        api_29_describe_acls,
        api_30_create_acls,
        api_31_delete_acls,
        api_50_describe_user_scram_credentials,
        api_51_alter_user_scram_credentials,
    ),
    **_served(ClusterServices, api_55_describe_quorum, api_57_update_features, api_60_describe_cluster),
}
"""All cold APIs by API key."""
