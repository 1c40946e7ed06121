"""A group that goes from one protocol to the other, and the coordinator that comes back in the middle of it."""

from kio.schema.errors import ErrorCode
from tests.control.groups.classic.driver import join_request, subscription, sync_request
from tests.control.groups.consumer.driver import Topics, heartbeat

from braidlog.control.groups.coordinator import GroupCoordinator
from braidlog.control.groups.settings import GroupSettings, MigrationPolicy
from braidlog.control.groups.subscription import read_assignment, write_assignment
from braidlog.control.interface import (
    DescribeConsumerGroups,
    DescribeGroups,
    GroupHeartbeat,
    JoinAnswer,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    ListGroups,
)
from braidlog.control.metadata.sqlite import SqliteMetadata
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy

T = Topics.id_of("t")
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
RANGE = JoinProtocol("range", subscription("t"))


async def coordinator(metadata: SqliteMetadata, settings: GroupSettings = SETTINGS) -> GroupCoordinator:
    await metadata.acquire_fencing_epoch()
    topics = Topics(t=4)
    found = GroupCoordinator(metadata, SystemClock(), SeededEntropy(1), settings, topics)
    await found.start()
    return found


async def join_classic(groups: GroupCoordinator) -> JoinAnswer:
    """The only member, which is assigned everything."""
    joined = await groups.join_group(join_request(protocols=(RANGE,)))
    assert joined.error_code == ErrorCode.none
    mine = write_assignment(0, {"t": [0, 1, 2, 3]})
    synced = await groups.sync_group(sync_request(joined, {joined.member_id: mine}))
    assert synced.error_code == ErrorCode.none
    return joined


async def group_type(groups: GroupCoordinator) -> str:
    [listing] = (await groups.list_groups(ListGroups())).groups
    return listing.group_type


async def test_there_and_back() -> None:
    metadata = await SqliteMetadata.open("")
    groups = await coordinator(metadata)
    old = await join_classic(groups)
    assert await group_type(groups) == "classic"
    new = await groups.heartbeat_consumer(heartbeat("new"))
    assert (new.error_code, new.assigned) == (ErrorCode.none, [])
    assert await group_type(groups) == "consumer"
    beat = GroupHeartbeat("g", old.generation_id, old.member_id, None)
    assert (await groups.heartbeat_group(beat)).error_code == ErrorCode.rebalance_in_progress
    # It joins as an eager member does, with nothing in its hands, and is given its half by the coordinator.
    again = await groups.join_group(join_request(old.member_id, protocols=(RANGE,)))
    assert again.error_code == ErrorCode.none
    assert (again.leader, again.members) == ("", [])
    synced = await groups.sync_group(sync_request(again))
    half = (read_assignment(synced.assignment) or {})["t"]
    assert len(half) == 2
    told = await groups.heartbeat_consumer(heartbeat("new", new.member_epoch))
    rest = [index for _, indexes in told.assigned or [] for index in indexes]
    assert sorted([*half, *rest]) == [0, 1, 2, 3]
    [described] = (await groups.describe_consumer_groups(DescribeConsumerGroups(["g"]))).groups
    assert sorted(member.is_classic for member in described.members) == [False, True]
    # The coordinator comes back with all of it.
    await groups.close()
    groups = await coordinator(metadata)
    assert await group_type(groups) == "consumer"
    steady = GroupHeartbeat("g", again.generation_id, old.member_id, None)
    assert (await groups.heartbeat_group(steady)).error_code == ErrorCode.none
    assert (await groups.heartbeat_consumer(heartbeat("new", told.member_epoch))).error_code == ErrorCode.none
    # The last member of the newer protocol leaves.
    assert (await groups.heartbeat_consumer(heartbeat("new", -1))).error_code == ErrorCode.none
    assert await group_type(groups) == "classic"
    [classic] = (await groups.describe_groups(DescribeGroups(["g"]))).groups
    assert [member.member_id for member in classic.members] == [old.member_id]
    await groups.close()
    groups = await coordinator(metadata)
    assert await group_type(groups) == "classic"
    left = await groups.leave_group(LeaveGroup("g", [LeavingMember(old.member_id, None)]))
    assert left.member_error_codes == [ErrorCode.none]
    await groups.close()
    await metadata.close()


async def test_a_policy_against_it() -> None:
    metadata = await SqliteMetadata.open("")
    policy = GroupSettings(initial_rebalance_delay_ms=0, consumer_migration_policy=MigrationPolicy.DISABLED)
    groups = await coordinator(metadata, policy)
    old = await join_classic(groups)
    refused = await groups.heartbeat_consumer(heartbeat("new"))
    assert refused.error_code == ErrorCode.group_id_not_found
    assert await group_type(groups) == "classic"
    await groups.leave_group(LeaveGroup("g", [LeavingMember(old.member_id, None)]))
    assert (await groups.heartbeat_consumer(heartbeat("new"))).error_code == ErrorCode.none, "an empty one may always"
    await groups.close()
    await metadata.close()
