"""An agent's surroundings with a real control plane: everything but the sockets and the data path."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
from tests.agent.apis.api_caller import ApiCaller

from braidlog.agent.cluster.follower import FeedFollower
from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import RegisterAgent
from braidlog.control.metadata.sqlite import SqliteMetadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.turns import Turns
from braidlog.security.rights import Authorizer, AuthorizerRules


@pytest.fixture
async def agent() -> AsyncIterator[SimpleNamespace]:
    clock, entropy = SystemClock(), SeededEntropy("apis")
    store = MemoryStore(MemoryBucket(), url="memory://apis", clock=clock)
    metadata = await SqliteMetadata.open("")
    settings = ControlSettings(groups=GroupSettings(initial_rebalance_delay_ms=0))
    control = ControlService(metadata, store, clock, entropy.fork("control"), settings)
    await control.start()
    registered = await control.register_agent(RegisterAgent("one", "127.0.0.1", 9092, "zone-a"))
    await control.register_agent(RegisterAgent("two", "127.0.0.1", 9093, "zone-b"))
    view = ClusterView()
    follower = FeedFollower(control, view, clock, entropy.fork("follower"))
    await follower.load()
    following = asyncio.create_task(follower.run())
    yield SimpleNamespace(
        control=control,
        view=view,
        clock=clock,
        turns=Turns(clock),
        entropy=entropy,
        settings=AgentSettings(store_url="memory://apis"),
        session=SimpleNamespace(node_id=registered.node_id),
        store=store,
        reachability=Reachability(clock, after_s=5.0),
        write_epoch=registered.write_epoch,
        following=following,
        authorizer=Authorizer(view.acls, AuthorizerRules(is_on=True)),
    )
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await control.close()


@pytest.fixture
def call(agent: SimpleNamespace) -> ApiCaller:
    return ApiCaller(agent)
