"""Scenarios of several control planes on one bucket."""

from braidlog.sim.cluster import ClusterPlan
from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World

FAILOVER_PLAN = ClusterPlan(standby_count=2)


async def failover(world: World) -> None:
    """Control planes die, hang, lose disks and are cut off; the store fails, too.

    The store answers late or not at all.
    """
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=0.5)
    world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=4, pause_s=1.0)
    world.transactional_producer(world.targets("orders"), version=2, pause_s=1.0)
    world.committed_reader(world.targets("orders"))
    world.reader(world.targets("orders"))
    world.member("readers", "orders")
    await world.sleep(3.0)
    faults = ("kill-control", "kill-control", "pause-control", "pause-control", "cut-agent-from-control")
    weather = ("late-puts", "store-silence", "store-errors", "long-tail", "kill-agent")
    await Nemesis(world, *faults, *weather).run(80.0, pause_s=4.0)
