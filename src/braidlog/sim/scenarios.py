"""The scenarios that come with the simulator. A new one is a coroutine like these."""

from braidlog.sim.cluster import ClusterPlan
from braidlog.sim.job_scenarios import compacting, merging
from braidlog.sim.journal_scenarios import (
    lightning,
    lightning_crowded,
    lightning_outage,
    lightning_sleepers,
    ripcord,
    ripcord_on,
)
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
    await Nemesis(world).run(60.0, pause_s=5.0)


async def crashes(world: World) -> None:
    """Agents and the control plane die all the time, while their uploads and commits are under way."""
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
    """Agents sleep in the middle of their uploads, for longer than anybody waits for them."""
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=0.5)
    world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=4, pause_s=0.5)
    await world.sleep(2.0)
    await Nemesis(world, "pause-agent-long", "long-tail").run(150.0, pause_s=10.0)


async def transactions(world: World) -> None:
    """Transactions of both versions, whose producers crash and come back, over a cluster on which everything fails."""
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
    """Agents and the control plane die all the time, in the midst of transactions, and uploads come late."""
    await world.create_topic("ledger", 3)
    for version in (1, 1, 2):
        world.transactional_producer(world.targets("ledger"), version=version, pause_s=0.2)
    world.committed_reader(world.targets("ledger"))
    await world.sleep(2.0)
    await Nemesis(world, "kill-agent", "kill-control", "long-tail", "late-puts", "slow-network").run(60.0, pause_s=2.0)


async def consumer_groups(world: World) -> None:
    """Members that the coordinator assigns partitions to nap, die and come back, while it is killed and cut off."""
    await world.create_topic("clicks", 5)
    world.producer(world.targets("clicks"), pause_s=0.5)
    for _ in range(3):
        world.consumer_member("readers", "clicks")
    await world.sleep(3.0)
    await Nemesis(world, "kill-agent", "kill-control", "slow-network", "cut-clients", "lose-packets").run(
        60.0, pause_s=4.0
    )


async def shards(world: World) -> None:
    """One agent of eight shards, whose groups split and merge with the load while shards die and sleep."""
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
    """Shards that split and merge without cause, many times a second, under producers that must keep their order."""
    await world.create_topic("orders", 2)
    world.producer(world.targets("orders"), pause_s=0.3)
    for _ in range(3):
        world.producer(world.targets("orders"), idempotent=False, retries=False, in_flight_max=8, pause_s=0.1)
    await world.sleep(2.0)
    await Nemesis(world, "long-tail", "kill-agent", "slow-network").run(20.0, pause_s=4.0)


restless.plan = ClusterPlan(agent_count=1, shard_count=4, upload_size_bytes=4 * 1024, restless=True)  # type: ignore[attr-defined]

SHARD_FAULTS = ("kill-agent", "pause-agent", "long-tail", "store-errors", "slow-network")
shards.plan = ClusterPlan(agent_count=1, shard_count=8, upload_size_bytes=4 * 1024, uploads_in_flight_max=1)  # type: ignore[attr-defined]

SCENARIOS = {
    "restless": restless,
    "shards": shards,
    "mixed": mixed,
    "crashes": crashes,
    "consumer-groups": consumer_groups,
    "trimming": trimming,
    "sleepers": sleepers,
    "transactions": transactions,
    "transaction-crashes": transaction_crashes,
    "merging": merging,
    "compacting": compacting,
    "lightning": lightning,
    "lightning-crowded": lightning_crowded,
    "lightning-sleepers": lightning_sleepers,
    "lightning-outage": lightning_outage,
    "ripcord": ripcord,
    "ripcord-on": ripcord_on,
}
