"""Whole simulated clusters: the same seed is the same run, nothing goes wrong that should not, and mistakes show."""

import os
import subprocess
import sys

import pytest

from braidlog.sim import runner
from braidlog.sim.mistakes import MISTAKES
from braidlog.sim.runner import hunt, run_seed, run_seeds
from braidlog.sim.scenarios import SCENARIOS
from braidlog.sim.world import World, simulate

JOBS = 2
SHRINK_RUNS = 8
"""Enough to leave out halves and quarters of the faults; `braid sim` goes on to single ones."""


def start_in_a_fresh_process(seed: int, hash_seed: str) -> "subprocess.Popen[str]":
    command = f"from braidlog.sim.runner import run_seed; print(run_seed({seed}).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen([sys.executable, "-c", command], env=environment, stdout=subprocess.PIPE, text=True)


def test_the_same_seed_gives_the_same_history_byte_for_byte_in_two_fresh_processes() -> None:
    started = [start_in_a_fresh_process(*seeds) for seeds in ((7, "1"), (7, "2"), (8, "1"))]
    first, again, another = (process.communicate()[0].strip() for process in started)
    assert [process.returncode for process in started] == [0, 0, 0]
    assert first == again
    assert another != first


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seeds", [range(1, 11), pytest.param(range(11, 101), marks=pytest.mark.slow)], ids=["first", "rest of a hundred"]
)
def test_seeds_with_everything_going_wrong(seeds: range) -> None:
    results = list(run_seeds(seeds, "mixed", jobs=JOBS))
    assert [(result.seed, result.anomalies) for result in results if not result.is_good] == []
    assert sum(result.faults for result in results) > 5 * len(seeds)
    assert sum(result.operations for result in results) > 500 * len(seeds)


@pytest.mark.parametrize(
    "seeds", [range(1, 3), pytest.param(range(3, 5), marks=pytest.mark.slow)], ids=["first", "more"]
)
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "mixed"])
def test_the_other_scenarios(scenario: str, seeds: range) -> None:
    for result in run_seeds(seeds, scenario, jobs=JOBS):
        assert result.is_good, result.anomalies


@pytest.mark.parametrize("name", ["commit-out-of-order", "forget-the-dedup", "refusals-ignored"])
def test_some_mistakes_show_at_once(name: str) -> None:
    caught = hunt(MISTAKES[name], 10, jobs=1)
    assert caught.kind


def test_every_mistake_can_be_planted() -> None:
    """A mistake names what it replaces, and a renamed method must not wait for the slow half to be noticed."""
    for each in MISTAKES.values():
        with each.plant():
            pass


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_caught(name: str) -> None:
    caught = hunt(MISTAKES[name], 500, jobs=JOBS)
    assert caught.kind, MISTAKES[name].what


def test_a_failing_seed_is_told_by_few_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SHRINK_RUNS_MAX", SHRINK_RUNS)
    seed = hunt(MISTAKES["refusals-ignored"], 10, jobs=1).seeds
    whole = run_seed(seed, "mixed", "refusals-ignored")
    shrunk = run_seed(seed, "mixed", "refusals-ignored", shrink=True)
    assert whole.faults > shrunk.faults
    assert "lost-write" in shrunk.story


def test_a_mistake_is_gone_after_its_run() -> None:
    with MISTAKES["forget-the-dedup"].plant():
        pass
    assert run_seed(1).is_good


async def quiet(world: World) -> None:
    """A scenario of one's own, in a few lines."""
    await world.create_topic("calm", 1)
    world.producer(world.targets("calm"))
    world.reader(world.targets("calm"))
    await world.sleep(20.0)


def test_without_faults_nothing_fails() -> None:
    run = simulate(1, quiet)
    assert run.error == ""
    assert run.faults == 0
    outcomes = {operation.outcome for operation in run.history.operations if hasattr(operation, "outcome")}
    assert outcomes == {"ok"}
