"""Scenarios of a plain log: no transactions, no journals, no jobs."""

from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World


async def mixed(world: World) -> None:
    """Clients of all kinds use a cluster with faults of all kinds."""
    await world.create_topic("orders", 2)
    await world.create_topic("clicks", 3)
    world.producer(world.targets("orders"), pause_s=2.0)
    world.producer(world.targets("clicks")[:2], pause_s=2.5)
    world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=4, pause_s=2.0)
    world.producer(world.targets("clicks"), idempotent=False, retries=True, in_flight_max=1, pause_s=1.0)
    world.reader(world.targets("orders"))
    for _ in range(2):
        world.member("readers", "clicks")
    await world.sleep(3.0)
    await Nemesis(world).run(60.0, pause_s=5.0)


async def crashes(world: World) -> None:
    """Agents and the control plane die all the time, during uploads and commits."""
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=0.5)
    world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=4, pause_s=0.5)
    world.reader(world.targets("orders"))
    await world.sleep(2.0)
    await Nemesis(world, "kill-agent", "kill-control", "long-tail").run(60.0, pause_s=2.0)


async def trimming(world: World) -> None:
    """Records are removed from the front of the logs while they are read and written."""
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=1.0)
    world.reader(world.targets("orders"))
    world.member("readers", "orders")
    nemesis = world.loop.create_task(Nemesis(world).run(60.0))
    for offset in range(0, 120, 20):
        await world.sleep(10.0)
        await world.delete_records("orders", offset // 20 % 2, offset)
    await nemesis


async def sleepers(world: World) -> None:
    """Agents pause during uploads, for longer than anything waits for them."""
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=0.5)
    world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=4, pause_s=0.5)
    await world.sleep(2.0)
    await Nemesis(world, "pause-agent-long", "long-tail").run(150.0, pause_s=10.0)
