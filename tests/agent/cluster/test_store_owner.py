"""An agent does not write where the control plane would never look."""

from collections.abc import AsyncIterator

import pytest
from tests.fakes import FakeClock

from braidlog.agent.agent import Agent
from braidlog.agent.cluster.store_owner import OWNER_WAIT_S, check_store_owner
from braidlog.control.metadata.store import open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.owner import WrongStore, claim
from braidlog.objects.store import Blob, StoreUnavailable
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.settings import AgentSettings


@pytest.fixture
async def control() -> AsyncIterator[ControlService]:
    """On a store of its own."""
    store = MemoryStore(MemoryBucket(), url="memory://control", clock=SystemClock())
    service = ControlService(
        await open_metadata("sqlite://"), store, SystemClock(), SeededEntropy(1), ControlSettings()
    )
    await service.start()
    yield service
    await service.close()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://agent", clock=FakeClock())


def agent_on(store: MemoryStore, control: ControlService, clock: FakeClock) -> Agent:
    settings = AgentSettings(store_url="memory://", listen="127.0.0.1:0", cache_listen="off")  # type: ignore[arg-type]
    return Agent(control, store, clock, SeededEntropy(2), settings, Metrics(process=False))


async def test_a_store_that_no_cluster_has_used(control: ControlService, store: MemoryStore) -> None:
    clock = FakeClock()
    with pytest.raises(WrongStore, match="not the control plane's"):
        await agent_on(store, control, clock).start()
    assert OWNER_WAIT_S <= clock.monotonic_s() < 2 * OWNER_WAIT_S


async def test_a_store_of_another_cluster(control: ControlService, store: MemoryStore) -> None:
    await claim(store, "another")
    with pytest.raises(WrongStore, match="belongs to cluster another"):
        await agent_on(store, control, FakeClock()).start()


async def test_a_store_that_the_control_plane_is_about_to_claim(control: ControlService, store: MemoryStore) -> None:
    class Late(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            await claim(store, control.cluster_id)

    await check_store_owner(store, control.cluster_id, Late())


async def test_a_store_that_is_away_does_not_keep_an_agent_from_starting(control: ControlService) -> None:
    class Away(MemoryStore):
        async def get(self, key: str) -> Blob:
            raise StoreUnavailable("not now")

    store = Away(MemoryBucket(), url="memory://away", clock=FakeClock())
    await check_store_owner(store, control.cluster_id, FakeClock())
