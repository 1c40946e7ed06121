"""Members of the classic protocol in a group of the consumer protocol.

The coordinator assigns the partitions of such a group.

While a group migrates from one protocol to the other, it has members of both. To classic members the coordinator acts
as the group leader. It answers a join at once, with the member's epoch as the generation. A sync brings the partitions
that are free for the member. A heartbeat tells it to rejoin whenever it gets or loses partitions.
"""

from typing import Protocol

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import (
    SavedGroup,
    SavedMember,
    chosen_metadata,
    protocols_bytes,
    rebalance_timeout_ms,
    unique_protocols,
)
from braidlog.control.groups.consumer.group import ConsumerGroup
from braidlog.control.groups.consumer.member import ConsumerMember, MemberState, Partitions, SavedClassic, by_topic
from braidlog.control.groups.consumer.requests import Refused
from braidlog.control.groups.effects import Answered, Effect, JoinAnswered, SyncAnswered, join_error, sync_error
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.subscription import (
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


class ClassicHost(Protocol):
    """The group that the requests are about, with its sessions and its answers."""

    group: ConsumerGroup
    settings: GroupSettings

    def restart_session(self, member: ConsumerMember, now_s: float) -> None: ...

    def reconcile(
        self, member: ConsumerMember, owned: Partitions | None, now_s: float, *, is_joining: bool
    ) -> bool: ...

    def look_again_at(self, deadline_s: float) -> None: ...

    def answer(self, answer: Answered) -> None:
        """Answer together with the write that the answer rests on."""
        ...

    def answer_now(self, answer: Answered) -> None:
        """Answer without waiting for any write."""
        ...

    def save_changes(self) -> None: ...

    def take_effects(self) -> list[Effect]: ...


class ClassicRequests:
    """Answers the requests of the classic protocol for a group of the newer one."""

    def __init__(self, host: ClassicHost) -> None:
        self._host = host

    @property
    def _group(self) -> ConsumerGroup:
        return self._host.group

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, ticket: int, request: JoinGroup, fresh_member_id: str, now_s: float) -> list[Effect]:
        try:
            self._host.answer(JoinAnswered(ticket, self._join(request, fresh_member_id, now_s)))
        except Refused as refused:
            member_id = fresh_member_id if refused.error is ErrorCode.member_id_required else request.member_id
            self._host.answer_now(JoinAnswered(ticket, join_error(member_id, refused.error)))
            self._host.save_changes()
        return self._host.take_effects()

    def sync(self, ticket: int, request: SyncGroup, now_s: float) -> list[Effect]:
        group = self._group
        error = self._check_classic(request.member_id, request.group_instance_id, request.generation_id)
        member = group.get(request.member_id)
        if error is ErrorCode.none and request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            error = ErrorCode.inconsistent_group_protocol
        if error is ErrorCode.none and member is not None:
            protocol_name = self._protocol_name(member)
            if request.protocol_name not in (None, protocol_name):
                error = ErrorCode.inconsistent_group_protocol
            elif group.group_epoch > member.member_epoch and member.state is not MemberState.REVOKING:
                self._expect_rejoin(member, now_s)
                error = ErrorCode.rebalance_in_progress
            else:
                if member.state is not MemberState.REVOKING:
                    member.progress_deadline_s = None
                self._host.restart_session(member, now_s)
                assignment = encode_assignment(group, member)
                answer = SyncAnswer(ErrorCode.none, CONSUMER_PROTOCOL_TYPE, protocol_name, assignment)
                self._host.answer(SyncAnswered(ticket, answer))
        if error is not ErrorCode.none:
            self._host.answer_now(SyncAnswered(ticket, sync_error(error)))
        return self._host.take_effects()

    def heartbeat(self, request: GroupHeartbeat, now_s: float) -> ErrorCode:
        error = self._check_classic(request.member_id, request.group_instance_id, request.generation_id)
        member = self._group.get(request.member_id)
        if error is not ErrorCode.none or member is None:
            return error
        self._host.restart_session(member, now_s)
        gets_more = member.state is MemberState.WAITING and not self._group.waits_for_others(member)
        if self._group.group_epoch > member.member_epoch or member.state is MemberState.REVOKING or gets_more:
            self._expect_rejoin(member, now_s)
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(self, request: LeaveGroup, now_s: float) -> tuple[LeaveAnswer, list[Effect]]:
        error_codes: list[int] = [self._leave_one(leaving) for leaving in request.members]
        self._host.save_changes()
        return LeaveAnswer(ErrorCode.none, error_codes), self._host.take_effects()

    @property
    def is_all_classic(self) -> bool:
        """Whether only classic members are left, so that the group can go back."""
        return bool(len(self._group)) and all(member.classic is not None for member in self._group)

    def as_classic(self) -> SavedGroup:
        """Return the group as a classic one. Its members have to join again."""
        members = [
            SavedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
                encode_assignment(self._group, member),
            )
            for member in self._group
            if member.classic is not None
        ]
        shared = self._shared_protocols()
        protocol_name = next(name for name in _names(members[0].protocols) if name in shared)
        return SavedGroup(self._group.group_epoch, CONSUMER_PROTOCOL_TYPE, protocol_name, members[0].member_id, members)

    def adopt(self, saved: SavedGroup, now_s: float) -> None:
        """Take over the members of a classic group, with their assignments."""
        self._group.group_epoch = self._group.assignment_epoch = saved.generation_id
        for each in saved.members:
            subscription = read_subscription(chosen_metadata(each.protocols, saved.protocol_name))
            assigned = _partitions(self._group, read_assignment(each.assignment) or {})
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
                assigned=frozenset(partition for partition in assigned if self._group.is_unowned(partition)),
                target=assigned,
                classic=SavedClassic(each.session_timeout_ms, list(each.protocols)),
            )
            self._group.adopt(member)
            self._host.restart_session(member, now_s)

    # ── joining ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _join(self, request: JoinGroup, fresh_member_id: str, now_s: float) -> JoinAnswer:
        group, settings = self._group, self._host.settings
        protocols = unique_protocols(request)
        subscription = read_subscription(protocols[0].metadata) if protocols else None
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            raise Refused(ErrorCode.invalid_session_timeout, "")
        if protocols_bytes(protocols) > settings.member_metadata_bytes_max:
            raise Refused(ErrorCode.invalid_request, "")
        shared = set(_names(protocols)).intersection(
            *(_names(each.classic.protocols) for each in group if each.classic and each.member_id != request.member_id)
        )
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not shared or subscription is None:
            raise Refused(ErrorCode.inconsistent_group_protocol, "")
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
        # Members that do not report what they own have given up everything before they joined.
        self._host.reconcile(member, _partitions(group, subscription.owned or {}), now_s, is_joining=True)
        self._host.restart_session(member, now_s)
        self._expect_rejoin(member, now_s)  # its sync, in this case
        return JoinAnswer(
            ErrorCode.none,
            member.member_epoch,
            CONSUMER_PROTOCOL_TYPE,
            self._protocol_name(member),
            "",  # the coordinator leads, so no member may believe that it does
            member.member_id,
            [],
        )

    def _find_or_add_classic(self, request: JoinGroup, fresh_member_id: str) -> ConsumerMember:
        group = self._group
        if request.group_instance_id is not None:
            known = group.get_static(request.group_instance_id)
            if known is not None and not request.member_id:
                return group.replace_static(known, fresh_member_id)
            if known is not None and known.member_id != request.member_id:
                raise Refused(ErrorCode.fenced_instance_id, "")
            if known is None and request.member_id:
                raise Refused(ErrorCode.unknown_member_id, "")
        else:
            known = group.get(request.member_id)
            if known is None and not request.member_id and request.require_known_member_id:
                raise Refused(ErrorCode.member_id_required, "")
        if known is None:
            if len(group) >= self._host.settings.consumer_members_per_group_max:
                raise Refused(ErrorCode.group_max_size_reached, "")
            return group.add(request.member_id or fresh_member_id, request.group_instance_id)
        return known

    def _leave_one(self, leaving: LeavingMember) -> ErrorCode:
        group = self._group
        if not leaving.member_id:
            # An administrator removes a static member of either protocol by its instance id alone.
            member = group.get_static(leaving.group_instance_id)
        else:
            member = group.get(leaving.member_id)
            if leaving.group_instance_id is not None:
                static = group.get_static(leaving.group_instance_id)
                if static is not None and static is not member:
                    return ErrorCode.fenced_instance_id
            if member is not None and member.classic is None:
                return ErrorCode.unknown_member_id
        if member is None:
            return ErrorCode.unknown_member_id
        group.remove(member)
        return ErrorCode.none

    # ── bookkeeping ───────────────────────────────────────────────────────────────────────────────────────────────

    def _check_classic(self, member_id: str, group_instance_id: str | None, generation_id: int) -> ErrorCode:
        member = self._group.get(member_id)
        if group_instance_id is not None:
            static = self._group.get_static(group_instance_id)
            if static is None:
                return ErrorCode.unknown_member_id
            if static is not member:
                return ErrorCode.fenced_instance_id
        if member is None or member.classic is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if generation_id == member.member_epoch else ErrorCode.illegal_generation

    def _expect_rejoin(self, member: ConsumerMember, now_s: float) -> None:
        if member.progress_deadline_s is None:
            member.progress_deadline_s = now_s + member.rebalance_timeout_ms / 1000
            self._host.look_again_at(member.progress_deadline_s)

    def _shared_protocols(self) -> set[str]:
        names = [set(_names(member.classic.protocols)) for member in self._group if member.classic is not None]
        return set.intersection(*names) if names else set()

    def _protocol_name(self, member: ConsumerMember) -> str | None:
        shared = self._shared_protocols()
        offered = _names(member.classic.protocols) if member.classic is not None else []
        return next((name for name in offered if name in shared), None)


def encode_assignment(group: ConsumerGroup, member: ConsumerMember) -> bytes:
    """Encode the member's partitions as its leader would have sent them."""
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
    """Return the partitions of named topics. Topics that no longer exist are left out."""
    return frozenset(
        (topic_id, index)
        for name, indexes in indexes_by_name.items()
        if (topic_id := group.id_of(name)) is not None
        for index in indexes
    )
