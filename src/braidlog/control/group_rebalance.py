"""The rebalance of a consumer group of the classic protocol: how a generation ends and the next one begins.

`group_joining` adds who may take part, `group_membership` the requests.
"""

from collections.abc import Callable
from dataclasses import dataclass

from braidlog.control.group_effects import Effect, JoinAnswered, SaveGroup, SyncAnswered, join_error, sync_error
from braidlog.control.group_errors import GroupError
from braidlog.control.group_member import (
    Member,
    SavedGroup,
    rebalance_timeout_ms,
    unique_protocols,
)
from braidlog.control.group_roster import GroupRoster
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_state import GroupState
from braidlog.control.group_subscription import CONSUMER_PROTOCOL_TYPE
from braidlog.control.interface import (
    JoinAnswer,
    JoinGroup,
    JoinMember,
    LeavingMember,
    SyncAnswer,
    SyncGroup,
)


@dataclass(frozen=True, slots=True)
class _InitialDelay:
    """The step that the first rebalance of an empty group is waiting out."""

    step_ms: int
    remaining_ms: int


class GroupRebalance:
    """State, and what changes it from one phase to the next. Answers and writes come out as effects."""

    group_type = "classic"

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self._subscribed_topics: frozenset[str] | None = None
        self._settings = settings
        self._roster = GroupRoster()
        self._pending: dict[str, float] = {}
        """Ids handed out with MEMBER_ID_REQUIRED, and until when they may be used."""
        self._unsynced: dict[str, None] = {}
        """Members of this generation whose sync has not come yet, in order."""
        self._join_deadline_s: float | None = None
        self._sync_deadline_s: float | None = None
        self._initial_delay: _InitialDelay | None = None
        self._member_added = False
        """Since the initial delay's last step began."""
        self._save_number = 0
        self._unsaved: dict[int, Callable[[GroupError, float], None]] = {}
        """What to do when a save is done, by its number."""
        self._has_assignment = False
        """The leader has sent this generation's assignment; it may still be on its way to the disk."""
        self._effects: list[Effect] = []

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # ── phases ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rebalance_or_complete(self, now_s: float) -> None:
        if self.state is GroupState.PREPARING:
            if self._initial_delay is None:
                self._complete_join_if_all_joined(now_s)
        elif self._roster or self.state is not GroupState.EMPTY:
            self._prepare_rebalance(now_s)

    def _prepare_rebalance(self, now_s: float) -> None:
        if self.state is GroupState.COMPLETING:
            self._reset_assignments(GroupError.REBALANCE_IN_PROGRESS, now_s)
        self._unsynced.clear()
        self._sync_deadline_s = None
        is_initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        if is_initial:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_delay = _InitialDelay(delay_ms, max(self._roster.rebalance_timeout_ms() - delay_ms, 0))
            self._member_added = False
            self._join_deadline_s = now_s + delay_ms / 1000
        elif self._all_joined():
            self._complete_join(now_s)
        else:
            self._join_deadline_s = now_s + self._roster.rebalance_timeout_ms() / 1000

    def _end_join_wait(self, now_s: float) -> None:
        step = self._initial_delay
        if step is not None and self._member_added and step.remaining_ms > 0:
            # Members keep coming: wait on, as long as the first of them is ready to.
            step_ms = min(self._settings.initial_rebalance_delay_ms, step.remaining_ms)
            self._initial_delay = _InitialDelay(step_ms, max(step.remaining_ms - step_ms, 0))
            self._member_added = False
            self._join_deadline_s = now_s + step_ms / 1000
        else:
            self._complete_join(now_s)

    def _all_joined(self) -> bool:
        return self._roster.joined_count == len(self._roster) and not self._pending

    def _complete_join_if_all_joined(self, now_s: float) -> None:
        if self.state is GroupState.PREPARING and self._all_joined():
            self._complete_join(now_s)

    def _complete_join(self, now_s: float) -> None:
        """The next generation begins with those who have rejoined. Absent static members stay until they time out."""
        self._join_deadline_s = self._initial_delay = None
        for member in list(self._roster):
            if member.join_ticket is None and not member.is_static:
                self._remove(member)
        if self._roster and not self._roster.elect_leader():
            self._join_deadline_s = now_s + self._roster.rebalance_timeout_ms() / 1000
            return
        self.generation_id += 1
        self._unsynced.clear()
        self._has_assignment = False
        self.protocol_name = self._roster.select_protocol()
        self._subscribed_topics = self._find_subscribed_topics()
        if not self._roster:
            self.state = GroupState.EMPTY
            # If this write is lost, the last generation comes back after a restart and its members time out.
            self._save({}, lambda _error, _now_s: None)
            return
        self.state = GroupState.COMPLETING
        for member in self._roster:
            self._answer_join(member, self._join_answer(member))
            self._restart_session(member, now_s)
            member.is_new = False
            self._unsynced[member.member_id] = None
        self._sync_deadline_s = now_s + self._roster.rebalance_timeout_ms() / 1000

    def _save_assignment(self, request: SyncGroup, now_s: float) -> None:
        if self._has_assignment:
            return  # the leader repeats itself: the first assignment is on its way
        if sum(len(each.assignment) for each in request.assignments) > self._settings.assignment_bytes_max:
            self._reset_assignments(GroupError.UNKNOWN_SERVER_ERROR, now_s)
            self._prepare_rebalance(now_s)
            return
        assignments = {member.member_id: b"" for member in self._roster}
        for each in request.assignments:
            if each.member_id in assignments:
                assignments[each.member_id] = each.assignment
        generation_id = self.generation_id

        def saved(error: GroupError, saved_s: float) -> None:
            if self.state is not GroupState.COMPLETING or self.generation_id != generation_id:
                return  # another rebalance has begun meanwhile
            if error is not GroupError.NONE:
                self._reset_assignments(error, saved_s)
                self._prepare_rebalance(saved_s)
                return
            self.state = GroupState.STABLE
            for member in self._roster:
                member.assignment = assignments[member.member_id]
                if member.sync_ticket is not None:
                    self._give_assignment(member, saved_s)

        self._has_assignment = True
        self._save(assignments, saved)

    def _give_assignment(self, member: Member, now_s: float) -> None:
        answer = SyncAnswer(GroupError.NONE, self.protocol_type, self.protocol_name, member.assignment)
        self._answer_sync(member, answer)
        self._restart_session(member, now_s)

    def _reset_assignments(self, error: GroupError, now_s: float) -> None:
        for member in self._roster:
            member.assignment = b""
            if member.sync_ticket is not None:
                self._answer_sync(member, sync_error(error))
                self._restart_session(member, now_s)

    def _save(self, assignments: dict[str, bytes], then: Callable[[GroupError, float], None]) -> None:
        self._save_number += 1
        self._unsaved[self._save_number] = then
        self._effects.append(SaveGroup(self._save_number, self._saved_group(assignments)))

    def _saved_group(self, assignments: dict[str, bytes]) -> SavedGroup:
        members = [member.saved(assignments[member.member_id]) for member in self._roster]
        leader = self._roster.leader if members else None
        return SavedGroup(self.generation_id, self.protocol_type, self.protocol_name, leader, members)

    # ── members going ─────────────────────────────────────────────────────────────────────────────────────────────

    def _leave_one(self, leaving: LeavingMember) -> GroupError:
        if self._pending.pop(leaving.member_id, None) is not None:
            return GroupError.NONE
        if leaving.member_id:
            error = self._roster.check_identity(leaving.member_id, leaving.group_instance_id)
            member = self._roster.get(leaving.member_id)
        else:
            # An administrator removes a static member by its instance id alone.
            error = GroupError.NONE
            member = self._roster.get_static(leaving.group_instance_id)
        if error is GroupError.NONE and member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if error is GroupError.NONE and member is not None:
            self._remove(member)
        return error

    def _expire_session(self, member_id: str, now_s: float) -> None:
        if self._pending.get(member_id, now_s + 1) <= now_s:
            del self._pending[member_id]
            self._complete_join_if_all_joined(now_s)
            return
        member = self._roster.get(member_id)
        if member is None or member.session_deadline_s is None or member.session_deadline_s > now_s:
            return  # an expiry before it has changed things
        if not member.is_new and (member.join_ticket is not None or member.sync_ticket is not None):
            member.session_deadline_s = None
            return
        self._remove(member)
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_joined(now_s)
        else:
            self._prepare_rebalance(now_s)

    def _expire_unsynced(self, now_s: float) -> None:
        self._sync_deadline_s = None
        for member_id in list(self._unsynced):
            self._remove(self._roster[member_id])
        self._prepare_rebalance(now_s)

    def _remove(self, member: Member) -> None:
        # The client may still be there: this makes it join again.
        self._answer_join(member, join_error("", GroupError.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, sync_error(GroupError.UNKNOWN_MEMBER_ID))
        self._roster.remove(member)
        self._unsynced.pop(member.member_id, None)

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _check_member(self, member_id: str, group_instance_id: str | None, generation_id: int) -> GroupError:
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        error = self._roster.check_identity(member_id, group_instance_id)
        if error is GroupError.NONE and generation_id != self.generation_id:
            return GroupError.ILLEGAL_GENERATION
        return error

    def _update(self, member: Member, request: JoinGroup, ticket: int) -> None:
        self._roster.set_protocols(member, unique_protocols(request))
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.client_id, member.client_host = request.client_id, request.client_host
        self._answer_join(member, join_error(member.member_id, GroupError.REBALANCE_IN_PROGRESS))  # a repeated join
        self._roster.set_join_ticket(member, ticket)

    def _find_subscribed_topics(self) -> frozenset[str] | None:
        return self._roster.subscribed_topics(self.protocol_name) if self.uses_consumer_protocol else None

    def _restart_session(self, member: Member, now_s: float) -> None:
        member.session_deadline_s = now_s + member.session_timeout_ms / 1000

    def _join_answer(self, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
        members: list[JoinMember] = []
        if member.member_id == self._roster.leader:
            members = [
                JoinMember(each.member_id, each.group_instance_id, each.metadata(self.protocol_name))
                for each in self._roster
            ]
        return JoinAnswer(
            GroupError.NONE,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self._roster.leader or "",
            member.member_id,
            members,
            skip_assignment and member.member_id == self._roster.leader,
        )

    def _refuse_join(self, ticket: int, member_id: str, error: GroupError) -> None:
        self._effects.append(JoinAnswered(ticket, join_error(member_id, error)))

    def _answer_join(self, member: Member, answer: JoinAnswer) -> None:
        if member.join_ticket is not None:
            self._effects.append(JoinAnswered(member.join_ticket, answer))
            self._roster.set_join_ticket(member, None)
            member.knows_id = True

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        if member.sync_ticket is not None:
            self._effects.append(SyncAnswered(member.sync_ticket, answer))
            member.sync_ticket = None

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
