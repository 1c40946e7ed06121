"""Random histories of one group: clients that come, go, hang, restart and repeat themselves."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from tests.control.groups.classic.driver import RANGE, STICKY, Driver

from braidlog.control.groups.settings import GroupSettings
from braidlog.control.groups.state import GroupState
from braidlog.control.interface import JoinAnswer

SESSION_MS = 6_000
REBALANCE_MS = 15_000
PARTITION_COUNT = 7


@dataclass
class Client:
    """A consumer that follows the protocol, one action at a time."""

    group: Driver
    instance: str | None
    phase: str = "idle"
    member_id: str = ""
    ticket: int = 0
    joined: JoinAnswer | None = None
    owned: frozenset[int] = frozenset()

    def step(self) -> None:
        getattr(self, f"_{self.phase}")()

    def restart(self) -> None:
        """The process is replaced; what its connection waited for stays behind."""
        self.phase, self.member_id, self.joined, self.owned = "idle", "", None, frozenset()

    @property
    def is_answered(self) -> bool:
        return self.ticket in self.group.joins or self.ticket in self.group.syncs

    def hang_up(self) -> None:
        if self.phase in ("joining", "syncing"):
            self.group.abandon(self.ticket)
            if not self.is_answered:
                self.phase = "idle"

    def leave(self) -> None:
        if self.member_id:
            self.group.leave(self.member_id, instance=self.instance)
        self.restart()

    def _idle(self) -> None:
        protocols = (STICKY, RANGE) if self.instance else (RANGE, STICKY)
        self.ticket = self.group.join(
            self.member_id,
            instance=self.instance,
            known=True,
            protocols=protocols,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )
        self.phase = "joining"

    def _joining(self) -> None:
        answer = self.group.joins.get(self.ticket)
        if answer is None:
            return
        if answer.error_code == ErrorCode.none:
            self.joined, self.member_id, self.phase = answer, answer.member_id, "joined"
        elif answer.error_code == ErrorCode.member_id_required:
            self.member_id, self.phase = answer.member_id, "idle"
        else:
            self._recover(answer.error_code)

    def _joined(self) -> None:
        assert self.joined is not None
        assignments = None
        if self.joined.leader == self.member_id and not self.joined.skip_assignment:
            ids = [member.member_id for member in self.joined.members]
            assert self.member_id in ids
            assignments = {each: bytes(range(index, PARTITION_COUNT, len(ids))) for index, each in enumerate(ids)}
        self.ticket = self.group.sync(self.joined, assignments, instance=self.instance)
        self.phase = "syncing"

    def _syncing(self) -> None:
        answer = self.group.syncs.get(self.ticket)
        if answer is None:
            return
        if answer.error_code == ErrorCode.none:
            self.owned, self.phase = frozenset(answer.assignment), "stable"
        else:
            self._recover(answer.error_code)

    def _stable(self) -> None:
        assert self.joined is not None
        code = self.group.heartbeat(self.joined, instance=self.instance)
        if code is not ErrorCode.none:
            self._recover(code)

    def _recover(self, code: int) -> None:
        assert code in (
            ErrorCode.rebalance_in_progress,
            ErrorCode.unknown_member_id,
            ErrorCode.illegal_generation,
            ErrorCode.fenced_instance_id,
            ErrorCode.coordinator_not_available,
            ErrorCode.group_max_size_reached,
        ), code
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id, ErrorCode.group_max_size_reached):
            self.member_id = ""
        self.phase = "idle"


@dataclass
class History:
    group: Driver
    clients: list[Client]
    generation_id: int = 0
    joins_since_s: dict[int, float] = field(default_factory=dict)
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Who was given a partition, by generation and partition."""

    def check(self) -> None:
        assert self.group.group.generation_id >= self.generation_id
        self.generation_id = self.group.group.generation_id
        for client in self.clients:
            if client.phase == "joining" and client.ticket not in self.group.joins:
                since_s = self.joins_since_s.setdefault(client.ticket, self.group.now_s)
                assert self.group.now_s - since_s <= REBALANCE_MS / 1000, "a join waits too long"
            if client.phase == "stable":
                assert client.joined is not None
                owner = client.instance or client.member_id
                for partition in client.owned:
                    key = (client.joined.generation_id, partition)
                    assert self.owners.setdefault(key, owner) == owner, "one partition, two owners"

    def crash(self) -> None:
        self.group.crash()
        self.generation_id = self.group.group.generation_id
        for client in self.clients:
            if client.phase in ("joining", "syncing") and not client.is_answered:
                client.phase = "idle"

    def finish_saves(self, error: ErrorCode = ErrorCode.none) -> None:
        saves, self.group.saves = self.group.saves, []
        for save in saves:
            self.group.finish_save(save, error)


ACTIONS = st.tuples(
    st.sampled_from(
        ["step"] * 8 + ["rejoin", "restart", "leave", "hang up", "time", "long time", "save", "fail", "remove", "crash"]
    ),
    st.integers(0, 4),
)


@settings(max_examples=150, deadline=None)
@given(
    actions=st.lists(ACTIONS, max_size=80),
    delay_ms=st.sampled_from([0, 3000]),
    members_max=st.sampled_from([3, 100]),
)
def test_random_histories(actions: list[tuple[str, int]], delay_ms: int, members_max: int) -> None:
    group = Driver(GroupSettings(initial_rebalance_delay_ms=delay_ms, members_per_group_max=members_max))
    group.hold_saves = True
    clients = [Client(group, instance) for instance in (None, None, None, "x", "y")]
    history = History(group, clients)
    for kind, number in actions:
        client = clients[number]
        if kind == "step":
            client.step()
        elif kind == "rejoin":
            if client.phase == "stable":
                client.phase = "idle"
        elif kind == "restart":
            client.restart()
        elif kind == "leave":
            client.leave()
        elif kind == "hang up":
            client.hang_up()
        elif kind == "remove":
            group.leave("", instance="x")
        elif kind == "crash":
            history.crash()
        elif kind == "save":
            history.finish_saves()
        elif kind == "fail":
            history.finish_saves(ErrorCode.coordinator_not_available)
        else:
            history.finish_saves()
            group.run_for(1 if kind == "time" else 7)
        history.check()

    # From here on nothing goes wrong: all who fit in agree on one generation, and every partition has one owner.
    for _ in range(100):
        for client in clients:
            client.step()
            history.finish_saves()
            history.check()
        group.run_for(1)
    assert group.group.state is GroupState.STABLE or members_max < len(clients)
    if members_max >= len(clients):
        assert {client.phase for client in clients} == {"stable"}
        assert len({client.joined.generation_id for client in clients if client.joined}) == 1
        assert sorted(partition for client in clients for partition in client.owned) == list(range(PARTITION_COUNT))
