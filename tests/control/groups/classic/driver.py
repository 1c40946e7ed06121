"""Drives one group's state machine by hand: a clock that only moves when told, and answers by ticket."""

import struct
from itertools import count

from kio.schema.errors import ErrorCode

from braidlog.control.groups.classic.member import SavedGroup
from braidlog.control.groups.classic.membership import GroupMembership
from braidlog.control.groups.effects import Effect, JoinAnswered, SaveGroup, SyncAnswered
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import (
    CommitOffsets,
    GroupHeartbeat,
    JoinAnswer,
    JoinGroup,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    SyncAnswer,
    SyncAssignment,
    SyncGroup,
)

SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    body = b"".join(struct.pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + body + struct.pack(">i", -1)


RANGE = JoinProtocol("range", subscription("t"))
STICKY = JoinProtocol("cooperative-sticky", subscription("t"))


def join_request(
    member_id: str = "",
    *,
    group_id: str = "g",
    instance: str | None = None,
    protocols: tuple[JoinProtocol, ...] = (RANGE,),
    protocol_type: str = "consumer",
    known: bool = False,
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
    client: str = "client",
) -> JoinGroup:
    return JoinGroup(
        group_id,
        member_id,
        instance,
        client,
        "/127.0.0.1",
        session_ms,
        rebalance_ms,
        protocol_type,
        list(protocols),
        known,
    )


def sync_request(
    joined: JoinAnswer, assignments: dict[str, bytes] | None = None, *, instance: str | None = None, group_id: str = "g"
) -> SyncGroup:
    pairs = [SyncAssignment(member_id, assignment) for member_id, assignment in (assignments or {}).items()]
    return SyncGroup(
        group_id,
        joined.generation_id,
        joined.member_id,
        instance,
        joined.protocol_type,
        joined.protocol_name,
        pairs,
    )


class Driver:
    def __init__(self, settings: GroupSettings | None = None, saved: SavedGroup | None = None) -> None:
        self.settings = settings or GroupSettings(initial_rebalance_delay_ms=0)
        self.now_s = 1000.0
        if saved is None:
            self.group = GroupMembership("g", self.settings)
        else:
            self.group = GroupMembership.restore("g", self.settings, saved, self.now_s)
        self.joins: dict[int, JoinAnswer] = {}
        self.syncs: dict[int, SyncAnswer] = {}
        self.saves: list[SaveGroup] = []
        self.durable: SavedGroup | None = saved
        self.hold_saves = False
        self._tickets = count(1)
        self._ids = count(1)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, JoinAnswered):
                assert effect.ticket not in self.joins, "a ticket was answered twice"
                self.joins[effect.ticket] = effect.answer
            elif isinstance(effect, SyncAnswered):
                assert effect.ticket not in self.syncs, "a ticket was answered twice"
                self.syncs[effect.ticket] = effect.answer
            else:
                self.saves.append(effect)
                if not self.hold_saves:
                    self.finish_save(effect)

    def finish_save(self, save: SaveGroup, error: ErrorCode = ErrorCode.none) -> None:
        if error is ErrorCode.none:
            self.durable = save.group
        self.take(self.group.saved(save.number, error, self.now_s))

    def crash(self) -> None:
        """Go on with what is durable. Whoever waits will never be answered."""
        self.saves.clear()
        self.group = GroupMembership("g", self.settings)
        if self.durable is not None:
            self.group = GroupMembership.restore("g", self.settings, self.durable, self.now_s)

    def join(self, member_id: str = "", **options: object) -> int:
        """Send a join and return its ticket."""
        ticket = next(self._tickets)
        request = join_request(member_id, **options)  # type: ignore[arg-type]
        fresh_id = f"{request.group_instance_id or 'm'}-{next(self._ids)}"
        self.take(self.group.join(ticket, request, fresh_id, self.now_s))
        return ticket

    def sync(
        self, joined: JoinAnswer, assignments: dict[str, bytes] | None = None, *, instance: str | None = None
    ) -> int:
        ticket = next(self._tickets)
        request = sync_request(joined, assignments, instance=instance)
        self.take(self.group.sync(ticket, request, self.now_s))
        return ticket

    def heartbeat(self, joined: JoinAnswer, *, instance: str | None = None) -> ErrorCode:
        request = GroupHeartbeat("g", joined.generation_id, joined.member_id, instance)
        return self.group.heartbeat(request, self.now_s)

    def leave(self, member_id: str, *, instance: str | None = None) -> int:
        answer, effects = self.group.leave(LeaveGroup("g", [LeavingMember(member_id, instance)]), self.now_s)
        self.take(effects)
        assert answer.error_code == ErrorCode.none
        return answer.member_error_codes[0]

    def commit(self, generation_id: int = -1, member_id: str = "", *, instance: str | None = None) -> ErrorCode:
        return self.group.check_commit(CommitOffsets("g", generation_id, member_id, instance, []), self.now_s)

    def abandon(self, ticket: int) -> None:
        self.take(self.group.abandon(ticket, self.now_s))

    def run_for(self, seconds: float) -> None:
        """Let time pass, stopping at every deadline on the way."""
        end_s = self.now_s + seconds
        while True:
            deadline_s = self.group.next_deadline_s()
            if deadline_s is None or deadline_s > end_s:
                break
            self.now_s = max(self.now_s, deadline_s)
            self.take(self.group.advance(self.now_s))
        self.now_s = end_s

    def settle(self) -> None:
        """Let what is due now happen."""
        self.run_for(0)

    def stable(self, count_: int, **options: object) -> list[JoinAnswer]:
        """A new stable group of so many members, each assigned its own number; the first leads."""
        tickets = [self.join(**options) for _ in range(count_)]
        self.settle()
        joined = [self.joins[ticket] for ticket in tickets]
        assignments = {answer.member_id: b"%d" % index for index, answer in enumerate(joined)}
        for answer in joined:
            self.sync(answer, assignments if answer.member_id == answer.leader else None)
        return joined
