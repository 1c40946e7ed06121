"""A running control plane, embedded and behind RPC: one behaviour for both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.control.driver import Plane, start_plane

from braidlog.control.interface import ControlPlane
from braidlog.control.remote import connect_control
from braidlog.control.server import serve_control
from braidlog.control.settings import ControlSettings
from braidlog.runtime.entropy import SeededEntropy

SETTINGS = ControlSettings(
    grace_epochs=2,
    unreferenced_grace_s=60.0,
    full_sweep_interval_s=1000.0,
    recent_extents_max=4,  # so that every test also meets extents that have settled
)


@asynccontextmanager
async def offered(kind: str, plane: Plane) -> AsyncIterator[ControlPlane]:
    if kind == "embedded":
        yield plane.service
        return
    server = await serve_control(plane.service, "127.0.0.1:0")
    remote = connect_control(server.address, plane.clock, SeededEntropy(1))
    try:
        yield remote
    finally:
        await remote.close()
        await server.close()


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start_plane(f"sqlite://{tmp_path}/metadata.db", settings=SETTINGS)
    yield plane
    await plane.service.close()


@pytest.fixture(params=["embedded", "remote"])
async def control(request: pytest.FixtureRequest, plane: Plane) -> AsyncIterator[ControlPlane]:
    async with offered(request.param, plane) as control:
        yield control
