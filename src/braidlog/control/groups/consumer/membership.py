"""One group of the consumer protocol, as a state machine.

Its inputs are requests, time and writes. The coordinator assigns its partitions.

It has no I/O and no clock, and the same effects as `classic.membership`. Nobody is told what is not durable: an answer
leaves together with the write that it rests on.
"""

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import SavedGroup
from braidlog.control.groups.consumer.classic_members import ClassicRequests
from braidlog.control.groups.consumer.group import ConsumerChanges, ConsumerGroup, TopicLookup
from braidlog.control.groups.consumer.member import (
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Partitions,
    SavedConsumerGroup,
    SavedConsumerMember,
    by_topic,
    flat,
)
from braidlog.control.groups.consumer.requests import LEAVE_EPOCH, Refused
from braidlog.control.groups.effects import (
    Answered,
    Effect,
    HeartbeatAnswered,
    JoinAnswered,
    SaveConsumerGroup,
    SyncAnswered,
    join_error,
    sync_error,
)
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.groups.subscription import CONSUMER_PROTOCOL_TYPE
from braidlog.control.interface import (
    CommitOffsets,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    ConsumerMemberDescription,
    GroupHeartbeat,
    GroupListing,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    SyncGroup,
)


class ConsumerMembership:
    group_type = "consumer"
    protocol_type: str | None = CONSUMER_PROTOCOL_TYPE
    uses_consumer_protocol = True

    def __init__(self, group_id: str, settings: GroupSettings, topics: TopicLookup) -> None:
        self.group_id = group_id
        self.settings = settings
        self.group = ConsumerGroup(topics, settings.consumer_assignors[0])
        self._classic = ClassicRequests(self)
        self._is_dead = False
        self._save_number = 0
        self._unsaved: dict[int, tuple[ConsumerChanges, list[Answered]]] = {}
        """The writes in flight by number, each with the answers to send once it is durable."""
        self._deadline_s: float | None = None
        """A lower bound on all deadlines."""
        self._effects: list[Effect] = []

    @classmethod
    def restore(
        cls,
        group_id: str,
        settings: GroupSettings,
        topics: TopicLookup,
        saved: SavedConsumerGroup,
        members: list[SavedConsumerMember],
        now_s: float,
    ) -> "ConsumerMembership":
        """Restore a group as it was saved last.

        Its members have a full session timeout to send a heartbeat.
        """
        membership = cls(group_id, settings, topics)
        membership.group = ConsumerGroup.restore(topics, settings.consumer_assignors[0], saved, members)
        for member in membership.group:
            membership.restart_session(member, now_s)
            membership._await_progress(member, now_s)
        return membership

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def heartbeat_consumer(
        self, ticket: int, request: ConsumerHeartbeat, fresh_member_id: str, now_s: float
    ) -> list[Effect]:
        """Handle a checked heartbeat.

        `fresh_member_id` becomes the member's if the request has none.
        """
        try:
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                answer = self._leave(request)
            else:
                answer = self._beat(request, fresh_member_id, now_s)
        except Refused as refused:
            answer = ConsumerHeartbeatAnswer(refused.error, str(refused))
            self.answer_now(HeartbeatAnswered(ticket, answer))
            self.save_changes()
        else:
            self.answer(HeartbeatAnswered(ticket, answer))
        return self.take_effects()

    def join(self, ticket: int, request: JoinGroup, fresh_member_id: str, now_s: float) -> list[Effect]:
        return self._classic.join(ticket, request, fresh_member_id, now_s)

    def sync(self, ticket: int, request: SyncGroup, now_s: float) -> list[Effect]:
        return self._classic.sync(ticket, request, now_s)

    def heartbeat(self, request: GroupHeartbeat, now_s: float) -> ErrorCode:
        return self._classic.heartbeat(request, now_s)

    def leave(self, request: LeaveGroup, now_s: float) -> tuple[LeaveAnswer, list[Effect]]:
        return self._classic.leave(request, now_s)

    def check_commit(self, request: CommitOffsets, now_s: float) -> ErrorCode:
        """Return whether these offsets may be committed."""
        if request.generation_id < 0 and not len(self.group):
            return ErrorCode.none
        member = self.group.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if member.classic is not None:
            if request.group_instance_id is not None and request.group_instance_id != member.instance_id:
                return ErrorCode.fenced_instance_id
            if request.generation_id != member.member_epoch:
                return ErrorCode.illegal_generation
            self.restart_session(member, now_s)
            return ErrorCode.none
        if not request.knows_member_epochs:
            return ErrorCode.unsupported_version
        return ErrorCode.none if request.generation_id == member.member_epoch else ErrorCode.stale_member_epoch

    def check_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Return whether this member may see the group's offsets.

        Anybody may who does not claim to be a member.
        """
        if member_id is None and member_epoch < 0:
            return ErrorCode.none
        member = self.group.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if member_epoch == member.member_epoch else ErrorCode.stale_member_epoch

    # ── time and durability ───────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_s(self) -> float | None:
        """When to call `advance` next."""
        return self._deadline_s

    def advance(self, now_s: float) -> list[Effect]:
        """Remove members whose session has ended, or that revoked too late."""
        expired = [
            member
            for member in self.group
            if member.session_deadline_s <= now_s
            or (member.progress_deadline_s is not None and member.progress_deadline_s <= now_s)
        ]
        for member in expired:
            self.group.remove(member)
        self._deadline_s = min(
            (
                deadline_s
                for member in self.group
                for deadline_s in (member.session_deadline_s, member.progress_deadline_s)
                if deadline_s is not None
            ),
            default=None,
        )
        self.save_changes()
        return self.take_effects()

    def saved(self, number: int, error: ErrorCode, now_s: float) -> list[Effect]:
        """Note that a `SaveConsumerGroup` is durable, or failed with an error.

        The error is what clients get.
        """
        changes, answers = self._unsaved.pop(number)
        if error is ErrorCode.none:
            self._effects += answers
        else:
            self.group.give_back(changes)
            self._effects += [_failed(answer, error) for answer in answers]
        return self.take_effects()

    def shut_down(self, error: ErrorCode) -> list[Effect]:
        """Answer all waiting requests, and forget everything.

        The group was deleted, or has moved elsewhere.
        """
        self._is_dead = True
        self._deadline_s = None
        for number, (changes, answers) in self._unsaved.items():
            self._unsaved[number] = (changes, [])
            self._effects += [_failed(answer, error) for answer in answers]
        return self.take_effects()

    def abandon(self, _ticket: int, _now_s: float) -> list[Effect]:
        """Abandon a ticket. A member whose connection is gone may return on another."""
        return []

    # ── what others ask ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> GroupState:
        return GroupState.DEAD if self._is_dead else self.group.state

    def knows(self, member_id: str) -> bool:
        return self.group.get(member_id) is not None

    @property
    def is_vacant(self) -> bool:
        return not len(self.group) and self.group.group_epoch == 0

    @property
    def is_deletable(self) -> bool:
        return not len(self.group)

    def is_subscribed(self, topic_name: str | None) -> bool:
        if topic_name is None:
            return bool(len(self.group))
        return self.group.is_subscribed(topic_name)

    def listing(self) -> GroupListing:
        return GroupListing(self.group_id, CONSUMER_PROTOCOL_TYPE, self.state.value, self.group_type)

    def describe_consumer(self) -> ConsumerGroupDescription:
        return ConsumerGroupDescription(
            ErrorCode.none,
            self.group_id,
            "",
            self.state.value,
            self.group.group_epoch,
            self.group.assignment_epoch,
            self.group.assignor,
            [
                ConsumerMemberDescription(
                    member.member_id,
                    member.instance_id,
                    member.rack_id,
                    member.member_epoch,
                    member.client_id,
                    member.client_host,
                    sorted(member.topic_names),
                    member.topic_regex,
                    by_topic(member.assigned),
                    by_topic(member.target),
                    member.classic is not None,
                )
                for member in self.group
            ],
        )

    # ── from one protocol to the other ────────────────────────────────────────────────────────────────────────────

    @property
    def is_all_classic(self) -> bool:
        return self._classic.is_all_classic

    def as_classic(self) -> SavedGroup:
        return self._classic.as_classic()

    def adopt_classic(self, saved: SavedGroup, now_s: float) -> None:
        self._classic.adopt(saved, now_s)

    # ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────

    def _beat(self, request: ConsumerHeartbeat, fresh_member_id: str, now_s: float) -> ConsumerHeartbeatAnswer:
        members_before = len(self.group)
        member = self._find_or_add(request, fresh_member_id)
        is_new = len(self.group) > members_before
        has_more_to_match = self.group.take_up_patterns()
        is_changed = self._update(member, request)
        self.group.look_at_topics(subscriptions_changed=is_changed or is_new or has_more_to_match)
        self.group.assign_if_needed()
        owned = None if request.owned is None else flat(request.owned)
        assigned_changed = self.reconcile(member, owned, now_s, is_joining=request.member_epoch == 0)
        self.restart_session(member, now_s)
        is_full_request = (
            request.rebalance_timeout_ms != -1
            and (request.topic_names is not None or request.topic_regex is not None)
            and request.owned is not None
        )
        return ConsumerHeartbeatAnswer(
            ErrorCode.none,
            "",
            member.member_id,
            member.member_epoch,
            self.settings.consumer_heartbeat_interval_ms,
            by_topic(member.assigned) if is_full_request or assigned_changed else None,
        )

    def reconcile(self, member: ConsumerMember, owned: Partitions | None, now_s: float, *, is_joining: bool) -> bool:
        epoch = member.member_epoch
        assigned_changed = self.group.reconcile(member, owned, is_joining=is_joining)
        if member.member_epoch != epoch:
            member.progress_deadline_s = None
        self._await_progress(member, now_s)
        return assigned_changed

    def _find_or_add(self, request: ConsumerHeartbeat, fresh_member_id: str) -> ConsumerMember:
        group = self.group
        member_id = request.member_id or fresh_member_id
        is_joining = request.member_epoch == 0
        known = group.get(member_id) if request.instance_id is None else group.get_static(request.instance_id)
        if known is None and not is_joining:
            raise Refused(ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}.")
        if known is None:
            if len(group) >= self.settings.consumer_members_per_group_max:
                raise Refused(
                    ErrorCode.group_max_size_reached,
                    f"The consumer group has reached its maximum capacity of {len(group)} members.",
                )
            return group.add(member_id, request.instance_id)
        if known.member_id != member_id:
            if not is_joining:
                raise Refused(
                    ErrorCode.fenced_instance_id,
                    f"Static member {member_id} with instance id {request.instance_id} was fenced by member "
                    f"{known.member_id}.",
                )
            if not known.is_away and known.classic is None:
                raise Refused(
                    ErrorCode.unreleased_instance_id,
                    f"Static member {member_id} with instance id {request.instance_id} cannot join the group because "
                    f"the instance id is used by {known.member_id} member.",
                )
            return group.replace_static(known, member_id)
        if is_joining and known.is_away:
            return group.replace_static(known, member_id)
        if not is_joining:
            self._check_epoch(known, request)
        return known

    def _check_epoch(self, member: ConsumerMember, request: ConsumerHeartbeat) -> None:
        epoch = request.member_epoch
        if epoch == member.member_epoch:
            return
        if epoch > member.member_epoch:
            raise Refused(
                ErrorCode.fenced_member_epoch,
                f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
                f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
            )
        # The answer with the new epoch may have been lost. Then it owns nothing that it should not.
        owned: Partitions | None = None if request.owned is None else flat(request.owned)
        if epoch != member.previous_epoch or owned is None or not owned <= member.assigned:
            raise Refused(
                ErrorCode.fenced_member_epoch,
                f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
                f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
            )

    def _update(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """Update a member from its heartbeat.

        Returns whether its subscription has changed.
        """
        before = (member.topic_names, member.topic_regex, member.server_assignor)
        others = (member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host, member.classic)
        if request.topic_names is not None:
            member.topic_names = frozenset(request.topic_names)
        if request.topic_regex is not None:
            member.topic_regex = request.topic_regex
        if member.topic_regex != before[1]:
            self.group.put_off_pattern(member)
        if request.server_assignor is not None:
            member.server_assignor = request.server_assignor
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_timeout_ms != -1:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.client_id, member.client_host, member.classic = request.client_id, request.client_host, None
        changed = before != (member.topic_names, member.topic_regex, member.server_assignor)
        if changed or others != (
            member.rack_id,
            member.rebalance_timeout_ms,
            member.client_id,
            member.client_host,
            member.classic,
        ):
            self.group.touch(member)
        return changed

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        if request.instance_id is None:
            member = self.group.get(request.member_id)
        else:
            member = self.group.get_static(request.instance_id)
        if member is None:
            raise Refused(
                ErrorCode.unknown_member_id, f"Member {request.member_id} is not a member of group {self.group_id}."
            )
        if member.member_id != request.member_id:
            raise Refused(
                ErrorCode.fenced_instance_id,
                f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            self.group.leave_for_a_moment(member)
        else:
            self.group.remove(member)
        return ConsumerHeartbeatAnswer(ErrorCode.none, "", request.member_id, request.member_epoch)

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def restart_session(self, member: ConsumerMember, now_s: float) -> None:
        classic = member.classic
        timeout_ms = self.settings.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        member.session_deadline_s = now_s + timeout_ms / 1000
        self.look_again_at(member.session_deadline_s)

    def _await_progress(self, member: ConsumerMember, now_s: float) -> None:
        """Give a member its rebalance timeout to revoke partitions.

        The time counts from when the member was told to.
        """
        if member.state is not MemberState.REVOKING:
            member.progress_deadline_s = None
        elif member.progress_deadline_s is None:
            member.progress_deadline_s = now_s + member.rebalance_timeout_ms / 1000
            self.look_again_at(member.progress_deadline_s)

    def look_again_at(self, deadline_s: float) -> None:
        if self._deadline_s is None or deadline_s < self._deadline_s:
            self._deadline_s = deadline_s

    def save_changes(self) -> None:
        changes = self.group.take_changes()
        if changes is not None:
            self._save_number += 1
            self._unsaved[self._save_number] = (changes, [])
            self._effects.append(SaveConsumerGroup(self._save_number, changes))

    def answer(self, answer: Answered) -> None:
        """Answer now, or with the last write in flight."""
        self.save_changes()
        if self._unsaved:
            self._unsaved[next(reversed(self._unsaved))][1].append(answer)
        else:
            self._effects.append(answer)

    def answer_now(self, answer: Answered) -> None:
        self._effects.append(answer)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _failed(answer: Answered, error: ErrorCode) -> Answered:
    match answer:
        case HeartbeatAnswered(ticket):
            return HeartbeatAnswered(ticket, ConsumerHeartbeatAnswer(error, "The group could not be written."))
        case JoinAnswered(ticket, joined):
            return JoinAnswered(ticket, join_error(joined.member_id, error))
        case SyncAnswered(ticket):
            return SyncAnswered(ticket, sync_error(error))
