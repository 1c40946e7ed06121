"""Scenarios in which one agent has several shards."""

from braidlog.sim.cluster import ClusterPlan
from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World

SHARD_FAULTS = ("kill-agent", "pause-agent", "long-tail", "store-errors", "slow-network")
SHARDS_PLAN = ClusterPlan(agent_count=1, shard_count=8, upload_size_bytes=4 * 1024, uploads_in_flight_max=1)
RESTLESS_PLAN = ClusterPlan(agent_count=1, shard_count=4, upload_size_bytes=4 * 1024, restless=True)


async def shards(world: World) -> None:
    """Groups of eight shards split and merge, while shards die and pause."""
    await world.create_topic("orders", 3)
    await world.create_topic("clicks", 5)
    for _ in range(2):
        world.producer(world.targets("orders"), pause_s=0.4)
        world.producer(world.targets("clicks"), idempotent=False, retries=False, in_flight_max=4, pause_s=0.4)
    world.reader(world.targets("orders"))
    await world.sleep(2.0)
    nemesis = world.loop.create_task(Nemesis(world, *SHARD_FAULTS).run(45.0, pause_s=3.0))
    for _ in range(2):
        burst = [
            world.producer(world.targets("clicks"), idempotent=False, retries=False, in_flight_max=8, pause_s=0.05)
            for _ in range(2)
        ]
        await world.sleep(10.0)
        for producer in burst:
            producer.stopping = True
        await world.sleep(10.0)
    await nemesis


async def restless(world: World) -> None:
    """Shards split and merge at random, many times a second.

    Producers must keep their order all the same.
    """
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=0.3)
    for _ in range(3):
        world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=8, pause_s=0.1)
    await world.sleep(2.0)
    await Nemesis(world, "long-tail", "kill-agent", "slow-network").run(20.0, pause_s=4.0)
