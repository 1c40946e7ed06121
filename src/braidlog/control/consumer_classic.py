"""Members of the classic protocol in a group whose partitions the coordinator assigns.

While a group goes over from one protocol to the other it has members of both. To the older ones the coordinator plays
the part of a group leader: a join is answered at once with the member's epoch as its generation, a sync brings the
partitions that are free for it, and a heartbeat tells it to join again whenever there is more to give or to take.
"""

from abc import ABC, abstractmethod

from braidlog.control.consumer_group import ConsumerGroup
from braidlog.control.consumer_member import ConsumerMember, MemberState, Partitions, SavedClassic, by_topic
from braidlog.control.consumer_requests import Refused
from braidlog.control.group_effects import Answered, Effect, JoinAnswered, SyncAnswered, join_error, sync_error
from braidlog.control.group_errors import GroupError
from braidlog.control.group_member import (
    SavedGroup,
    SavedMember,
    chosen_metadata,
    protocols_bytes,
    rebalance_timeout_ms,
    unique_protocols,
)
from braidlog.control.group_settings import GroupSettings
from braidlog.control.group_subscription import (
    CONSUMER_PROTOCOL_TYPE,
    TopicIndexes,
    read_assignment,
    read_subscription,
    write_assignment,
)
from braidlog.control.interface import (
    GroupHeartbeat,
    JoinAnswer,
    JoinGroup,
    JoinProtocol,
    LeaveAnswer,
    LeaveGroup,
    LeavingMember,
    SyncAnswer,
    SyncGroup,
)


class ClassicRequests(ABC):
    """The requests of the classic protocol, as `ConsumerMembership` answers them."""

    group: ConsumerGroup
    _settings: GroupSettings
    _effects: list[Effect]

    @abstractmethod
    def _restart_session(self, member: ConsumerMember, now_s: float) -> None: ...

    @abstractmethod
    def _reconcile(
        self, member: ConsumerMember, owned: Partitions | None, now_s: float, *, is_joining: bool
    ) -> bool: ...

    @abstractmethod
    def _look_again_at(self, deadline_s: float) -> None: ...

    @abstractmethod
    def _answer(self, answer: Answered) -> None: ...

    @abstractmethod
    def _save_changes(self) -> None: ...

    @abstractmethod
    def _take_effects(self) -> list[Effect]: ...

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, ticket: int, request: JoinGroup, fresh_member_id: str, now_s: float) -> list[Effect]:
        try:
            self._answer(JoinAnswered(ticket, self._join(request, fresh_member_id, now_s)))
        except Refused as refused:
            member_id = fresh_member_id if refused.error is GroupError.MEMBER_ID_REQUIRED else request.member_id
            self._effects.append(JoinAnswered(ticket, join_error(member_id, refused.error)))
            self._save_changes()
        return self._take_effects()

    def sync(self, ticket: int, request: SyncGroup, now_s: float) -> list[Effect]:
        group = self.group
        error = self._check_classic(request.member_id, request.group_instance_id, request.generation_id)
        member = group.get(request.member_id)
        if error is GroupError.NONE and request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        if error is GroupError.NONE and member is not None:
            protocol_name = self._protocol_name(member)
            if request.protocol_name not in (None, protocol_name):
                error = GroupError.INCONSISTENT_GROUP_PROTOCOL
            elif group.group_epoch > member.member_epoch and member.state is not MemberState.REVOKING:
                self._expect_rejoin(member, now_s)
                error = GroupError.REBALANCE_IN_PROGRESS
            else:
                if member.state is not MemberState.REVOKING:
                    member.progress_deadline_s = None
                self._restart_session(member, now_s)
                assignment = encode_assignment(group, member)
                answer = SyncAnswer(GroupError.NONE, CONSUMER_PROTOCOL_TYPE, protocol_name, assignment)
                self._answer(SyncAnswered(ticket, answer))
        if error is not GroupError.NONE:
            self._effects.append(SyncAnswered(ticket, sync_error(error)))
        return self._take_effects()

    def heartbeat(self, request: GroupHeartbeat, now_s: float) -> GroupError:
        error = self._check_classic(request.member_id, request.group_instance_id, request.generation_id)
        member = self.group.get(request.member_id)
        if error is not GroupError.NONE or member is None:
            return error
        self._restart_session(member, now_s)
        gets_more = member.state is MemberState.WAITING and not self.group.waits_for_others(member)
        if self.group.group_epoch > member.member_epoch or member.state is MemberState.REVOKING or gets_more:
            self._expect_rejoin(member, now_s)
            return GroupError.REBALANCE_IN_PROGRESS
        return GroupError.NONE

    def leave(self, request: LeaveGroup, now_s: float) -> tuple[LeaveAnswer, list[Effect]]:
        error_codes: list[int] = [self._leave_one(leaving) for leaving in request.members]
        self._save_changes()
        return LeaveAnswer(GroupError.NONE, error_codes), self._take_effects()

    @property
    def is_all_classic(self) -> bool:
        """The last member of the newer protocol has left others behind: the group can go back."""
        return bool(len(self.group)) and all(member.classic is not None for member in self.group)

    def as_classic(self) -> SavedGroup:
        """The group as one of the classic protocol. Its members have to join again."""
        members = [
            SavedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
                encode_assignment(self.group, member),
            )
            for member in self.group
            if member.classic is not None
        ]
        shared = self._shared_protocols()
        protocol_name = next(name for name in _names(members[0].protocols) if name in shared)
        return SavedGroup(self.group.group_epoch, CONSUMER_PROTOCOL_TYPE, protocol_name, members[0].member_id, members)

    def adopt_classic(self, saved: SavedGroup, now_s: float) -> None:
        """Take over the members of a group of the classic protocol, with what they have been assigned."""
        self.group.group_epoch = self.group.assignment_epoch = saved.generation_id
        for each in saved.members:
            subscription = read_subscription(chosen_metadata(each.protocols, saved.protocol_name))
            assigned = _partitions(self.group, read_assignment(each.assignment) or {})
            member = ConsumerMember(
                member_id=each.member_id,
                joined_number=0,
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                topic_names=subscription.topics if subscription is not None else frozenset(),
                member_epoch=saved.generation_id,
                previous_epoch=saved.generation_id,
                assigned=frozenset(partition for partition in assigned if self.group.is_unowned(partition)),
                target=assigned,
                classic=SavedClassic(each.session_timeout_ms, list(each.protocols)),
            )
            self.group.adopt(member)
            self._restart_session(member, now_s)

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _join(self, request: JoinGroup, fresh_member_id: str, now_s: float) -> JoinAnswer:
        group, settings = self.group, self._settings
        protocols = unique_protocols(request)
        subscription = read_subscription(protocols[0].metadata) if protocols else None
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            raise Refused(GroupError.INVALID_SESSION_TIMEOUT, "")
        if protocols_bytes(protocols) > settings.member_metadata_bytes_max:
            raise Refused(GroupError.INVALID_REQUEST, "")
        shared = set(_names(protocols)).intersection(
            *(_names(each.classic.protocols) for each in group if each.classic and each.member_id != request.member_id)
        )
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not shared or subscription is None:
            raise Refused(GroupError.INCONSISTENT_GROUP_PROTOCOL, "")
        members_before = len(group)
        member = self._find_or_add_classic(request, fresh_member_id)
        is_new = len(group) > members_before
        changed = is_new or subscription.topics != member.topic_names or bool(member.topic_regex)
        member.topic_names, member.topic_regex, member.server_assignor = subscription.topics, "", None
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.classic = SavedClassic(request.session_timeout_ms, list(protocols))
        group.touch(member)
        group.look_at_topics(subscriptions_changed=changed)
        group.assign_if_needed()
        # Members that do not say what they have, have given up everything before they joined.
        self._reconcile(member, _partitions(group, subscription.owned or {}), now_s, is_joining=True)
        self._restart_session(member, now_s)
        self._expect_rejoin(member, now_s)  # that is, its sync
        return JoinAnswer(
            GroupError.NONE,
            member.member_epoch,
            CONSUMER_PROTOCOL_TYPE,
            self._protocol_name(member),
            "",  # the coordinator leads: no member shall think that it does
            member.member_id,
            [],
        )

    def _find_or_add_classic(self, request: JoinGroup, fresh_member_id: str) -> ConsumerMember:
        group = self.group
        if request.group_instance_id is not None:
            known = group.get_static(request.group_instance_id)
            if known is not None and not request.member_id:
                return group.replace_static(known, fresh_member_id)
            if known is not None and known.member_id != request.member_id:
                raise Refused(GroupError.FENCED_INSTANCE_ID, "")
            if known is None and request.member_id:
                raise Refused(GroupError.UNKNOWN_MEMBER_ID, "")
        else:
            known = group.get(request.member_id)
            if known is None and not request.member_id and request.require_known_member_id:
                raise Refused(GroupError.MEMBER_ID_REQUIRED, "")
        if known is None:
            if len(group) >= self._settings.consumer_members_per_group_max:
                raise Refused(GroupError.GROUP_MAX_SIZE_REACHED, "")
            return group.add(request.member_id or fresh_member_id, request.group_instance_id)
        return known

    def _leave_one(self, leaving: LeavingMember) -> GroupError:
        group = self.group
        if not leaving.member_id:
            # An administrator removes a static member by its instance id alone, whatever it speaks.
            member = group.get_static(leaving.group_instance_id)
        else:
            member = group.get(leaving.member_id)
            if leaving.group_instance_id is not None:
                static = group.get_static(leaving.group_instance_id)
                if static is not None and static is not member:
                    return GroupError.FENCED_INSTANCE_ID
            if member is not None and member.classic is None:
                return GroupError.UNKNOWN_MEMBER_ID
        if member is None:
            return GroupError.UNKNOWN_MEMBER_ID
        group.remove(member)
        return GroupError.NONE

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _check_classic(self, member_id: str, group_instance_id: str | None, generation_id: int) -> GroupError:
        member = self.group.get(member_id)
        if group_instance_id is not None:
            static = self.group.get_static(group_instance_id)
            if static is None:
                return GroupError.UNKNOWN_MEMBER_ID
            if static is not member:
                return GroupError.FENCED_INSTANCE_ID
        if member is None or member.classic is None:
            return GroupError.UNKNOWN_MEMBER_ID
        return GroupError.NONE if generation_id == member.member_epoch else GroupError.ILLEGAL_GENERATION

    def _expect_rejoin(self, member: ConsumerMember, now_s: float) -> None:
        if member.progress_deadline_s is None:
            member.progress_deadline_s = now_s + member.rebalance_timeout_ms / 1000
            self._look_again_at(member.progress_deadline_s)

    def _shared_protocols(self) -> set[str]:
        names = [set(_names(member.classic.protocols)) for member in self.group if member.classic is not None]
        return set.intersection(*names) if names else set()

    def _protocol_name(self, member: ConsumerMember) -> str | None:
        shared = self._shared_protocols()
        offered = _names(member.classic.protocols) if member.classic is not None else []
        return next((name for name in offered if name in shared), None)


def encode_assignment(group: ConsumerGroup, member: ConsumerMember) -> bytes:
    """What the member may read, as its leader would have sent it."""
    subscription = None
    if member.classic is not None and member.classic.protocols:
        subscription = read_subscription(member.classic.protocols[0].metadata)
    named: TopicIndexes = {}
    for topic_id, indexes in by_topic(member.assigned):
        name = group.name_of(topic_id)
        if name is not None:
            named[name] = indexes
    return write_assignment(subscription.version if subscription is not None else 0, named)


def _names(protocols: list[JoinProtocol] | tuple[JoinProtocol, ...]) -> list[str]:
    return [protocol.name for protocol in protocols]


def _partitions(group: ConsumerGroup, indexes_by_name: TopicIndexes) -> Partitions:
    """Topics that no longer exist are left out."""
    return frozenset(
        (topic_id, index)
        for name, indexes in indexes_by_name.items()
        if (topic_id := group.id_of(name)) is not None
        for index in indexes
    )
