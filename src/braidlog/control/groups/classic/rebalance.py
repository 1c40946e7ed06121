"""The rebalance of a classic consumer group, from one generation to the next."""

from collections.abc import Callable
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import (
    Member,
    SavedGroup,
    rebalance_timeout_ms,
    unique_protocols,
)
from braidlog.control.groups.classic.roster import GroupRoster
from braidlog.control.groups.effects import Effect, JoinAnswered, SaveGroup, SyncAnswered, join_error, sync_error
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.groups.subscription import CONSUMER_PROTOCOL_TYPE
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
    """One step of the delay before the first rebalance of an empty group."""

    step_ms: int
    remaining_ms: int


class GroupRebalance:
    """The state of a group, and its way from one phase to the next.

    Answers and writes come out as effects.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self.state = GroupState.EMPTY
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.settings = settings
        self.roster = GroupRoster()
        self.pending: dict[str, float] = {}
        """Ids handed out with MEMBER_ID_REQUIRED, and until when they may be used."""
        self.unsynced: dict[str, None] = {}
        """Members of this generation whose sync has not come yet, in order."""
        self.join_deadline_s: float | None = None
        self.sync_deadline_s: float | None = None
        self._initial_delay: _InitialDelay | None = None
        self.member_added = False
        """Whether a member was added since the initial delay's last step began."""
        self._save_number = 0
        self._unsaved: dict[int, Callable[[ErrorCode, float], None]] = {}
        """What to do when a save is done, by the number of the save."""
        self._has_assignment = False
        """The leader has sent this generation's assignment, which may not be durable yet."""
        self.effects: list[Effect] = []

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    # ── phases ────────────────────────────────────────────────────────────────────────────────────────────────────

    def rebalance_or_complete(self, now_s: float) -> None:
        if self.state is GroupState.PREPARING:
            if self._initial_delay is None:
                self._complete_join_if_all_joined(now_s)
        elif self.roster or self.state is not GroupState.EMPTY:
            self.prepare_rebalance(now_s)

    def prepare_rebalance(self, now_s: float) -> None:
        if self.state is GroupState.COMPLETING:
            self._reset_assignments(ErrorCode.rebalance_in_progress, now_s)
        self.unsynced.clear()
        self.sync_deadline_s = None
        is_initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        if is_initial:
            delay_ms = self.settings.initial_rebalance_delay_ms
            self._initial_delay = _InitialDelay(delay_ms, max(self.roster.rebalance_timeout_ms() - delay_ms, 0))
            self.member_added = False
            self.join_deadline_s = now_s + delay_ms / 1000
        elif self._all_joined():
            self._complete_join(now_s)
        else:
            self.join_deadline_s = now_s + self.roster.rebalance_timeout_ms() / 1000

    def end_join_wait(self, now_s: float) -> None:
        step = self._initial_delay
        if step is not None and self.member_added and step.remaining_ms > 0:
            # Members keep coming: wait on, but no longer than the first of them allows.
            step_ms = min(self.settings.initial_rebalance_delay_ms, step.remaining_ms)
            self._initial_delay = _InitialDelay(step_ms, max(step.remaining_ms - step_ms, 0))
            self.member_added = False
            self.join_deadline_s = now_s + step_ms / 1000
        else:
            self._complete_join(now_s)

    def _all_joined(self) -> bool:
        return self.roster.joined_count == len(self.roster) and not self.pending

    def _complete_join_if_all_joined(self, now_s: float) -> None:
        if self.state is GroupState.PREPARING and self._all_joined():
            self._complete_join(now_s)

    def _complete_join(self, now_s: float) -> None:
        """Begin the next generation with the members that have rejoined.

        Absent static members stay until they time out.
        """
        self.join_deadline_s = self._initial_delay = None
        for member in list(self.roster):
            if member.join_ticket is None and not member.is_static:
                self.remove(member)
        if self.roster and not self.roster.elect_leader():
            self.join_deadline_s = now_s + self.roster.rebalance_timeout_ms() / 1000
            return
        self.generation_id += 1
        self.unsynced.clear()
        self._has_assignment = False
        self.protocol_name = self.roster.select_protocol()
        self.subscribed_topics = self.find_subscribed_topics()
        if not self.roster:
            self.state = GroupState.EMPTY
            # If this write is lost, the last generation comes back after a restart and its members time out.
            self.save({}, lambda _error, _now_s: None)
            return
        self.state = GroupState.COMPLETING
        for member in self.roster:
            self.answer_join(member, self.join_answer(member))
            self.restart_session(member, now_s)
            member.is_new = False
            self.unsynced[member.member_id] = None
        self.sync_deadline_s = now_s + self.roster.rebalance_timeout_ms() / 1000

    def save_assignment(self, request: SyncGroup, now_s: float) -> None:
        if self._has_assignment:
            return  # a retry of the leader: the first assignment is being written
        if sum(len(each.assignment) for each in request.assignments) > self.settings.assignment_bytes_max:
            self._reset_assignments(ErrorCode.unknown_server_error, now_s)
            self.prepare_rebalance(now_s)
            return
        assignments = {member.member_id: b"" for member in self.roster}
        for each in request.assignments:
            if each.member_id in assignments:
                assignments[each.member_id] = each.assignment
        generation_id = self.generation_id

        def saved(error: ErrorCode, saved_s: float) -> None:
            if self.state is not GroupState.COMPLETING or self.generation_id != generation_id:
                return  # another rebalance has begun meanwhile
            if error is not ErrorCode.none:
                self._reset_assignments(error, saved_s)
                self.prepare_rebalance(saved_s)
                return
            self.state = GroupState.STABLE
            for member in self.roster:
                member.assignment = assignments[member.member_id]
                if member.sync_ticket is not None:
                    self.give_assignment(member, saved_s)

        self._has_assignment = True
        self.save(assignments, saved)

    def give_assignment(self, member: Member, now_s: float) -> None:
        answer = SyncAnswer(ErrorCode.none, self.protocol_type, self.protocol_name, member.assignment)
        self.answer_sync(member, answer)
        self.restart_session(member, now_s)

    def _reset_assignments(self, error: ErrorCode, now_s: float) -> None:
        for member in self.roster:
            member.assignment = b""
            if member.sync_ticket is not None:
                self.answer_sync(member, sync_error(error))
                self.restart_session(member, now_s)

    def save(self, assignments: dict[str, bytes], then: Callable[[ErrorCode, float], None]) -> None:
        self.effects.append(self.begin_save(self.saved_group(assignments), then))

    def begin_save(self, group: SavedGroup, then: Callable[[ErrorCode, float], None]) -> SaveGroup:
        """Return the effect that writes the group.

        `then` is called with the outcome and the time.
        """
        self._save_number += 1
        self._unsaved[self._save_number] = then
        return SaveGroup(self._save_number, group)

    def saved(self, number: int, error: ErrorCode, now_s: float) -> None:
        """Note that a `SaveGroup` is durable, or failed with the error to tell clients."""
        self._unsaved.pop(number)(error, now_s)

    def saved_group(self, assignments: dict[str, bytes]) -> SavedGroup:
        members = [member.saved(assignments[member.member_id]) for member in self.roster]
        leader = self.roster.leader if members else None
        return SavedGroup(self.generation_id, self.protocol_type, self.protocol_name, leader, members)

    # ── members going ─────────────────────────────────────────────────────────────────────────────────────────────

    def leave_one(self, leaving: LeavingMember) -> ErrorCode:
        if self.pending.pop(leaving.member_id, None) is not None:
            return ErrorCode.none
        if leaving.member_id:
            error = self.roster.check_identity(leaving.member_id, leaving.group_instance_id)
            member = self.roster.get(leaving.member_id)
        else:
            # An administrator removes a static member by its instance id alone.
            error = ErrorCode.none
            member = self.roster.get_static(leaving.group_instance_id)
        if error is ErrorCode.none and member is None:
            return ErrorCode.unknown_member_id
        if error is ErrorCode.none and member is not None:
            self.remove(member)
        return error

    def expire_session(self, member_id: str, now_s: float) -> None:
        if self.pending.get(member_id, now_s + 1) <= now_s:
            del self.pending[member_id]
            self._complete_join_if_all_joined(now_s)
            return
        member = self.roster.get(member_id)
        if member is None or member.session_deadline_s is None or member.session_deadline_s > now_s:
            return  # an earlier expiry has changed this
        if not member.is_new and (member.join_ticket is not None or member.sync_ticket is not None):
            member.session_deadline_s = None
            return
        self.remove(member)
        if self.state is GroupState.PREPARING:
            self._complete_join_if_all_joined(now_s)
        else:
            self.prepare_rebalance(now_s)

    def expire_unsynced(self, now_s: float) -> None:
        self.sync_deadline_s = None
        for member_id in list(self.unsynced):
            self.remove(self.roster[member_id])
        self.prepare_rebalance(now_s)

    def remove(self, member: Member) -> None:
        # If the client is still alive, this makes it join again.
        self.answer_join(member, join_error("", ErrorCode.unknown_member_id))
        self.answer_sync(member, sync_error(ErrorCode.unknown_member_id))
        self.roster.remove(member)
        self.unsynced.pop(member.member_id, None)

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def check_member(self, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = self.roster.check_identity(member_id, group_instance_id)
        if error is ErrorCode.none and generation_id != self.generation_id:
            return ErrorCode.illegal_generation
        return error

    def update(self, member: Member, request: JoinGroup, ticket: int) -> None:
        self.roster.set_protocols(member, unique_protocols(request))
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.client_id, member.client_host = request.client_id, request.client_host
        self.answer_join(member, join_error(member.member_id, ErrorCode.rebalance_in_progress))  # a repeated join
        self.roster.set_join_ticket(member, ticket)

    def find_subscribed_topics(self) -> frozenset[str] | None:
        return self.roster.subscribed_topics(self.protocol_name) if self.uses_consumer_protocol else None

    def restart_session(self, member: Member, now_s: float) -> None:
        member.session_deadline_s = now_s + member.session_timeout_ms / 1000

    def join_answer(self, member: Member, *, skip_assignment: bool = False) -> JoinAnswer:
        members: list[JoinMember] = []
        if member.member_id == self.roster.leader:
            members = [
                JoinMember(each.member_id, each.group_instance_id, each.metadata(self.protocol_name))
                for each in self.roster
            ]
        return JoinAnswer(
            ErrorCode.none,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.roster.leader or "",
            member.member_id,
            members,
            skip_assignment and member.member_id == self.roster.leader,
        )

    def refuse_join(self, ticket: int, member_id: str, error: ErrorCode) -> None:
        self.effects.append(JoinAnswered(ticket, join_error(member_id, error)))

    def answer_join(self, member: Member, answer: JoinAnswer) -> None:
        if member.join_ticket is not None:
            self.effects.append(JoinAnswered(member.join_ticket, answer))
            self.roster.set_join_ticket(member, None)
            member.knows_id = True

    def answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        if member.sync_ticket is not None:
            self.effects.append(SyncAnswered(member.sync_ticket, answer))
            member.sync_ticket = None

    def take_effects(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects
