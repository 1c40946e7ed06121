"""When the control plane is away, and what becomes of calls to it then."""

import asyncio
from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.agent.ripcord.guarded import guarded
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.control.interface import AgentHeartbeat, ControlPlane, Done, InitProducerId, SnapshotRequest
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, Remedy


def test_away_takes_failures_and_silence() -> None:
    clock = FakeClock()
    reachability = Reachability(clock, after_s=5.0)
    clock.advance(60.0)
    assert not reachability.is_away  # nobody asked: a process that slept must not think that others did
    reachability.answered()
    reachability.failed()
    assert reachability.is_doubtful
    assert not reachability.is_away
    clock.advance(4.9)
    assert not reachability.is_away
    clock.advance(0.1)
    assert reachability.is_away
    assert reachability.away_s == pytest.approx(5.0)


def test_one_answer_ends_an_outage() -> None:
    clock = FakeClock()
    reachability = Reachability(clock, after_s=5.0)
    told: list[int] = []
    reachability.on_away.append(lambda: told.append(reachability.outages))
    reachability.on_back.append(lambda: told.append(-reachability.outages))
    for outage in (1, 2):
        clock.advance(7.0)
        reachability.failed()
        assert reachability.is_away
        assert reachability.outages == outage
        clock.advance(3.0)
        reachability.answered()
        assert not reachability.is_away
        assert not reachability.is_doubtful
        assert reachability.away_s == 0.0
    assert told == [1, -1, 2, -2]
    assert reachability.away_s_total == pytest.approx(20.0)


def test_a_start_without_it_is_an_outage() -> None:
    reachability = Reachability(FakeClock(), after_s=5.0)
    reachability.presume_away()
    assert reachability.is_away
    assert reachability.outages == 1


class Refused(BraidError):
    remedy = Remedy.FIX_INPUT


class ScriptedControl:
    """Answers what it is told to, or never."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.hangs = False
        self.calls = 0

    async def _call(self, _request: object, *, timeout_s: float | None = None) -> Done:
        self.calls += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.problem is not None:
            raise self.problem
        return Done()

    heartbeat_agent = init_producer_id = snapshot = _call


def guard(clock: FakeClock) -> tuple[ScriptedControl, Reachability, Any]:
    inner, reachability = ScriptedControl(), Reachability(clock, after_s=5.0)
    return inner, reachability, guarded(cast(ControlPlane, inner), reachability)


async def test_calls_fail_at_once_while_it_is_away_but_for_those_that_look_for_it() -> None:
    clock = FakeClock()
    inner, reachability, control = guard(clock)
    inner.problem = ControlUnavailable("gone")
    clock.advance(6.0)
    with pytest.raises(ControlUnavailable, match="gone"):
        await control.init_producer_id(InitProducerId(None, 0))
    assert reachability.is_away
    calls = inner.calls
    with pytest.raises(ControlUnavailable, match="away for 6 s"):
        await control.init_producer_id(InitProducerId(None, 0))
    assert inner.calls == calls
    with pytest.raises(ControlUnavailable, match="gone"):
        await control.snapshot(SnapshotRequest())
    inner.problem = None
    await control.heartbeat_agent(AgentHeartbeat("a"))
    assert not reachability.is_away
    await control.init_producer_id(InitProducerId(None, 0))


async def test_an_error_is_an_answer() -> None:
    clock = FakeClock()
    inner, reachability, control = guard(clock)
    inner.problem = Refused("no")
    clock.advance(6.0)
    with pytest.raises(Refused):
        await control.init_producer_id(InitProducerId(None, 0))
    assert not reachability.is_doubtful


async def test_nobody_waits_on_once_it_is_known_to_be_away() -> None:
    clock = FakeClock()
    inner, reachability, control = guard(clock)
    inner.hangs = True
    waiting = asyncio.create_task(control.init_producer_id(InitProducerId(None, 0), timeout_s=60.0))
    probing = asyncio.create_task(control.snapshot(SnapshotRequest(), timeout_s=60.0))
    await asyncio.sleep(0)
    clock.advance(6.0)
    reachability.failed()
    with pytest.raises(DeadlineExceeded, match="went away"):
        await waiting
    assert not probing.done()
    probing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probing
