"""The description of the cluster: who is active, who stands by, who is behind."""

import asyncio

from tests.control.driver import create_topic, start_plane

from braidlog.control.interface import ControlPlane, DescribeCluster, FeedRequest, RegisterAgent, SnapshotRequest
from braidlog.control.standbys import FORGOTTEN_MS, announce_while, read_notices


async def test_agents_are_described_with_their_zone_and_their_lag(control: ControlPlane) -> None:
    await control.register_agent(RegisterAgent("aa", "host", 9092, "zone-a", -1))
    assert (await control.describe_cluster(DescribeCluster())).agents[0].feed_lag == -1  # it has not asked yet
    position = (await control.snapshot(SnapshotRequest())).position
    await control.read_feed(FeedRequest(position, 0, "aa"))
    await create_topic(control)
    found = await control.describe_cluster(DescribeCluster())
    assert [(each.agent.zone, each.feed_lag) for each in found.agents] == [("zone-a", 1)]
    assert found.fencing_epoch == 1
    assert found.topic_count == found.partition_count == 1


async def test_a_position_of_another_epoch_is_no_progress(control: ControlPlane) -> None:
    await control.register_agent(RegisterAgent("aa", "host", 9092, "", -1))
    position = (await control.snapshot(SnapshotRequest())).position
    await control.read_feed(FeedRequest(type(position)(position.fencing_epoch + 1, 77), 0, "aa"))
    assert (await control.describe_cluster(DescribeCluster())).agents[0].feed_lag == -1


async def test_standbys_are_known_by_their_notices_while_they_wait() -> None:
    plane = await start_plane("bucket://")
    over = asyncio.Event()

    async def wait() -> None:
        await over.wait()

    waiting = asyncio.create_task(announce_while(wait(), plane.store, plane.clock, "the other", lambda: 1))
    while not await read_notices(plane.store, plane.clock.wall_ms()):
        await asyncio.sleep(0)
    await create_topic(plane.service)
    found = await plane.service.describe_cluster(DescribeCluster())
    assert [each.name for each in found.standbys] == ["the other"]
    assert found.standbys[0].lag == found.copy.position - 1 > 0
    assert (found.copy.kind, found.copy.age_ms) == ("itself", 0)
    assert not await read_notices(plane.store, plane.clock.wall_ms() + FORGOTTEN_MS + 1)
    over.set()
    await waiting
    assert not (await plane.service.describe_cluster(DescribeCluster())).standbys
    await plane.service.close()
