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

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.joins import GroupJoins
from braidlog.control.groups.classic.member import (
    SavedGroup,
    chosen_metadata,
    member_from_saved,
    protocols_bytes,
    unique_protocols,
)
from braidlog.control.groups.classic.rebalance import GroupRebalance
from braidlog.control.groups.effects import Effect, SaveGroup, SyncAnswered, join_error, sync_error
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.groups.subscription import subscribed_topics
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


class GroupMembership:
    group_type = "classic"

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self._group = GroupRebalance(settings)
        self._joins = GroupJoins(self._group)

    @property
    def state(self) -> GroupState:
        return self._group.state

    @property
    def generation_id(self) -> int:
        return self._group.generation_id

    @property
    def protocol_type(self) -> str | None:
        return self._group.protocol_type

    @property
    def uses_consumer_protocol(self) -> bool:
        return self._group.uses_consumer_protocol

    @classmethod
    def restore(cls, group_id: str, settings: GroupSettings, saved: SavedGroup, now_s: float) -> "GroupMembership":
        """Restore a group as it was saved last.

        Its members have a full session timeout to send a heartbeat.
        """
        membership = cls(group_id, settings)
        group = membership._group
        group.generation_id = saved.generation_id
        group.protocol_type = saved.protocol_type
        group.protocol_name = saved.protocol_name
        for saved_member in saved.members:
            member = member_from_saved(saved_member)
            group.roster.add(member)
            group.restart_session(member, now_s)
        group.roster.leader = saved.leader
        group.state = GroupState.STABLE if saved.members else GroupState.EMPTY
        group.subscribed_topics = group.find_subscribed_topics()
        if len(group.roster) > settings.members_per_group_max:
            # The limit was lowered. A rebalance lets members commit before the last to rejoin are refused.
            group.prepare_rebalance(now_s)
        return membership

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, ticket: int, request: JoinGroup, fresh_member_id: str, now_s: float) -> list[Effect]:
        """Handle a join.

        `fresh_member_id` was never used; it becomes the member's if the request has none.
        """
        settings = self._group.settings
        member_id = request.member_id
        protocols = unique_protocols(request)
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            self._group.refuse_join(ticket, member_id, ErrorCode.invalid_session_timeout)
        elif protocols_bytes(protocols) > settings.member_metadata_bytes_max:
            self._group.refuse_join(ticket, member_id, ErrorCode.invalid_request)
        elif not self._joins.has_room(request):
            self._group.pending.pop(member_id, None)
            if member_id in self._group.roster:
                self._group.remove(self._group.roster[member_id])
                self._group.rebalance_or_complete(now_s)
            self._group.refuse_join(ticket, "", ErrorCode.group_max_size_reached)
        elif self._group.state is GroupState.DEAD:
            self._group.refuse_join(ticket, member_id, ErrorCode.coordinator_not_available)
        elif not self._joins.supports(request):
            self._group.refuse_join(ticket, member_id, ErrorCode.inconsistent_group_protocol)
        elif not member_id:
            self._joins.join_new(ticket, request, fresh_member_id, now_s)
        else:
            self._joins.join_known(ticket, request, now_s)
        return self._group.take_effects()

    def sync(self, ticket: int, request: SyncGroup, now_s: float) -> list[Effect]:
        error = self._group.check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is ErrorCode.none:
            for asked, actual in (
                (request.protocol_type, self._group.protocol_type),
                (request.protocol_name, self._group.protocol_name),
            ):
                if asked is not None and actual is not None and asked != actual:
                    error = ErrorCode.inconsistent_group_protocol
        if error is ErrorCode.none and self._group.state is GroupState.PREPARING:
            error = ErrorCode.rebalance_in_progress
        if error is not ErrorCode.none:
            self._group.effects.append(SyncAnswered(ticket, sync_error(error)))
            return self._group.take_effects()
        member = self._group.roster[request.member_id]
        self._group.unsynced.pop(member.member_id, None)
        if not self._group.unsynced:
            self._group.sync_deadline_s = None
        self._group.answer_sync(
            member, sync_error(ErrorCode.rebalance_in_progress)
        )  # the sync is a retry of an older one
        member.sync_ticket = ticket
        if self._group.state is GroupState.STABLE:
            self._group.give_assignment(member, now_s)
        elif member.member_id == self._group.roster.leader:
            self._group.save_assignment(request, now_s)
        return self._group.take_effects()

    def heartbeat(self, request: GroupHeartbeat, now_s: float) -> ErrorCode:
        error = self._group.check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.none:
            return error
        self._group.restart_session(self._group.roster[request.member_id], now_s)
        return ErrorCode.rebalance_in_progress if self._group.state is GroupState.PREPARING else ErrorCode.none

    def leave(self, request: LeaveGroup, now_s: float) -> tuple[LeaveAnswer, list[Effect]]:
        if self._group.state is GroupState.DEAD:
            return LeaveAnswer(ErrorCode.coordinator_not_available, []), []
        members_before = len(self._group.roster)
        error_codes: list[int] = [self._group.leave_one(leaving) for leaving in request.members]
        if len(self._group.roster) < members_before or self._group.state is GroupState.PREPARING:
            self._group.rebalance_or_complete(now_s)
        return LeaveAnswer(ErrorCode.none, error_codes), self._group.take_effects()

    def check_commit(self, request: CommitOffsets, now_s: float) -> ErrorCode:
        """Return whether these offsets may be committed. A commit counts as a heartbeat."""
        if self._group.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if request.generation_id < 0 and self._group.state is GroupState.EMPTY:
            return ErrorCode.none
        if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
            return ErrorCode.unknown_member_id
        error = self._group.check_member(request.member_id, request.group_instance_id, request.generation_id)
        if error is not ErrorCode.none:
            return error
        if self._group.state is GroupState.COMPLETING:
            return ErrorCode.rebalance_in_progress
        self._group.restart_session(self._group.roster[request.member_id], now_s)
        return ErrorCode.none

    def check_fetch(self, _member_id: str | None, _member_epoch: int) -> ErrorCode:
        """Return no error: anybody may see the group's offsets."""
        return ErrorCode.none

    def abandon(self, ticket: int, now_s: float) -> list[Effect]:
        """Abandon a ticket: its connection is gone."""
        for member in self._group.roster:
            if member.sync_ticket == ticket:
                member.sync_ticket = None
                self._group.restart_session(member, now_s)
                break
            if member.join_ticket == ticket:
                self._group.roster.set_join_ticket(member, None)
                if member.is_static or member.knows_id:
                    self._group.restart_session(member, now_s)  # it may come back under its id
                else:
                    self._group.remove(member)
                    self._group.rebalance_or_complete(now_s)
                break
        return self._group.take_effects()

    # ── time and durability ───────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_s(self) -> float | None:
        """When to call `advance` next.

        Heartbeats and commits only ever move it further away.
        """
        deadlines = [
            deadline_s
            for deadline_s in (
                self._group.join_deadline_s,
                self._group.sync_deadline_s,
                *self._group.pending.values(),
                *(member.session_deadline_s for member in self._group.roster),
            )
            if deadline_s is not None
        ]
        return min(deadlines, default=None)

    def advance(self, now_s: float) -> list[Effect]:
        """Do everything that is due, in the order of the deadlines."""
        while self._group.state is not GroupState.DEAD:
            deadlines: list[tuple[float | None, str]] = [
                (at_s, member_id) for member_id, at_s in self._group.pending.items()
            ]
            deadlines += [(member.session_deadline_s, member.member_id) for member in self._group.roster]
            due = sorted((at_s, member_id) for at_s, member_id in deadlines if at_s is not None and at_s <= now_s)
            for _, member_id in due:
                self._group.expire_session(member_id, now_s)
            if self._group.join_deadline_s is not None and self._group.join_deadline_s <= now_s:
                self._group.end_join_wait(now_s)
            elif self._group.sync_deadline_s is not None and self._group.sync_deadline_s <= now_s:
                self._group.expire_unsynced(now_s)
            elif not due:
                break
        return self._group.take_effects()

    def saved(self, number: int, error: ErrorCode, now_s: float) -> list[Effect]:
        """Note that a `SaveGroup` is durable, or failed with the error to tell clients."""
        self._group.saved(number, error, now_s)
        return self._group.take_effects()

    def snapshot(self) -> SavedGroup:
        """Return the group as it is now, for one that takes over its members."""
        return self._group.saved_group({member.member_id: member.assignment for member in self._group.roster})

    def begin_save(self) -> SaveGroup:
        """Return the effect that writes the group after its change of protocol."""
        return self._group.begin_save(self.snapshot(), lambda _error, _now_s: None)

    def rebalance(self, now_s: float) -> list[Effect]:
        """Make all members join again."""
        self._group.prepare_rebalance(now_s)
        return self._group.take_effects()

    def shut_down(self, error: ErrorCode) -> list[Effect]:
        """Answer all waiting requests, and forget everything.

        The group was deleted, or has moved elsewhere.
        """
        for member in self._group.roster:
            self._group.answer_join(member, join_error(member.member_id, error))
            self._group.answer_sync(member, sync_error(error))
        self._group.roster.clear()
        self._group.pending.clear()
        self._group.join_deadline_s = self._group.sync_deadline_s = None
        self._group.state = GroupState.DEAD
        return self._group.take_effects()

    # ── what others ask ───────────────────────────────────────────────────────────────────────────────────────────

    def knows(self, member_id: str) -> bool:
        return member_id in self._group.roster or member_id in self._group.pending

    @property
    def is_vacant(self) -> bool:
        """Whether the group is like a new one of this name."""
        return self._group.state is GroupState.EMPTY and self._group.generation_id == 0 and not self._group.pending

    @property
    def is_deletable(self) -> bool:
        return self._group.state is GroupState.EMPTY and not self._group.pending

    @property
    def has_readable_subscriptions(self) -> bool:
        return all(
            subscribed_topics(chosen_metadata(member.protocols, self._group.protocol_name)) is not None
            for member in self._group.roster
        )

    def is_subscribed(self, topic_name: str | None) -> bool:
        """Whether members read the topic.

        If the name or the subscriptions are unknown, a consumer group does.
        """
        if self._group.state is GroupState.EMPTY:
            return False
        if self._group.subscribed_topics is None or topic_name is None:
            return self._group.uses_consumer_protocol
        return topic_name in self._group.subscribed_topics

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, self._group.protocol_type or "", self._group.state.value, self.group_type)

    def describe(self) -> GroupDescription:
        """Describe the group.

        Metadata and assignments are only shown while they belong together.
        """
        stable = self._group.state is GroupState.STABLE
        members = [
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self._group.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self._group.roster
        ]
        protocol_name = self._group.protocol_name if stable else None
        return GroupDescription(
            ErrorCode.none,
            self.group_id,
            self._group.state.value,
            self._group.protocol_type or "",
            protocol_name or "",
            members,
        )
