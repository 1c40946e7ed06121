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

from braidlog.control.group_effects import Effect, SaveGroup, SyncAnswered, join_error, sync_error
from braidlog.control.group_errors import GroupError
from braidlog.control.group_joining import GroupJoining
from braidlog.control.group_member import (
    SavedGroup,
    chosen_metadata,
    member_from_saved,
    protocols_bytes,
    unique_protocols,
)
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_state import GroupState
from braidlog.control.group_subscription import subscribed_topics
from braidlog.control.interface import (
    CommitOffsets,
    GroupDescription,
    GroupHeartbeat,
    GroupListing,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    MemberDescription,
    SyncGroup,
)


class GroupMembership(GroupJoining):
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
