"""Scenarios with transactional producers."""

from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World


async def transactions(world: World) -> None:
    """Transactions of both versions, producers that crash, and faults of all kinds."""
    await world.create_topic("payments", 2)
    await world.create_topic("ledger", 2)
    targets = [*world.targets("payments"), *world.targets("ledger")]
    for version in (1, 2):
        world.transactional_producer(targets, version=version)
    world.transactional_producer(world.targets("ledger"), version=1, pause_s=2.0)
    world.producer(world.targets("ledger"), pause_s=1.0)
    world.committed_reader(targets)
    world.reader(world.targets("payments"))
    await world.sleep(3.0)
    await Nemesis(world).run(60.0, pause_s=4.0)


async def transaction_crashes(world: World) -> None:
    """Agents and the control plane die during transactions, and uploads are late."""
    await world.create_topic("ledger", 3)
    for version in (1, 1, 2):
        world.transactional_producer(world.targets("ledger"), version=version, pause_s=0.2)
    world.committed_reader(world.targets("ledger"))
    await world.sleep(2.0)
    await Nemesis(world, "kill-agent", "kill-control", "long-tail", "late-puts", "slow-network").run(60.0, pause_s=2.0)
