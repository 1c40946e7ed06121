"""One consumer group of Kafka's classic protocol, as a pure state machine.

No I/O and no clock: the time comes in with every call, answers and durable writes come out as effects, and
`next_deadline_s` tells when `advance` wants to be called. A request that has to wait is known by a ticket, a number
that its caller chose; sooner or later exactly one effect answers the ticket, unless the caller abandons it.

The phases of a rebalance:

    Empty ──join──▶ PreparingRebalance ──all (re)joined, or time is up──▶ CompletingRebalance
                      ▲   │ nobody left                                      │ leader's assignment is durable
                      │   ▼                                                  ▼
                      │  Empty                                             Stable
                      └──────────── a member joins, leaves or dies ──────────┘
"""

from collections.abc import Callable
from dataclasses import dataclass

from braidlog.control.group_effects import Effect, JoinAnswered, SaveGroup, SyncAnswered, join_error, sync_error
from braidlog.control.group_errors import GroupError
from braidlog.control.group_member import (
    Member,
    SavedGroup,
    chosen_metadata,
    member_from_request,
    member_from_saved,
    protocols_bytes,
    rebalance_timeout_ms,
    unique_protocols,
)
from braidlog.control.group_roster import GroupRoster
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_state import GroupState
from braidlog.control.group_subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from braidlog.control.interface import (
    CommitOffsets,
    GroupDescription,
    GroupHeartbeat,
    GroupListing,
    JoinAnswer,
    JoinGroup,
    JoinMember,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    MemberDescription,
    SyncAnswer,
    SyncGroup,
)


@dataclass(frozen=True, slots=True)
class _InitialDelay:
    """The step that the first rebalance of an empty group is waiting out."""

    step_ms: int
    remaining_ms: int


class GroupMembership:
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

    @classmethod
    def restore(cls, group_id: str, settings: GroupSettings, saved: SavedGroup, now_s: float) -> "GroupMembership":
        """The group as it was saved last. Its members have a whole session timeout to be heard of again."""
        group = cls(group_id, settings)
        group.generation_id = saved.generation_id
        group.protocol_type = saved.protocol_type
        group.protocol_name = saved.protocol_name
        for saved_member in saved.members:
            member = member_from_saved(saved_member)
            group._roster.add(member)
            group._restart_session(member, now_s)
        group._roster.leader = saved.leader
        group.state = GroupState.STABLE if saved.members else GroupState.EMPTY
        group._subscribed_topics = group._find_subscribed_topics()
        if len(group._roster) > settings.members_per_group_max:
            # The limit was lowered: a rebalance lets members commit before the last to rejoin are turned away.
            group._prepare_rebalance(now_s)
        return group

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, ticket: int, request: JoinGroup, fresh_member_id: str, now_s: float) -> list[Effect]:
        """`fresh_member_id` has never been used; it becomes the member's if the request brings none."""
        settings = self._settings
        member_id = request.member_id
        protocols = unique_protocols(request)
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            self._refuse_join(ticket, member_id, GroupError.INVALID_SESSION_TIMEOUT)
        elif protocols_bytes(protocols) > settings.member_metadata_bytes_max:
            self._refuse_join(ticket, member_id, GroupError.INVALID_REQUEST)
        elif not self._has_room(request):
            self._pending.pop(member_id, None)
            if member_id in self._roster:
                self._remove(self._roster[member_id])
                self._rebalance_or_complete(now_s)
            self._refuse_join(ticket, "", GroupError.GROUP_MAX_SIZE_REACHED)
        elif self.state is GroupState.DEAD:
            self._refuse_join(ticket, member_id, GroupError.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(request):
            self._refuse_join(ticket, member_id, GroupError.INCONSISTENT_GROUP_PROTOCOL)
        elif not member_id:
            self._join_new(ticket, request, fresh_member_id, now_s)
        else:
            self._join_known(ticket, request, now_s)
        return self._take_effects()

    def sync(self, ticket: int, request: SyncGroup, now_s: float) -> list[Effect]:
        error = self._check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is GroupError.NONE:
            for asked, actual in (
                (request.protocol_type, self.protocol_type),
                (request.protocol_name, self.protocol_name),
            ):
                if asked is not None and actual is not None and asked != actual:
                    error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        if error is GroupError.NONE and self.state is GroupState.PREPARING:
            error = GroupError.REBALANCE_IN_PROGRESS
        if error is not GroupError.NONE:
            self._effects.append(SyncAnswered(ticket, sync_error(error)))
            return self._take_effects()
        member = self._roster[request.member_id]
        self._unsynced.pop(member.member_id, None)
        if not self._unsynced:
            self._sync_deadline_s = None
        self._answer_sync(member, sync_error(GroupError.REBALANCE_IN_PROGRESS))  # an older sync that was repeated
        member.sync_ticket = ticket
        if self.state is GroupState.STABLE:
            self._give_assignment(member, now_s)
        elif member.member_id == self._roster.leader:
            self._save_assignment(request, now_s)
        return self._take_effects()

    def heartbeat(self, request: GroupHeartbeat, now_s: float) -> GroupError:
        error = self._check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is not GroupError.NONE:
            return error
        self._restart_session(self._roster[request.member_id], now_s)
        return GroupError.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else GroupError.NONE

    def leave(self, request: LeaveGroup, now_s: float) -> tuple[LeaveAnswer, list[Effect]]:
        if self.state is GroupState.DEAD:
            return LeaveAnswer(GroupError.COORDINATOR_NOT_AVAILABLE, []), []
        members_before = len(self._roster)
        error_codes: list[int] = [self._leave_one(leaving) for leaving in request.members]
        if len(self._roster) < members_before or self.state is GroupState.PREPARING:
            self._rebalance_or_complete(now_s)
        return LeaveAnswer(GroupError.NONE, error_codes), self._take_effects()

    def check_commit(self, request: CommitOffsets, now_s: float) -> GroupError:
        """Whether these offsets may be committed. A member that commits is alive."""
        if self.state is GroupState.DEAD:
            return GroupError.COORDINATOR_NOT_AVAILABLE
        if request.generation_id < 0 and self.state is GroupState.EMPTY:
            return GroupError.NONE
        if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
            return GroupError.UNKNOWN_MEMBER_ID
        error = self._check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is not GroupError.NONE:
            return error
        if self.state is GroupState.COMPLETING:
            return GroupError.REBALANCE_IN_PROGRESS
        self._restart_session(self._roster[request.member_id], now_s)
        return GroupError.NONE

    def check_fetch(self, _member_id: str | None, _member_epoch: int) -> GroupError:
        """Whoever asks may see the group's offsets."""
        return GroupError.NONE

    def abandon(self, ticket: int, now_s: float) -> list[Effect]:
        """Nobody waits for this ticket any more: its connection is gone."""
        for member in self._roster:
            if member.sync_ticket == ticket:
                member.sync_ticket = None
                self._restart_session(member, now_s)
                break
            if member.join_ticket == ticket:
                self._roster.set_join_ticket(member, None)
                if member.is_static or member.knows_id:
                    self._restart_session(member, now_s)  # it may come back under its id
                else:
                    self._remove(member)
                    self._rebalance_or_complete(now_s)
                break
        return self._take_effects()

    # ── time and durability ───────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_s(self) -> float | None:
        """When `advance` has something to do. Heartbeats and commits only ever move it further away."""
        deadlines = [
            deadline_s
            for deadline_s in (
                self._join_deadline_s,
                self._sync_deadline_s,
                *self._pending.values(),
                *(member.session_deadline_s for member in self._roster),
            )
            if deadline_s is not None
        ]
        return min(deadlines, default=None)

    def advance(self, now_s: float) -> list[Effect]:
        """Everything that is due, in the order of the deadlines."""
        while self.state is not GroupState.DEAD:
            deadlines: list[tuple[float | None, str]] = [(at_s, member_id) for member_id, at_s in self._pending.items()]
            deadlines += [(member.session_deadline_s, member.member_id) for member in self._roster]
            due = sorted((at_s, member_id) for at_s, member_id in deadlines if at_s is not None and at_s <= now_s)
            for _, member_id in due:
                self._expire_session(member_id, now_s)
            if self._join_deadline_s is not None and self._join_deadline_s <= now_s:
                self._end_join_wait(now_s)
            elif self._sync_deadline_s is not None and self._sync_deadline_s <= now_s:
                self._expire_unsynced(now_s)
            elif not due:
                break
        return self._take_effects()

    def saved(self, number: int, error: GroupError, now_s: float) -> list[Effect]:
        """A `SaveGroup` is durable, or failed with what clients shall be told."""
        self._unsaved.pop(number)(error, now_s)
        return self._take_effects()

    def snapshot(self) -> SavedGroup:
        """The group as it is now, for one that takes its members over."""
        return self._saved_group({member.member_id: member.assignment for member in self._roster})

    def begin_save(self) -> SaveGroup:
        """Have the group written as it is: it was taken over from the other protocol."""
        self._save_number += 1
        self._unsaved[self._save_number] = lambda _error, _now_s: None
        return SaveGroup(self._save_number, self.snapshot())

    def rebalance(self, now_s: float) -> list[Effect]:
        """All members have to join again."""
        self._prepare_rebalance(now_s)
        return self._take_effects()

    def shut_down(self, error: GroupError) -> list[Effect]:
        """Answer all who wait, and forget everything: the group was deleted, or lives elsewhere from now on."""
        for member in self._roster:
            self._answer_join(member, join_error(member.member_id, error))
            self._answer_sync(member, sync_error(error))
        self._roster.clear()
        self._pending.clear()
        self._join_deadline_s = self._sync_deadline_s = None
        self.state = GroupState.DEAD
        return self._take_effects()

    # ── what others ask ───────────────────────────────────────────────────────────────────────────────────────────

    def knows(self, member_id: str) -> bool:
        return member_id in self._roster or member_id in self._pending

    @property
    def is_vacant(self) -> bool:
        """There is nothing here that another, new group of this name would not have."""
        return self.state is GroupState.EMPTY and self.generation_id == 0 and not self._pending

    @property
    def is_deletable(self) -> bool:
        return self.state is GroupState.EMPTY and not self._pending

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def has_readable_subscriptions(self) -> bool:
        return all(
            subscribed_topics(chosen_metadata(member.protocols, self.protocol_name)) is not None
            for member in self._roster
        )

    def is_subscribed(self, topic_name: str | None) -> bool:
        """Whether members read the topic. In doubt (the name or the subscriptions are not known) a consumer does."""
        if self.state is GroupState.EMPTY:
            return False
        if self._subscribed_topics is None or topic_name is None:
            return self.uses_consumer_protocol
        return topic_name in self._subscribed_topics

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, self.protocol_type or "", self.state.value, self.group_type)

    def describe(self) -> GroupDescription:
        """Metadata and assignments are told only while they belong together."""
        stable = self.state is GroupState.STABLE
        members = [
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self._roster
        ]
        protocol_name = self.protocol_name if stable else None
        return GroupDescription(
            GroupError.NONE,
            self.group_id,
            self.state.value,
            self.protocol_type or "",
            protocol_name or "",
            members,
        )

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────

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

    # ── rebalancing ───────────────────────────────────────────────────────────────────────────────────────────────

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
