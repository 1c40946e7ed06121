"""What an agent does about an outage, and when the outage is over for it."""

from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.ripcord.discovery import AgentNotice, Discovery
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.agent.ripcord.replay_wait import ReplayWait
from braidlog.agent.ripcord.ripcord import NODE_IDS_FROM, STALE_AGENTS_S, Ripcord
from braidlog.agent.ripcord.snapshot import SnapshotKeeper
from braidlog.control.agents import NodeIdTaken
from braidlog.control.interface import (
    AgentInfo,
    ControlPlane,
    FeedPosition,
    HeartbeatAnswer,
    RegisterAgent,
    Registered,
    ScanRequested,
    Snapshot,
    TopicInfo,
)
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable

TOPIC = TopicInfo(b"t" * 16, "events", [1, 2], {}, 1, 0)
OTHER = AgentInfo(2, "other", "host-2", 9092, "")


class ScriptedControl:
    def __init__(self) -> None:
        self.fencing_epoch = 1
        self.known = True
        self.scans = 0
        self.replayed = 0
        self.taken_ids: set[int] = set()
        self.registered: list[RegisterAgent] = []

    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered:
        if request.node_id in self.taken_ids:
            raise NodeIdTaken("taken")
        self.registered.append(request)
        self.known = True
        node_id = request.node_id if request.node_id >= 0 else 5
        return Registered(node_id, "cluster", 3, self.fencing_epoch, 1000)

    async def heartbeat_agent(self, request: Any, *, timeout_s: float | None = None) -> HeartbeatAnswer:
        return HeartbeatAnswer(self.known, 3, self.fencing_epoch, self.replayed)

    async def request_scan(self, request: Any, *, timeout_s: float | None = None) -> ScanRequested:
        self.scans += 1
        return ScanRequested(self.scans)


class Agent:
    """The parts of one that matter here."""

    def __init__(self, mode: str = "auto", store: MemoryStore | None = None) -> None:
        self.clock = FakeClock()
        self.control = ScriptedControl()
        control = cast(ControlPlane, self.control)
        self.store = store or MemoryStore(MemoryBucket(), url="memory://", clock=self.clock)
        self.view = ClusterView()
        self.reachability = Reachability(self.clock, after_s=5.0)
        replay_wait = ReplayWait(control, self.reachability, "own")
        self.session = AgentSession(control, self.clock, SeededEntropy(1), "own", "zone", on_heard=replay_wait.heard)
        self.ripcord = Ripcord(
            mode, replay_wait, self.reachability, self.session, self.view, self.store, self.clock, SeededEntropy(2)
        )

    async def join(self) -> None:
        await self.session.register("host-1", 9092)
        self.view.load(Snapshot(FeedPosition(1, 7), "cluster", [TOPIC], [], [self.session.info, OTHER], {}))

    def lose_control(self) -> None:
        self.clock.advance(6.0)
        self.reachability.failed()

    async def tick(self) -> None:
        self.clock.advance(1.0)
        await self.ripcord._tick()

    async def hear(self) -> None:
        await self.session._be_heard()


@pytest.mark.parametrize(
    ("mode", "before", "during"), [("off", False, False), ("auto", False, True), ("on", True, True)]
)
async def test_what_is_journaled_in_each_mode(mode: str, before: bool, during: bool) -> None:
    agent = Agent(mode)
    await agent.join()
    assert agent.ripcord.journals_all is before
    agent.lose_control()
    assert agent.ripcord.journals_all is during
    assert agent.ripcord.state == "away"


async def test_an_outage_is_over_when_its_journals_are_replayed() -> None:
    agent = Agent()
    await agent.join()
    agent.lose_control()
    agent.reachability.answered()
    assert agent.ripcord.state == "returning"
    assert agent.ripcord.journals_all
    await agent.hear()  # says nothing of a scan that nobody has asked for
    assert agent.ripcord.journals_all
    await agent.tick()
    assert agent.control.scans == 1
    await agent.hear()
    assert agent.ripcord.journals_all
    await agent.tick()
    assert agent.control.scans == 1  # asked once
    agent.control.replayed = 1
    await agent.hear()
    assert not agent.ripcord.journals_all
    assert agent.ripcord.state == "present"


async def test_an_outage_within_the_return_begins_again() -> None:
    agent = Agent()
    await agent.join()
    agent.lose_control()
    agent.reachability.answered()
    await agent.tick()
    agent.lose_control()
    agent.reachability.answered()
    agent.control.replayed = 1  # what was asked for before the second outage
    await agent.hear()
    assert agent.ripcord.journals_all
    await agent.tick()
    assert agent.control.scans == 2


async def test_another_control_plane_is_asked_again() -> None:
    agent = Agent()
    await agent.join()
    agent.lose_control()
    agent.reachability.answered()
    await agent.tick()
    agent.control.fencing_epoch, agent.control.replayed = 2, 900
    await agent.hear()
    assert agent.ripcord.journals_all
    await agent.tick()
    assert agent.control.scans == 2


async def test_a_file_that_was_left_behind_keeps_all_in_the_journal() -> None:
    agent = Agent()
    await agent.join()
    agent.ripcord.await_replay()
    assert agent.ripcord.journals_all
    await agent.tick()
    agent.control.replayed = 1
    await agent.hear()
    assert not agent.ripcord.journals_all


async def test_an_agent_that_was_forgotten_goes_on_under_its_write_epoch() -> None:
    agent = Agent()
    await agent.join()
    agent.control.known, agent.control.taken_ids = False, {agent.session.node_id}
    with pytest.raises(NodeIdTaken):
        await agent.hear()
    assert not agent.session.is_registered
    assert not agent.ripcord.journals_all


async def test_the_snapshot_follows_the_catalog() -> None:
    agent = Agent()
    await agent.join()
    await agent.tick()
    assert [topic.name for topic in (await SnapshotKeeper(agent.store).read()).topics] == ["events"]
    for _ in range(20):
        await agent.tick()
    assert agent.ripcord.snapshots.writes == 1


async def test_an_agent_that_starts_alone_is_who_it_was() -> None:
    before = Agent()
    await before.join()
    await before.tick()
    agent = Agent(store=before.store)
    await agent.ripcord.start_alone("host-2", 9092, "")
    assert agent.session.node_id == OTHER.node_id
    assert agent.ripcord.journals_all
    assert sorted(agent.view.topics_by_name) == ["events"]
    assert set(agent.view.agents) == {2, 5}
    stranger = Agent(store=before.store)
    await stranger.ripcord.start_alone("host-9", 9092, "")
    assert stranger.session.node_id >= NODE_IDS_FROM
    # Its node id is kept when it registers, and given up where somebody else has it.
    stranger.control.known = False
    await stranger.hear()
    assert stranger.control.registered[-1].node_id == stranger.session.node_id
    agent.control.known, agent.control.taken_ids = False, {OTHER.node_id}
    await agent.hear()
    assert agent.session.node_id == 5


async def test_an_empty_bucket_is_no_place_to_start_from() -> None:
    agent = Agent()
    with pytest.raises(ControlUnavailable, match="no snapshot") as raised:
        await agent.ripcord.start_alone("host-1", 9092, "")
    assert "ripcord" in raised.value.help


async def test_agents_that_are_gone_are_named_for_a_while_only() -> None:
    agent = Agent()
    await agent.join()
    third = AgentInfo(3, "third", "host-3", 9092, "")
    agent.lose_control()
    await Discovery(agent.store).publish(AgentNotice(third, 0))
    await agent.tick()
    assert sorted(agent.view.agents) == [2, 3, 5]
    assert agent.view.position == FeedPosition(-1, -1)  # so that all is loaded again when it is back
    waited_s = 0.0
    while waited_s < STALE_AGENTS_S + 20.0:
        agent.clock.advance(9.0)
        waited_s += 10.0
        await Discovery(agent.store).publish(AgentNotice(third, 0))
        await agent.tick()
    assert sorted(agent.view.agents) == [3, 5]
    await agent.ripcord.withdraw()
    assert [each.node_id for each in await Discovery(agent.store).find("third")] == [3]
