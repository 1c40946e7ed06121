"""Joining a consumer group of the classic protocol: who may, under which id, and what it sets going."""

from braidlog.control.group_effects import JoinAnswered, join_error, sync_error
from braidlog.control.group_errors import GroupError
from braidlog.control.group_member import (
    Member,
    member_from_request,
    protocols_bytes,
    unique_protocols,
)
from braidlog.control.group_rebalance import GroupRebalance
from braidlog.control.group_state import GroupState
from braidlog.control.group_subscription import subscribed_topics
from braidlog.control.interface import (
    JoinGroup,
)


class GroupJoining(GroupRebalance):
    """Members that come, come again, or come back under another id."""

    def _has_room(self, request: JoinGroup) -> bool:
        member = self._roster.get(request.member_id) or self._roster.get_static(request.group_instance_id)
        members_max = self._settings.members_per_group_max
        metadata_bytes = self._roster.metadata_bytes + protocols_bytes(unique_protocols(request))
        if metadata_bytes - (member.metadata_bytes if member else 0) > self._settings.group_metadata_bytes_max:
            return False
        if not request.member_id and len(self._pending) >= members_max:
            return False
        if self.state is GroupState.PREPARING:
            # Those who wait are counted, not the members: if there are too many, the last to rejoin have to go.
            return (member is not None and member.join_ticket is not None) or self._roster.joined_count < members_max
        return member is not None or len(self._roster) < members_max

    def _supports(self, request: JoinGroup) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type) and bool(request.protocols)
        return self.protocol_type == request.protocol_type and self._roster.shares_any(request.protocols)

    def _join_new(self, ticket: int, request: JoinGroup, member_id: str, now_s: float) -> None:
        old = self._roster.get_static(request.group_instance_id)
        if old is not None:
            self._replace_static(ticket, request, old, member_id, now_s)
        elif request.group_instance_id is None and request.require_known_member_id:
            self._pending[member_id] = now_s + request.session_timeout_ms / 1000
            self._refuse_join(ticket, member_id, GroupError.MEMBER_ID_REQUIRED)
        else:
            self._add_and_rebalance(ticket, request, member_id, now_s)

    def _join_known(self, ticket: int, request: JoinGroup, now_s: float) -> None:
        member_id = request.member_id
        if member_id in self._pending and request.group_instance_id is None:
            self._add_and_rebalance(ticket, request, member_id, now_s)
            return
        error = self._roster.check_identity(member_id, request.group_instance_id)
        if error is not GroupError.NONE:
            self._refuse_join(ticket, member_id, error)
            return
        member = self._roster[member_id]
        member.knows_id = True
        unchanged = member.protocols == unique_protocols(request)
        is_leader = member_id == self._roster.leader
        # A leader that joins a stable group again wants a new assignment, say because topics have changed.
        may_keep = self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not is_leader)
        if unchanged and may_keep:
            self._answer_join(member, join_error(member_id, GroupError.REBALANCE_IN_PROGRESS))
            self._restart_session(member, now_s)
            self._effects.append(JoinAnswered(ticket, self._join_answer(member)))
            return
        self._update(member, request, ticket)
        self._rebalance_or_complete(now_s)

    def _add_and_rebalance(self, ticket: int, request: JoinGroup, member_id: str, now_s: float) -> None:
        member = member_from_request(request, member_id)
        if not self._roster:
            self.protocol_type = request.protocol_type
        self._pending.pop(member_id, None)
        self._roster.add(member)
        self._roster.set_join_ticket(member, ticket)
        self._member_added = True
        member.session_deadline_s = now_s + self._settings.new_member_join_timeout_ms / 1000
        self._rebalance_or_complete(now_s)

    def _replace_static(self, ticket: int, request: JoinGroup, old: Member, member_id: str, now_s: float) -> None:
        """A static member came back with nothing but its instance id. Whoever still uses the old id is fenced."""
        member = self._rename(old, member_id, now_s)
        self._update(member, request, ticket)
        if self.state is GroupState.COMPLETING:
            # The leader may be assigning to the old id this moment: what it sends would miss the new one.
            self._prepare_rebalance(now_s)
        elif self.state is GroupState.STABLE and not self._changes_assignment(old, member):

            def saved(error: GroupError, saved_s: float) -> None:
                if member.join_ticket != ticket or self.state is not GroupState.STABLE:
                    return  # it has left, or takes part in the rebalance that began meanwhile
                if error is GroupError.NONE:
                    self._restart_session(member, saved_s)
                    self._answer_join(member, self._join_answer(member, skip_assignment=True))
                    return
                self._answer_join(member, join_error("", error))
                self._roster.set_protocols(member, old.protocols)
                member.session_timeout_ms, member.rebalance_timeout_ms = (
                    old.session_timeout_ms,
                    old.rebalance_timeout_ms,
                )
                self._rename(member, old.member_id, saved_s)

            self._save({member.member_id: member.assignment for member in self._roster}, saved)
        else:
            self._rebalance_or_complete(now_s)

    def _changes_assignment(self, old: Member, member: Member) -> bool:
        """Whether a static member came back with other wishes. The bytes may differ all the same: assignors put into
        them what the member owned last."""
        if self._roster.select_protocol() != self.protocol_name:
            return True
        if not self.uses_consumer_protocol:
            return False
        before, after = (subscribed_topics(each.metadata(self.protocol_name)) for each in (old, member))
        return before is not None and after is not None and before != after

    def _rename(self, old: Member, member_id: str, now_s: float) -> Member:
        self._answer_join(old, join_error(old.member_id, GroupError.FENCED_INSTANCE_ID))
        self._answer_sync(old, sync_error(GroupError.FENCED_INSTANCE_ID))
        member = self._roster.rename(old, member_id)
        if old.member_id in self._unsynced:
            self._unsynced = {member_id if each == old.member_id else each: None for each in self._unsynced}
        self._restart_session(member, now_s)
        return member
