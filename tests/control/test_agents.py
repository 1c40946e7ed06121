"""The registry of agents."""

import pytest
from tests.control.driver import Plane

from braidlog.control.interface import (
    AgentHeartbeat,
    AgentLeave,
    AgentRemoved,
    ControlPlane,
    FeedRequest,
    RegisterAgent,
    SnapshotRequest,
)


async def test_agents_keep_their_node_id_and_expire(control: ControlPlane, plane: Plane) -> None:
    first = await control.register_agent(RegisterAgent("one", "host", 1, "a"))
    second = await control.register_agent(RegisterAgent("two", "host", 2, "b"))
    assert (first.node_id, second.node_id) == (1, 2)
    assert (await control.register_agent(RegisterAgent("one-again", "host", 1, "a"))).node_id == 1
    assert not (await control.heartbeat_agent(AgentHeartbeat("one"))).known
    beat = await control.heartbeat_agent(AgentHeartbeat("two"))
    assert (beat.known, beat.write_epoch) == (True, first.write_epoch)
    position = (await control.snapshot(SnapshotRequest())).position
    plane.clock.advance(9)
    await control.heartbeat_agent(AgentHeartbeat("two"))
    plane.clock.advance(2)
    await plane.service.parts.agents.expire_once()
    page = await control.read_feed(FeedRequest(position, 0))
    assert page.events == [AgentRemoved(1)]
    assert [agent.node_id for agent in (await control.snapshot(SnapshotRequest())).agents] == [2]
    await control.leave_agent(AgentLeave("two"))
    assert (await control.snapshot(SnapshotRequest())).agents == []
    assert (await control.register_agent(RegisterAgent("two-again", "host", 2, "b"))).node_id == 2
    with pytest.raises(Exception, match="another agent"):
        await control.register_agent(RegisterAgent("three", "host", 3, "b", node_id=2))
