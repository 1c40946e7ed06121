"""Scenarios with consumer groups whose coordinator assigns the partitions."""

from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World


async def consumer_groups(world: World) -> None:
    """Members nap, die and return, while their coordinator is killed and cut off."""
    await world.create_topic("clicks", 5)
    world.producer(world.targets("clicks"), pause_s=0.5)
    for _ in range(3):
        world.consumer_member("readers", "clicks")
    await world.sleep(3.0)
    await Nemesis(world, "kill-agent", "kill-control", "slow-network", "cut-clients", "lose-packets").run(
        60.0, pause_s=4.0
    )
