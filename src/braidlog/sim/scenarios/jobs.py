"""Scenarios with merges, compaction and deletion during reads and writes."""

from dataclasses import replace

from braidlog.control.jobs.settings import JobSettings
from braidlog.jobs.worker import TAKE_WAIT_MS, RoundLimits
from braidlog.sim.cluster import CONTROL_SETTINGS, ClusterPlan
from braidlog.sim.job_checks import watch_leases
from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World

LEASE_S = 6.0
JOB_PLAN = ClusterPlan(
    worker_count=2,
    control=replace(
        CONTROL_SETTINGS,
        jobs=JobSettings(
            plan_interval_s=3.0,
            lease_s=LEASE_S,
            merge_target_bytes=4096,
            merge_fan_in=3,
            merge_age_s=1.0,
            compaction_bytes_min=0,
            compaction_interval_s=0.0,
        ),
    ),
)
"""Small targets: jobs that need gigabytes in a real deployment start after a few records."""

ROUNDS_PLAN = replace(
    JOB_PLAN,
    control=replace(JOB_PLAN.control, jobs=replace(JOB_PLAN.control.jobs, merge_target_bytes=1024)),
    rounds=RoundLimits(jobs_max=8, bytes_max=1 << 20, at_once=2),
    parts_at_once=2,
    part_bytes=2048,
)
"""Workers take several jobs at once, and many jobs are too large for one task."""
SLOW_PUT_S = 2.5

JOB_FAULTS = (
    "kill-worker",
    "pause-worker",
    "pause-worker-long",
    "cut-worker",
    "kill-control",
    "pause-control",
    "store-errors",
    "store-silence",
    "late-puts",
    "long-tail",
    "lose-packets",
)
DELETE_RETENTION_S = 12


async def merging(world: World) -> None:
    """Logs in use are merged and trimmed, while workers die and pause."""
    await world.create_topic("orders", 3)
    await world.create_topic("clicks", 2)
    world.producer(world.targets("orders"), pause_s=0.6)
    world.producer(world.targets("clicks"), idempotent=False, retries=False, in_flight_max=3, pause_s=0.8)
    world.reader(world.targets("orders"))
    world.member("readers", "clicks")
    await world.sleep(3.0)
    nemesis = world.loop.create_task(_faults(world).run(50.0, pause_s=3.0))
    for turn in range(1, 10):
        await world.sleep(5.0)
        # Delete all but the newest records of one partition while jobs run on it, and now and then some of the others.
        await world.delete_records("orders", 0, -1)
        if turn % 4 == 0:
            await world.delete_records("orders", 1 + turn // 4 % 2, 4 * turn)
            # A new reader reads merged objects, not cached ones.
            world.reader(world.targets("orders")[1:])
    await nemesis
    world.expects_tidy_store = True


async def compacting(world: World) -> None:
    """Logs with few keys are compacted all the time, while workers die and pause."""
    await world.create_topic(
        "state",
        2,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.1",
        delete_retention_ms=str(DELETE_RETENTION_S * 1000),
    )
    world.producer(world.targets("state"), pause_s=0.6, key_count=30)
    world.producer(world.targets("state"), idempotent=False, retries=False, in_flight_max=2, pause_s=1.0, key_count=30)
    world.reader(world.targets("state"))
    await world.sleep(3.0)
    nemesis = world.loop.create_task(_faults(world).run(50.0, pause_s=3.0))
    for _ in range(2):
        await world.sleep(20.0)
        world.reader(world.targets("state"))
    await nemesis
    world.expects_tidy_store = True


async def rounds(world: World) -> None:
    """Workers that take many jobs at once, and divide them, die and pause."""
    await world.create_topic("orders", 2)
    await world.create_topic(
        "state",
        2,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.1",
        delete_retention_ms=str(DELETE_RETENTION_S * 1000),
    )
    world.producer(world.targets("orders"), pause_s=0.8)
    world.producer(world.targets("state"), pause_s=0.6, key_count=30)
    world.producer(world.targets("state"), idempotent=False, retries=False, in_flight_max=2, pause_s=0.8, key_count=30)
    world.reader(world.targets("orders"))
    world.reader(world.targets("state"))
    await world.sleep(3.0)
    await _faults(world).run(30.0, pause_s=3.0)
    # A store so slow that a round outlasts a lease many times: heartbeats must keep all of its leases.
    world.cluster.settle()
    world.cluster.store_weather.put_s_median = SLOW_PUT_S
    # Calls that waited for a job when their connection broke get one, and lose it.
    await world.sleep(TAKE_WAIT_MS / 1000 + 2 * LEASE_S)
    await watch_leases(world, 20.0)
    world.expects_tidy_store = world.expects_clean_logs = True


def _faults(world: World) -> Nemesis:
    """Let each seed pick a few kinds of faults, so that it tests them in depth."""
    rest = list(JOB_FAULTS)
    entropy = world.entropy.fork("job faults")
    return Nemesis(world, *(rest.pop(entropy.below(len(rest))) for _ in range(2 + entropy.below(4))))
