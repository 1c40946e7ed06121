"""The agent's standing with the control plane, and what becomes of it when things go wrong."""

import asyncio
from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.agent.cluster.session import AgentSession
from braidlog.control.interface import ControlPlane, HeartbeatAnswer, RegisterAgent, Registered
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded


class ScriptedControl:
    def __init__(self) -> None:
        self.known = False
        self.write_epoch = 3
        self.trouble: Exception | None = None
        self.answer_is_lost = False
        self.registered: list[RegisterAgent] = []

    async def register_agent(self, request: RegisterAgent, *, timeout_s: float | None = None) -> Registered:
        if self.trouble is not None:
            raise self.trouble
        self.registered.append(request)
        self.known = True
        if self.answer_is_lost:
            raise DeadlineExceeded("no answer")
        return Registered(5, "cluster", self.write_epoch, 1, 1000)

    async def heartbeat_agent(self, request: Any, *, timeout_s: float | None = None) -> HeartbeatAnswer:
        return HeartbeatAnswer(self.known, self.write_epoch, 1, 0)


@pytest.fixture
def control() -> ScriptedControl:
    return ScriptedControl()


@pytest.fixture
async def session(control: ScriptedControl, clock: FakeClock) -> AgentSession:
    session = AgentSession(cast(ControlPlane, control), clock, SeededEntropy(1), "own", "zone")
    await session.register("host", 9092)
    return session


async def test_an_agent_that_was_forgotten_is_not_registered_until_it_is_again(
    control: ScriptedControl, session: AgentSession
) -> None:
    assert session.is_registered
    control.known, control.trouble = False, ControlUnavailable("too many agents")
    with pytest.raises(ControlUnavailable):
        await session._be_heard()
    assert not session.is_registered
    assert session.has_write_epoch
    control.trouble = None
    await session._be_heard()
    assert session.is_registered


async def test_a_registration_whose_answer_was_lost_is_repeated(
    control: ScriptedControl, session: AgentSession
) -> None:
    control.known, control.answer_is_lost = False, True
    with pytest.raises(DeadlineExceeded):
        await session._be_heard()
    assert not session.is_registered
    control.answer_is_lost = False
    await session._be_heard()
    assert session.is_registered
    assert [request.node_id for request in control.registered] == [-1, 5, 5]


async def test_heartbeats_go_on_after_an_error_that_nobody_foresaw(control: ScriptedControl, clock: FakeClock) -> None:
    heard: list[HeartbeatAnswer] = []
    enough = asyncio.Event()

    def hear(answer: HeartbeatAnswer) -> None:
        heard.append(answer)
        if len(heard) == 4:
            enough.set()
        raise KeyError("a mistake")

    session = AgentSession(cast(ControlPlane, control), clock, SeededEntropy(1), "own", "zone", on_heard=hear)
    await session.register("host", 9092)
    running = asyncio.create_task(session.run())
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not running.done()
    assert len(clock.slept_s) >= 4
    assert min(clock.slept_s) >= 0.8  # of the second between heartbeats
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    waiting.cancel()
