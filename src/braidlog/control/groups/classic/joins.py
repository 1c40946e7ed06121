"""Joins of a classic consumer group.

Decides who may join, under which id, and whether that starts a rebalance.
"""

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import (
    Member,
    member_from_request,
    protocols_bytes,
    unique_protocols,
)
from braidlog.control.groups.classic.rebalance import GroupRebalance
from braidlog.control.groups.effects import JoinAnswered, join_error, sync_error
from braidlog.control.groups.state import GroupState
from braidlog.control.groups.subscription import subscribed_topics
from braidlog.control.interface import (
    JoinGroup,
)


class GroupJoins:
    """Lets members in: new, rejoining, and static ones with another id."""

    def __init__(self, group: GroupRebalance) -> None:
        self._group = group

    def has_room(self, request: JoinGroup) -> bool:
        member = self._group.roster.get(request.member_id) or self._group.roster.get_static(request.group_instance_id)
        members_max = self._group.settings.members_per_group_max
        metadata_bytes = self._group.roster.metadata_bytes + protocols_bytes(unique_protocols(request))
        if metadata_bytes - (member.metadata_bytes if member else 0) > self._group.settings.group_metadata_bytes_max:
            return False
        if not request.member_id and len(self._group.pending) >= members_max:
            return False
        if self._group.state is GroupState.PREPARING:
            # Count the members that wait, not all: if there are too many, the last to rejoin are refused.
            return (
                member is not None and member.join_ticket is not None
            ) or self._group.roster.joined_count < members_max
        return member is not None or len(self._group.roster) < members_max

    def supports(self, request: JoinGroup) -> bool:
        if self._group.state is GroupState.EMPTY:
            return bool(request.protocol_type) and bool(request.protocols)
        return self._group.protocol_type == request.protocol_type and self._group.roster.shares_any(request.protocols)

    def join_new(self, ticket: int, request: JoinGroup, member_id: str, now_s: float) -> None:
        old = self._group.roster.get_static(request.group_instance_id)
        if old is not None:
            self._replace_static(ticket, request, old, member_id, now_s)
        elif request.group_instance_id is None and request.require_known_member_id:
            self._group.pending[member_id] = now_s + request.session_timeout_ms / 1000
            self._group.refuse_join(ticket, member_id, ErrorCode.member_id_required)
        else:
            self._add_and_rebalance(ticket, request, member_id, now_s)

    def join_known(self, ticket: int, request: JoinGroup, now_s: float) -> None:
        member_id = request.member_id
        if member_id in self._group.pending and request.group_instance_id is None:
            self._add_and_rebalance(ticket, request, member_id, now_s)
            return
        error = self._group.roster.check_identity(member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            self._group.refuse_join(ticket, member_id, error)
            return
        member = self._group.roster[member_id]
        member.knows_id = True
        unchanged = member.protocols == unique_protocols(request)
        is_leader = member_id == self._group.roster.leader
        # A leader that rejoins a stable group wants a new assignment, for example because topics have changed.
        may_keep = self._group.state is GroupState.COMPLETING or (
            self._group.state is GroupState.STABLE and not is_leader
        )
        if unchanged and may_keep:
            self._group.answer_join(member, join_error(member_id, ErrorCode.rebalance_in_progress))
            self._group.restart_session(member, now_s)
            self._group.effects.append(JoinAnswered(ticket, self._group.join_answer(member)))
            return
        self._group.update(member, request, ticket)
        self._group.rebalance_or_complete(now_s)

    def _add_and_rebalance(self, ticket: int, request: JoinGroup, member_id: str, now_s: float) -> None:
        member = member_from_request(request, member_id)
        if not self._group.roster:
            self._group.protocol_type = request.protocol_type
        self._group.pending.pop(member_id, None)
        self._group.roster.add(member)
        self._group.roster.set_join_ticket(member, ticket)
        self._group.member_added = True
        member.session_deadline_s = now_s + self._group.settings.new_member_join_timeout_ms / 1000
        self._group.rebalance_or_complete(now_s)

    def _replace_static(self, ticket: int, request: JoinGroup, old: Member, member_id: str, now_s: float) -> None:
        """Replace a static member that returned with only its instance id.

        Its old member id is fenced.
        """
        member = self._rename(old, member_id, now_s)
        self._group.update(member, request, ticket)
        if self._group.state is GroupState.COMPLETING:
            # The leader may be assigning to the old id right now, and would miss the new one.
            self._group.prepare_rebalance(now_s)
        elif self._group.state is GroupState.STABLE and not self._changes_assignment(old, member):

            def saved(error: ErrorCode, saved_s: float) -> None:
                if member.join_ticket != ticket or self._group.state is not GroupState.STABLE:
                    return  # it has left, or is part of a rebalance that has begun meanwhile
                if error is ErrorCode.none:
                    self._group.restart_session(member, saved_s)
                    self._group.answer_join(member, self._group.join_answer(member, skip_assignment=True))
                    return
                self._group.answer_join(member, join_error("", error))
                self._group.roster.set_protocols(member, old.protocols)
                member.session_timeout_ms, member.rebalance_timeout_ms = (
                    old.session_timeout_ms,
                    old.rebalance_timeout_ms,
                )
                self._rename(member, old.member_id, saved_s)

            self._group.save({member.member_id: member.assignment for member in self._group.roster}, saved)
        else:
            self._group.rebalance_or_complete(now_s)

    def _changes_assignment(self, old: Member, member: Member) -> bool:
        """Whether a static member came back with another subscription.

        The bytes may differ all the same: assignors put into them what the member owned last.
        """
        if self._group.roster.select_protocol() != self._group.protocol_name:
            return True
        if not self._group.uses_consumer_protocol:
            return False
        before, after = (subscribed_topics(each.metadata(self._group.protocol_name)) for each in (old, member))
        return before is not None and after is not None and before != after

    def _rename(self, old: Member, member_id: str, now_s: float) -> Member:
        self._group.answer_join(old, join_error(old.member_id, ErrorCode.fenced_instance_id))
        self._group.answer_sync(old, sync_error(ErrorCode.fenced_instance_id))
        member = self._group.roster.rename(old, member_id)
        if old.member_id in self._group.unsynced:
            self._group.unsynced = {member_id if each == old.member_id else each: None for each in self._group.unsynced}
        self._group.restart_session(member, now_s)
        return member
