"""Scenarios in which records are acknowledged before they are sequenced."""

from dataclasses import replace

from braidlog.control.jobs.settings import JobSettings
from braidlog.control.journals.settings import JournalSettings
from braidlog.sim.cluster import CONTROL_HOST, CONTROL_SETTINGS, ClusterPlan
from braidlog.sim.nemesis import Nemesis
from braidlog.sim.world import World

SEQUENCE_AGE_S = 4.0
SEALED_AGE_S = 12.0
"""Longer than an agent's session, so that journal sequences are sealed while their agents still write to them."""
GAP_S = 200.0
"""Longer than any producer retries a batch."""

JOURNALS = JournalSettings(scan_interval_s=3.0, sequence_age_s=SEQUENCE_AGE_S, gap_s=GAP_S, replay_files_per_s=0.0)
CONTROL = replace(
    CONTROL_SETTINGS,
    journals=JOURNALS,
    jobs=JobSettings(plan_interval_s=3.0, lease_s=6.0, merge_target_bytes=4096, merge_fan_in=3, merge_age_s=1.0),
)
JOURNAL_PLAN = ClusterPlan(
    agent_count=3, worker_count=1, control=CONTROL, agent={"sequence_age_ms": int(SEQUENCE_AGE_S * 1000)}
)
"""Journal sequences are short, so that many are sealed, replayed, merged away and closed in one run."""

JOURNAL_FAULTS = (
    "kill-after-put",
    "pause-after-put",
    "cut-and-kill-agent",
    "kill-replayer",
    "pause-replayer",
    "pause-replayer-long",
    "control-outage",
    "kill-agent",
    "kill-control",
    "pause-agent",
    "pause-agent-long",
    "pause-control",
    "cut-agent-from-control",
    "cut-one-way",
    "cut-clients",
    "lose-packets",
    "slow-network",
    "store-errors",
    "store-storm",
    "store-silence",
    "late-puts",
    "long-tail",
    "torn-reads",
)


def _faults(world: World, *always: str) -> Nemesis:
    """Let each seed pick a few kinds of faults, so that it tests them in depth."""
    rest = [kind for kind in JOURNAL_FAULTS if kind not in always]
    entropy = world.entropy.fork("journal faults")
    return Nemesis(world, *always, *(rest.pop(entropy.below(len(rest))) for _ in range(2 + entropy.below(4))))


def _clients(world: World, topic: str) -> None:
    targets = world.targets(topic)
    world.producer(targets, pause_s=2.0, in_flight_max=4)
    world.producer(targets, pause_s=2.0, in_flight_max=4, bumps_epoch=True)
    world.producer(targets, idempotent=False, retries=False, in_flight_max=3, pause_s=2.0)


async def lightning(world: World) -> None:
    """A Lightning topic beside a classic one.

    Agents die and pause around their acknowledgements, scans and replays race them and die as well, and the control
    plane is away now and then.
    """
    await world.create_topic("clicks", 2, braidlog_topic_type="lightning")
    await world.create_topic("orders", 1)
    _clients(world, "clicks")
    world.producer(world.targets("clicks"), idempotent=False, retries=True, in_flight_max=1, pause_s=2.0)
    world.producer(world.targets("orders"), pause_s=3.0, in_flight_max=2)
    world.reader(world.targets("clicks")[:1])
    await world.sleep(3.0)
    await _faults(world, "kill-after-put", "pause-after-put", "cut-agent-from-control").run(45.0, pause_s=3.0)
    # This check takes as long as all the rest, so only some seeds do it.
    world.expects_tidy_store = world.entropy.fork("tidy").below(4) == 0


async def lightning_crowded(world: World) -> None:
    """So few batches may be held that gaps are given up all the time.

    All records are there once, in any order.
    """
    world.gives_up_gaps = True
    await world.create_topic("clicks", 2, braidlog_topic_type="lightning")
    for bumps_epoch in (False, True, True):
        world.producer(world.targets("clicks"), pause_s=1.5, bumps_epoch=bumps_epoch)
    await world.sleep(3.0)
    await _faults(world, "cut-and-kill-agent", "cut-clients").run(45.0, pause_s=3.0)


async def lightning_busy(world: World) -> None:
    """Files close many times faster than the control plane answers, and agents die.

    Soon after the last death, under the same load, each file is sequenced within the time of one answer.
    """
    await world.create_topic("clicks", 1, braidlog_topic_type="lightning")
    for _ in range(6):
        world.producer(world.targets("clicks"), pause_s=0.05)
    _delay(world, ONE_WAY_S)
    await world.sleep(3.0)
    await Nemesis(world, "kill-after-put", "kill-agent").run(20.0, pause_s=4.0)
    world.cluster.settle()
    _delay(world, ONE_WAY_S)
    await world.sleep(20.0)
    for _ in range(6):
        world.check_unsequenced_age(UNSEQUENCED_S_MAX)
        await world.sleep(5.0)


ONE_WAY_S = 0.9
UNSEQUENCED_S_MAX = 3.0
"""One way, the commit, and some slack. If each file waited for its answer, files would be two to three times as old."""


def _delay(world: World, one_way_s: float) -> None:
    weather = world.cluster.network.weather
    weather.delay_s_min, weather.delay_s_max = one_way_s - 0.1, one_way_s + 0.1


async def lightning_sleepers(world: World) -> None:
    """Agents pause during replays until others have finished the work.

    By then the files are sequenced, merged and deleted, and their journal sequences are closed.
    """
    await world.create_topic("clicks", 1, braidlog_topic_type="lightning")
    world.producer(world.targets("clicks"), pause_s=2.0, in_flight_max=3)
    world.producer(world.targets("clicks"), idempotent=False, retries=False, in_flight_max=3, pause_s=2.0)
    await world.sleep(3.0)
    await Nemesis(world, "pause-replayer-long", "cut-and-kill-agent", "kill-control").run(120.0, pause_s=4.0)


async def lightning_outage(world: World) -> None:
    """The control plane is away for longer than producers are remembered."""
    await world.create_topic("clicks", 2, braidlog_topic_type="lightning")
    world.producer(world.targets("clicks"), pause_s=3.0)
    world.producer(world.targets("clicks"), pause_s=3.0, bumps_epoch=True)
    await world.sleep(5.0)
    before = world.loop.create_task(Nemesis(world, "cut-clients", "lose-packets").run(10.0, pause_s=3.0))
    await world.sleep(8.0)
    world.cluster.kill(CONTROL_HOST)
    world.note("the control plane is gone, for long")
    world.faults += 1
    await before
    await Nemesis(world, "kill-agent", "pause-agent", "cut-clients").run(EXPIRATION_S + 20.0, pause_s=25.0)
    world.cluster.boot(CONTROL_HOST)
    world.note("the control plane is back")
    await world.sleep(20.0)


async def ripcord(world: World) -> None:
    """Agents journal classic topics while the control plane is away.

    There is a Lightning topic, too. The control plane goes and returns again and again, agents die, and some are cut
    off from it.
    """
    await world.create_topic("orders", 2)
    await world.create_topic("clicks", 1, braidlog_topic_type="lightning")
    _clients(world, "orders")
    world.producer(world.targets("clicks"), pause_s=3.0, in_flight_max=2)
    world.reader(world.targets("orders")[:1])
    await world.sleep(3.0)
    nemesis = world.loop.create_task(_faults(world, "control-outage").run(75.0, pause_s=5.0))
    for _ in range(4):
        # Producers that start while the control plane is away get their ids from agents.
        await world.sleep(14.0)
        world.producer(world.targets("orders"), pause_s=4.0, in_flight_max=2)
    await nemesis


EXPIRATION_S = 180.0
LIGHTNING_PLAN = replace(
    JOURNAL_PLAN,
    control=replace(CONTROL, journals=replace(JOURNALS, sequence_age_s=SEALED_AGE_S)),
    agent={"sequence_age_ms": int(SEALED_AGE_S * 1000)},
)
LIGHTNING_BUSY_PLAN = replace(JOURNAL_PLAN, agent_count=2)
LIGHTNING_CROWDED_PLAN = replace(
    JOURNAL_PLAN, control=replace(CONTROL, journals=replace(JOURNALS, gap_s=2.0, held_batches_max=4))
)
LIGHTNING_OUTAGE_PLAN = replace(
    JOURNAL_PLAN,
    worker_count=0,
    control=replace(
        CONTROL,
        producer_expiration_s=EXPIRATION_S,
        journals=replace(JOURNALS, gap_s=EXPIRATION_S / 2),
        transactions=replace(CONTROL.transactions, timeout_ms_max=int(EXPIRATION_S * 500)),
    ),
)
RIPCORD_PLAN = replace(JOURNAL_PLAN, ripcord="auto")
LIGHTNING_SHARDS_PLAN = replace(
    LIGHTNING_PLAN, agent_count=1, shard_count=4, restless=True, upload_size_bytes=4 * 1024, uploads_in_flight_max=2
)
RIPCORD_SHARDS_PLAN = replace(LIGHTNING_SHARDS_PLAN, ripcord="auto")


async def ripcord_on(world: World) -> None:
    """The same as `ripcord`, with agents that journal everything all the time."""
    await ripcord(world)


RIPCORD_ON_PLAN = replace(JOURNAL_PLAN, ripcord="on")
