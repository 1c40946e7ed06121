"""One consumer group whose partitions the coordinator assigns, as a state machine of requests, time and writes.

As `group_membership`, which it shares its effects with: no I/O and no clock. Nothing that is not durable is told to
anybody: an answer leaves together with the write of what it rests on.
"""

from braidlog.control.consumer_classic import ClassicRequests
from braidlog.control.consumer_group import ConsumerChanges, ConsumerGroup, TopicLookup
from braidlog.control.consumer_member import (
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    MemberState,
    Partitions,
    SavedConsumerGroup,
    SavedConsumerMember,
    by_topic,
    flat,
)
from braidlog.control.consumer_requests import LEAVE_EPOCH, Refused
from braidlog.control.group_effects import (
    Answered,
    Effect,
    HeartbeatAnswered,
    JoinAnswered,
    SaveConsumerGroup,
    SyncAnswered,
    join_error,
    sync_error,
)
from braidlog.control.group_errors import GroupError
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_state import GroupState
from braidlog.control.group_subscription import CONSUMER_PROTOCOL_TYPE
from braidlog.control.interface import (
    CommitOffsets,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatAnswer,
    ConsumerMemberDescription,
    GroupListing,
)


class ConsumerMembership(ClassicRequests):
    group_type = "consumer"
    protocol_type: str | None = CONSUMER_PROTOCOL_TYPE
    uses_consumer_protocol = True

    def __init__(self, group_id: str, settings: GroupSettings, topics: TopicLookup) -> None:
        self.group_id = group_id
        self._settings = settings
        self.group = ConsumerGroup(topics, settings.consumer_assignors[0])
        self._is_dead = False
        self._save_number = 0
        self._unsaved: dict[int, tuple[ConsumerChanges, list[Answered]]] = {}
        """Writes on their way, by number, and the answers that go out when they are durable."""
        self._deadline_s: float | None = None
        """No deadline is before it."""
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
        """The group as it was saved last. Its members have a whole session timeout to be heard of again."""
        membership = cls(group_id, settings, topics)
        membership.group = ConsumerGroup.restore(topics, settings.consumer_assignors[0], saved, members)
        for member in membership.group:
            membership._restart_session(member, now_s)
            membership._await_progress(member, now_s)
        return membership

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def heartbeat_consumer(
        self, ticket: int, request: ConsumerHeartbeat, fresh_member_id: str, now_s: float
    ) -> list[Effect]:
        """`fresh_member_id` becomes the member's if the request, which was checked, brings none."""
        try:
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                answer = self._leave(request)
            else:
                answer = self._beat(request, fresh_member_id, now_s)
        except Refused as refused:
            answer = ConsumerHeartbeatAnswer(refused.error, str(refused))
            self._effects.append(HeartbeatAnswered(ticket, answer))
            self._save_changes()
        else:
            self._answer(HeartbeatAnswered(ticket, answer))
        return self._take_effects()

    def check_commit(self, request: CommitOffsets, now_s: float) -> GroupError:
        """Whether these offsets may be committed."""
        if request.generation_id < 0 and not len(self.group):
            return GroupError.NONE
        member = self.group.get(request.member_id)
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        if member.classic is not None:
            if request.group_instance_id is not None and request.group_instance_id != member.instance_id:
                return GroupError.FENCED_INSTANCE_ID
            if request.generation_id != member.member_epoch:
                return GroupError.ILLEGAL_GENERATION
            self._restart_session(member, now_s)
            return GroupError.NONE
        if not request.knows_member_epochs:
            return GroupError.UNSUPPORTED_VERSION
        return GroupError.NONE if request.generation_id == member.member_epoch else GroupError.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, member_epoch: int) -> GroupError:
        """Whether this member may see the group's offsets. Who does not say that it is one may."""
        if member_id is None and member_epoch < 0:
            return GroupError.NONE
        member = self.group.get(member_id or "")
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return GroupError.NONE if member_epoch == member.member_epoch else GroupError.STALE_MEMBER_EPOCH

    # ── time and durability ───────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_s(self) -> float | None:
        """When `advance` may have something to do."""
        return self._deadline_s

    def advance(self, now_s: float) -> list[Effect]:
        """Members that were not heard of, or do not let go of what they must, are gone."""
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
        self._save_changes()
        return self._take_effects()

    def saved(self, number: int, error: GroupError, now_s: float) -> list[Effect]:
        """A `SaveConsumerGroup` is durable, or failed with what clients shall be told."""
        changes, answers = self._unsaved.pop(number)
        if error is GroupError.NONE:
            self._effects += answers
        else:
            self.group.give_back(changes)
            self._effects += [_failed(answer, error) for answer in answers]
        return self._take_effects()

    def shut_down(self, error: GroupError) -> list[Effect]:
        """Answer all who wait, and forget everything: the group was deleted, or lives elsewhere from now on."""
        self._is_dead = True
        self._deadline_s = None
        for number, (changes, answers) in self._unsaved.items():
            self._unsaved[number] = (changes, [])
            self._effects += [_failed(answer, error) for answer in answers]
        return self._take_effects()

    def abandon(self, _ticket: int, _now_s: float) -> list[Effect]:
        """Nobody waits for this ticket any more. A member whose connection is gone may come back on another."""
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
            GroupError.NONE,
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

    # ── heartbeats ────────────────────────────────────────────────────────────────────────────────────────────────

    def _beat(self, request: ConsumerHeartbeat, fresh_member_id: str, now_s: float) -> ConsumerHeartbeatAnswer:
        members_before = len(self.group)
        member = self._find_or_add(request, fresh_member_id)
        is_new = len(self.group) > members_before
        self.group.look_at_topics(subscriptions_changed=self._update(member, request) or is_new)
        self.group.assign_if_needed()
        owned = None if request.owned is None else flat(request.owned)
        assigned_changed = self._reconcile(member, owned, now_s, is_joining=request.member_epoch == 0)
        self._restart_session(member, now_s)
        is_full_request = (
            request.rebalance_timeout_ms != -1
            and (request.topic_names is not None or request.topic_regex is not None)
            and request.owned is not None
        )
        return ConsumerHeartbeatAnswer(
            GroupError.NONE,
            "",
            member.member_id,
            member.member_epoch,
            self._settings.consumer_heartbeat_interval_ms,
            by_topic(member.assigned) if is_full_request or assigned_changed else None,
        )

    def _reconcile(self, member: ConsumerMember, owned: Partitions | None, now_s: float, *, is_joining: bool) -> bool:
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
            raise Refused(GroupError.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        if known is None:
            if len(group) >= self._settings.consumer_members_per_group_max:
                raise Refused(
                    GroupError.GROUP_MAX_SIZE_REACHED,
                    f"The consumer group has reached its maximum capacity of {len(group)} members.",
                )
            return group.add(member_id, request.instance_id)
        if known.member_id != member_id:
            if not is_joining:
                raise Refused(
                    GroupError.FENCED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {request.instance_id} was fenced by member "
                    f"{known.member_id}.",
                )
            if not known.is_away and known.classic is None:
                raise Refused(
                    GroupError.UNRELEASED_INSTANCE_ID,
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
                GroupError.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a greater member epoch ({epoch}) than the one known by the group "
                f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
            )
        # The answer that told it of the new epoch may have been lost: then it has nothing that it should not have.
        owned: Partitions | None = None if request.owned is None else flat(request.owned)
        if epoch != member.previous_epoch or owned is None or not owned <= member.assigned:
            raise Refused(
                GroupError.FENCED_MEMBER_EPOCH,
                f"The consumer group member has a smaller member epoch ({epoch}) than the one known by the group "
                f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
            )

    def _update(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """Whether the member's subscription is another one now."""
        before = (member.topic_names, member.topic_regex, member.server_assignor)
        others = (member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host, member.classic)
        if request.topic_names is not None:
            member.topic_names = frozenset(request.topic_names)
        if request.topic_regex is not None:
            member.topic_regex = request.topic_regex
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
                GroupError.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {self.group_id}."
            )
        if member.member_id != request.member_id:
            raise Refused(
                GroupError.FENCED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
                f"{member.member_id}.",
            )
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            self.group.leave_for_a_moment(member)
        else:
            self.group.remove(member)
        return ConsumerHeartbeatAnswer(GroupError.NONE, "", request.member_id, request.member_epoch)

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _restart_session(self, member: ConsumerMember, now_s: float) -> None:
        classic = member.classic
        timeout_ms = self._settings.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        member.session_deadline_s = now_s + timeout_ms / 1000
        self._look_again_at(member.session_deadline_s)

    def _await_progress(self, member: ConsumerMember, now_s: float) -> None:
        """Whoever has to let go of partitions has its rebalance timeout for it, counted from when it was told."""
        if member.state is not MemberState.REVOKING:
            member.progress_deadline_s = None
        elif member.progress_deadline_s is None:
            member.progress_deadline_s = now_s + member.rebalance_timeout_ms / 1000
            self._look_again_at(member.progress_deadline_s)

    def _look_again_at(self, deadline_s: float) -> None:
        if self._deadline_s is None or deadline_s < self._deadline_s:
            self._deadline_s = deadline_s

    def _save_changes(self) -> None:
        changes = self.group.take_changes()
        if changes is not None:
            self._save_number += 1
            self._unsaved[self._save_number] = (changes, [])
            self._effects.append(SaveConsumerGroup(self._save_number, changes))

    def _answer(self, answer: Answered) -> None:
        """Now, or with the last write that is on its way."""
        self._save_changes()
        if self._unsaved:
            self._unsaved[next(reversed(self._unsaved))][1].append(answer)
        else:
            self._effects.append(answer)

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects


def _failed(answer: Answered, error: GroupError) -> Answered:
    match answer:
        case HeartbeatAnswered(ticket):
            return HeartbeatAnswered(ticket, ConsumerHeartbeatAnswer(error, "The group could not be written."))
        case JoinAnswered(ticket, joined):
            return JoinAnswered(ticket, join_error(joined.member_id, error))
        case SyncAnswered(ticket):
            return SyncAnswered(ticket, sync_error(error))
