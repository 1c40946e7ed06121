"""The group coordinator: groups of both protocols over the metadata store."""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.membership import GroupMembership
from braidlog.control.groups.consumer.membership import ConsumerMembership
from braidlog.control.groups.consumer.requests import Refused, check_heartbeat
from braidlog.control.groups.effects import (
    join_error,
    sync_error,
)
from braidlog.control.groups.offset_commits import OffsetCommits
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.groups.table import GroupTable, GroupTopics, wait_all
from braidlog.control.interface import (
    ConsumerGroupDescription,
    ConsumerGroupDescriptions,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    DeleteGroups,
    DescribeConsumerGroups,
    DescribeGroups,
    GroupDescription,
    GroupDescriptions,
    GroupHeartbeat,
    GroupListings,
    GroupOutcomes,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    ListGroups,
    Outcome,
    SyncAnswer,
    SyncGroup,
)
from braidlog.control.metadata.store import MetadataStore
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable


class GroupCoordinator:
    """Answers the requests of members.

    `commits` answers those about committed offsets.
    """

    def __init__(
        self, metadata: MetadataStore, clock: Clock, entropy: Entropy, settings: GroupSettings, topics: GroupTopics
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._table = GroupTable(metadata, clock, entropy, settings, topics)
        self.commits = OffsetCommits(self._table)

    async def start(self) -> None:
        """Load the durable groups and offsets. Until then, requests are told to retry."""
        await self._table.load()

    async def close(self) -> None:
        """Answer the waiting requests, and finish the writes in flight.

        Another coordinator takes over the members.
        """
        await self._table.close()

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Apply the configs of a group from now on.

        Members hear of them with their next heartbeat.
        """
        self._table.configure(group_id, configs)

    # ── membership ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join_group(self, request: JoinGroup) -> JoinAnswer:
        error = self._table.check_group_id(request.group_id)
        group = self._table.groups.get(request.group_id)
        if error is ErrorCode.none and group is None:
            if request.member_id:
                error = ErrorCode.unknown_member_id
            elif len(self._table.groups) >= self._settings.groups_max:
                error = ErrorCode.policy_violation
            else:
                group = self._table.ensure_group(request.group_id)
        if error is not ErrorCode.none or group is None:
            return join_error(request.member_id, error)
        if isinstance(group.membership, ConsumerMembership) and group.membership.is_deletable:
            group.membership = GroupMembership(group.group_id, self._settings)
        ticket, future = self._table.joins.open()
        name = request.client_id if request.group_instance_id is None else request.group_instance_id
        fresh_member_id = self._table.new_member_id(group, name)
        effects = group.membership.join(ticket, request, fresh_member_id, self._clock.monotonic_s())
        self._table.settle(group, effects)
        return await self._table.wait(group, self._table.joins, ticket, future)

    async def sync_group(self, request: SyncGroup) -> SyncAnswer:
        error = self._table.check_group_id(request.group_id)
        group = self._table.groups.get(request.group_id)
        if error is ErrorCode.coordinator_load_in_progress:
            error = ErrorCode.rebalance_in_progress  # the rebalance is lost: the member rejoins, and its join waits
        elif error is ErrorCode.none and group is None:
            error = ErrorCode.unknown_member_id
        if error is not ErrorCode.none or group is None:
            return sync_error(error)
        ticket, future = self._table.syncs.open()
        self._table.settle(group, group.membership.sync(ticket, request, self._clock.monotonic_s()))
        return await self._table.wait(group, self._table.syncs, ticket, future)

    async def heartbeat_group(self, request: GroupHeartbeat) -> Outcome:
        error = self._table.check_group_id(request.group_id)
        if error is ErrorCode.coordinator_load_in_progress:
            return Outcome(ErrorCode.none)  # loading restarts all sessions
        if error is ErrorCode.none:
            group = self._table.groups.get(request.group_id)
            if group is None:
                error = ErrorCode.unknown_member_id
            else:
                error = group.membership.heartbeat(request, self._clock.monotonic_s())
                self._table.arm_if_sooner(group)
        return Outcome(error)

    async def heartbeat_consumer(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        if self._table.status is not ErrorCode.none:
            return ConsumerHeartbeatAnswer(self._table.status)
        try:
            check_heartbeat(request)
            group = self._table.consumer_group(request)
        except Refused as refused:
            return ConsumerHeartbeatAnswer(refused.error, str(refused))
        membership = group.membership
        assert isinstance(membership, ConsumerMembership)
        ticket, future = self._table.heartbeats.open()
        fresh_member_id = request.member_id or self._table.new_member_id(group, request.client_id)
        effects = membership.heartbeat_consumer(ticket, request, fresh_member_id, self._clock.monotonic_s())
        self._table.settle(group, effects)
        return await self._table.wait(group, self._table.heartbeats, ticket, future)

    async def leave_group(self, request: LeaveGroup) -> LeaveAnswer:
        error = self._table.check_group_id(request.group_id)
        if error is not ErrorCode.none:
            return LeaveAnswer(error, [])
        group = self._table.groups.get(request.group_id)
        if group is None:
            return LeaveAnswer(ErrorCode.none, [ErrorCode.unknown_member_id] * len(request.members))
        answer, effects = group.membership.leave(request, self._clock.monotonic_s())
        self._table.settle(group, effects)
        return answer

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_groups(self, request: ListGroups) -> GroupListings:
        if self._table.status is not ErrorCode.none:
            raise ControlUnavailable("the consumer groups are not loaded", help="Retry in a moment.")
        states = {state.lower() for state in request.states}
        types = {group_type.lower() for group_type in request.types}
        listings = (group.membership.listing() for group in self._table.groups.values())
        return GroupListings(
            [
                listing
                for listing in listings
                if (not states or listing.state.lower() in states) and (not types or listing.group_type in types)
            ]
        )

    async def describe_groups(self, request: DescribeGroups) -> GroupDescriptions:
        """Describe classic groups. An unknown group is Dead, with GROUP_ID_NOT_FOUND.

        DescribeGroups before 6 hides that code. A group of the consumer protocol is Dead here, too:
        `describe_consumer_groups` describes it.
        """
        descriptions = []
        for group_id in request.group_ids:
            group = self._table.groups.get(group_id)
            if self._table.status is not ErrorCode.none:
                descriptions.append(GroupDescription(self._table.status, group_id, "", "", "", []))
            elif group is None or isinstance(group.membership, ConsumerMembership):
                code = ErrorCode.group_id_not_found
                descriptions.append(GroupDescription(code, group_id, GroupState.DEAD.value, "", "", []))
            else:
                descriptions.append(group.membership.describe())
        return GroupDescriptions(descriptions)

    async def describe_consumer_groups(self, request: DescribeConsumerGroups) -> ConsumerGroupDescriptions:
        descriptions = []
        for group_id in request.group_ids:
            group = self._table.groups.get(group_id)
            if self._table.status is not ErrorCode.none:
                descriptions.append(ConsumerGroupDescription(self._table.status, group_id))
            elif group is None or not isinstance(group.membership, ConsumerMembership):
                message = (
                    f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
                )
                descriptions.append(ConsumerGroupDescription(ErrorCode.group_id_not_found, group_id, message))
            else:
                descriptions.append(group.membership.describe_consumer())
        return ConsumerGroupDescriptions(descriptions)

    async def delete_groups(self, request: DeleteGroups) -> GroupOutcomes:
        error_codes: list[int] = []
        writes = []
        for group_id in request.group_ids:
            group = self._table.groups.get(group_id)
            if self._table.status is not ErrorCode.none:
                error_codes.append(self._table.status)
            elif group is None:
                error_codes.append(ErrorCode.group_id_not_found)
            elif group.membership.state is not GroupState.EMPTY:
                error_codes.append(ErrorCode.non_empty_group)
            else:
                writes.append(self._table.delete_group(group))
                error_codes.append(ErrorCode.none)
        await wait_all(writes)
        return GroupOutcomes(error_codes)
