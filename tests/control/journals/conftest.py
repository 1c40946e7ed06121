"""A control plane with journals: one agent that writes them, and one that replays them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.driver import Plane, create_topic, start_plane
from tests.control.journals.driver import LIGHTNING, SETTINGS, Journal, ReplayingAgent

from braidlog.control.interface import RegisterAgent, TopicInfo


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


@pytest.fixture
async def journal(plane: Plane) -> Journal:
    await plane.service.register_agent(RegisterAgent("agent-a", "127.0.0.1", 9092, ""))
    return Journal(plane, await create_topic(plane.service, "events", 2, **LIGHTNING))


@pytest.fixture
def agent(plane: Plane) -> ReplayingAgent:
    return ReplayingAgent(plane)


@pytest.fixture
async def topic(plane: Plane) -> TopicInfo:
    return await create_topic(plane.service, **LIGHTNING)
