"""The group coordinator: consumer groups of both of Kafka's protocols over the metadata store."""

import asyncio

from braidlog.control.consumer_membership import ConsumerMembership
from braidlog.control.consumer_requests import Refused, check_heartbeat
from braidlog.control.group_commits import GroupCommits
from braidlog.control.group_effects import (
    join_error,
    sync_error,
)
from braidlog.control.group_errors import GroupError
from braidlog.control.group_membership import GroupMembership
from braidlog.control.group_state import GroupState
from braidlog.control.group_table import wait_all
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
from braidlog.runtime.errors import ControlUnavailable


class GroupCoordinator(GroupCommits):
    # ── membership ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def join_group(self, request: JoinGroup) -> JoinAnswer:
        error = self._check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if error is GroupError.NONE and group is None:
            if request.member_id:
                error = GroupError.UNKNOWN_MEMBER_ID
            elif len(self._groups) >= self._settings.groups_max:
                error = GroupError.POLICY_VIOLATION
            else:
                group = self._ensure_group(request.group_id)
        if error is not GroupError.NONE or group is None:
            return join_error(request.member_id, error)
        if isinstance(group.membership, ConsumerMembership) and group.membership.is_deletable:
            group.membership = GroupMembership(group.group_id, self._settings)
        ticket = next(self._tickets)
        future = self._joins[ticket] = asyncio.get_running_loop().create_future()
        name = request.client_id if request.group_instance_id is None else request.group_instance_id
        fresh_member_id = self._new_member_id(group, name)
        effects = group.membership.join(ticket, request, fresh_member_id, self._clock.monotonic_s())
        self._settle(group, effects)
        return await self._wait(group, ticket, future, self._joins)

    async def sync_group(self, request: SyncGroup) -> SyncAnswer:
        error = self._check_group_id(request.group_id)
        group = self._groups.get(request.group_id)
        if error is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            error = GroupError.REBALANCE_IN_PROGRESS  # the rebalance is lost: the member joins again, and that waits
        elif error is GroupError.NONE and group is None:
            error = GroupError.UNKNOWN_MEMBER_ID
        if error is not GroupError.NONE or group is None:
            return sync_error(error)
        ticket = next(self._tickets)
        future = self._syncs[ticket] = asyncio.get_running_loop().create_future()
        self._settle(group, group.membership.sync(ticket, request, self._clock.monotonic_s()))
        return await self._wait(group, ticket, future, self._syncs)

    async def heartbeat_group(self, request: GroupHeartbeat) -> Outcome:
        error = self._check_group_id(request.group_id)
        if error is GroupError.COORDINATOR_LOAD_IN_PROGRESS:
            return Outcome(GroupError.NONE)  # sessions start anew after loading
        if error is GroupError.NONE:
            group = self._groups.get(request.group_id)
            if group is None:
                error = GroupError.UNKNOWN_MEMBER_ID
            else:
                error = group.membership.heartbeat(request, self._clock.monotonic_s())
                self._arm_if_sooner(group)
        return Outcome(error)

    async def heartbeat_consumer(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        if self._status is not GroupError.NONE:
            return ConsumerHeartbeatAnswer(self._status)
        try:
            check_heartbeat(request)
            group = self._consumer_group(request)
        except Refused as refused:
            return ConsumerHeartbeatAnswer(refused.error, str(refused))
        membership = group.membership
        assert isinstance(membership, ConsumerMembership)
        ticket = next(self._tickets)
        future = self._heartbeats[ticket] = asyncio.get_running_loop().create_future()
        fresh_member_id = request.member_id or self._new_member_id(group, request.client_id)
        effects = membership.heartbeat_consumer(ticket, request, fresh_member_id, self._clock.monotonic_s())
        self._settle(group, effects)
        return await self._wait(group, ticket, future, self._heartbeats)

    async def leave_group(self, request: LeaveGroup) -> LeaveAnswer:
        error = self._check_group_id(request.group_id)
        if error is not GroupError.NONE:
            return LeaveAnswer(error, [])
        group = self._groups.get(request.group_id)
        if group is None:
            return LeaveAnswer(GroupError.NONE, [GroupError.UNKNOWN_MEMBER_ID] * len(request.members))
        answer, effects = group.membership.leave(request, self._clock.monotonic_s())
        self._settle(group, effects)
        return answer

    # ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_groups(self, request: ListGroups) -> GroupListings:
        if self._status is not GroupError.NONE:
            raise ControlUnavailable("the consumer groups are not loaded", help="Retry in a moment.")
        states = {state.lower() for state in request.states}
        types = {group_type.lower() for group_type in request.types}
        listings = (group.membership.listing() for group in self._groups.values())
        return GroupListings(
            [
                listing
                for listing in listings
                if (not states or listing.state.lower() in states) and (not types or listing.group_type in types)
            ]
        )

    async def describe_groups(self, request: DescribeGroups) -> GroupDescriptions:
        """A group that is not there is Dead, with GROUP_ID_NOT_FOUND (which DescribeGroups before 6 does not tell).
        So is one of the newer protocol, which has a description of its own."""
        descriptions = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                descriptions.append(GroupDescription(self._status, group_id, "", "", "", []))
            elif group is None or isinstance(group.membership, ConsumerMembership):
                code = GroupError.GROUP_ID_NOT_FOUND
                descriptions.append(GroupDescription(code, group_id, GroupState.DEAD.value, "", "", []))
            else:
                descriptions.append(group.membership.describe())
        return GroupDescriptions(descriptions)

    async def describe_consumer_groups(self, request: DescribeConsumerGroups) -> ConsumerGroupDescriptions:
        descriptions = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                descriptions.append(ConsumerGroupDescription(self._status, group_id))
            elif group is None or not isinstance(group.membership, ConsumerMembership):
                message = (
                    f"Group {group_id} not found." if group is None else f"Group {group_id} is not a consumer group."
                )
                descriptions.append(ConsumerGroupDescription(GroupError.GROUP_ID_NOT_FOUND, group_id, message))
            else:
                descriptions.append(group.membership.describe_consumer())
        return ConsumerGroupDescriptions(descriptions)

    async def delete_groups(self, request: DeleteGroups) -> GroupOutcomes:
        error_codes: list[int] = []
        writes = []
        for group_id in request.group_ids:
            group = self._groups.get(group_id)
            if self._status is not GroupError.NONE:
                error_codes.append(self._status)
            elif group is None:
                error_codes.append(GroupError.GROUP_ID_NOT_FOUND)
            elif group.membership.state is not GroupState.EMPTY:
                error_codes.append(GroupError.NON_EMPTY_GROUP)
            else:
                writes.append(self._delete_group(group))
                error_codes.append(GroupError.NONE)
        await wait_all(writes)
        return GroupOutcomes(error_codes)
