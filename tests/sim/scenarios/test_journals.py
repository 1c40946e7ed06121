"""What may become of journaled records, case by case, over whole clusters; and each case tells right from wrong."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode
from tests.sim.scenarios.journal_script import Script, log_of, plan

from braidlog.control.transactions.settings import TransactionSettings
from braidlog.objects.keys import incarnation_prefix
from braidlog.sim.checks.checker import check
from braidlog.sim.cluster import CONTROL_HOST, ClusterPlan
from braidlog.sim.mistakes import MISTAKES
from braidlog.sim.runner import hunt, run_seed
from braidlog.sim.world import Scenario, World, simulate


def outcome(scenario: Scenario, cluster: ClusterPlan, mistake: str = "") -> tuple[list[str], list[str]]:
    """The log, and what is wrong with it."""
    with MISTAKES[mistake].plant() if mistake else nullcontext():
        run = simulate(1, scenario, cluster)
    assert run.error == ""
    return log_of(run.history), [anomaly.kind for anomaly in check(run.history)]


# ── an older epoch is replayed after a newer one ──


async def older_epoch(world: World) -> None:
    script = Script(world)
    await script.begin()
    script.cut_off("agent-0")
    for sequence in range(2):
        assert await script.send("agent-0", f"old {sequence}", sequence) == ErrorCode.none
    world.cluster.kill("agent-0")
    for sequence in range(2):
        assert await script.send("agent-1", f"new {sequence}", sequence, epoch=1) == ErrorCode.none
    await world.sleep(20.0)
    assert script.counts.slow_files == 2


def test_an_older_epoch_replayed_after_a_newer_one() -> None:
    assert outcome(older_epoch, plan()) == (["new 0", "new 1", "old 0", "old 1"], [])


def test_and_when_it_is_refused() -> None:
    assert outcome(older_epoch, plan(), "older-epoch-refused") == (["new 0", "new 1"], ["lost-write", "lost-write"])


# ── a file arrives after its gap was given up ──


async def late_file(world: World) -> None:
    world.gives_up_gaps = True
    script = Script(world)
    await script.begin()
    world.cluster.store_weather.lost_answer, world.cluster.store_weather.put_s_median = 1.0, 4.5
    late = world.loop.create_task(script.send("agent-0", "first", 0))
    await world.sleep(0.2)
    world.cluster.settle()
    assert await script.send("agent-1", "second", 1) == ErrorCode.none
    while script.counts.gaps_given_up == 0:
        await world.sleep(0.1)
    assert not late.done()
    assert await late == ErrorCode.none


def test_a_file_that_arrives_after_its_gap_was_given_up() -> None:
    assert outcome(late_file, plan(gap_s=1.0)) == (["second", "first"], [])


@pytest.mark.parametrize("mistake", ["late-batches-dropped", "highest-number-counts"])
def test_and_when_it_is_taken_for_a_duplicate(mistake: str) -> None:
    assert outcome(late_file, plan(gap_s=1.0), mistake) == (["second"], ["lost-write"])


def test_and_when_what_waited_for_it_is_dropped() -> None:
    assert outcome(late_file, plan(gap_s=1.0), "given-up-means-dropped") == (["first"], ["lost-write"])


# ── a producer's state would have expired during the outage ──

EXPIRATION_S = 40.0


def forgetful() -> ClusterPlan:
    transactions = TransactionSettings(timeout_ms_max=int(EXPIRATION_S * 500))
    return plan(gap_s=5.0, producer_expiration_s=EXPIRATION_S, transactions=transactions)


async def long_outage(world: World) -> None:
    script = Script(world)
    await script.begin()
    for sequence in range(3):
        assert await script.send("agent-0", str(sequence), sequence) == ErrorCode.none
    await world.sleep(1.0)
    world.cluster.kill(CONTROL_HOST)
    await world.sleep(2 * EXPIRATION_S)
    # Its producer has not heard of the answer, so it sends the last one again.
    for sequence in range(2, 5):
        assert await script.send("agent-1", str(sequence), sequence) == ErrorCode.none
    await world.sleep(5.0)
    world.cluster.boot(CONTROL_HOST)
    await world.sleep(30.0)


def test_producer_state_that_would_have_expired_during_the_outage() -> None:
    assert outcome(long_outage, forgetful()) == (["0", "1", "2", "3", "4"], [])


def test_and_when_it_does() -> None:
    log, anomalies = outcome(long_outage, forgetful(), "producers-expire-in-the-outage")
    assert log == ["0", "1", "2", "2", "3", "4"]
    assert anomalies == ["duplicate"]


# ── an agent is paused between its put and its acknowledgement, while its sequence is sealed ──


async def paused(world: World) -> None:
    """The first file is there when the agent falls asleep, and the second one is not."""
    script = Script(world)
    await script.begin()
    bucket, process = world.cluster.bucket, world.cluster.processes["agent-0"]
    prefix = incarnation_prefix(script.incarnation("agent-0"))

    def fall_asleep(key: str) -> None:
        if key.startswith(prefix):
            bucket.watchers.clear()
            world.cluster.pause("agent-0")

    bucket.watchers.append(fall_asleep)
    first = world.loop.create_task(script.send("agent-0", "first", 0))
    await world.sleep(0.5)
    assert process.is_paused
    second = world.loop.create_task(script.send("agent-0", "second", 1))
    fences = {key for key in bucket.objects if key.startswith(prefix)}
    assert len(fences) == 1
    await world.sleep(20.0)
    assert len([key for key in bucket.objects if key.startswith(prefix)]) > 1  # sealed
    assert not first.done()
    world.cluster.resume("agent-0")
    codes = await asyncio.gather(first, second)
    if any(codes):
        for sequence, value in enumerate(("first", "second")):
            assert await script.send("agent-0", value, sequence) == ErrorCode.none


@pytest.mark.parametrize("sequence_age_s", [60.0, 4.0], ids=["acknowledges", "has slept too long"])
def test_an_agent_paused_between_its_put_and_its_acknowledgement_while_its_sequence_is_sealed(
    sequence_age_s: float,
) -> None:
    assert outcome(paused, plan(sequence_age_s=sequence_age_s)) == (["first", "second"], [])


def test_and_when_it_does_not_mind_the_fence() -> None:
    assert outcome(paused, plan(), "fence-ignored") == (["first"], ["lost-write"])


# ── everything at once ──


@pytest.mark.parametrize("name", ["given-up-means-dropped", "journal-left-too-early"])
def test_a_mistake_shows_at_once(name: str) -> None:
    assert hunt(MISTAKES[name], 10, jobs=1).kind


def test_without_workers_nothing_is_merged_and_all_is_there() -> None:
    """A calm run: what is acknowledged is sequenced by who has acknowledged it."""

    async def calm(world: World) -> None:
        script = Script(world)
        await script.begin()
        for sequence in range(5):
            assert await script.send(f"agent-{sequence % 2}", str(sequence), sequence) == ErrorCode.none
        await world.sleep(1.0)
        counts = script.counts
        assert (counts.fast_files, counts.slow_files, counts.held_batches) == (5, 0, 0)

    assert outcome(calm, replace(plan(), worker_count=0)) == ([str(each) for each in range(5)], [])


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [
        pytest.param("lightning-outage", 5025, id="more epochs in an outage than were remembered"),
        pytest.param("ripcord", 5097, id="a newer epoch overtook what waited of an older one"),
        pytest.param("ripcord", 5102, id="a gap was told before anybody had looked into journals"),
    ],
)
def test_seeds_that_once_failed(scenario: str, seed: int) -> None:
    result = run_seed(seed, scenario)
    assert result.is_good, result.anomalies
