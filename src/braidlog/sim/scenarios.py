"""The scenarios that come with the simulator. A new one is a coroutine like these."""

from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World


async def mixed(world: World) -> None:
    """All kinds of clients over a cluster on which everything goes wrong."""
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
    await Nemesis(world).run(90.0)


SCENARIOS = {"mixed": mixed}
