"""Merging and compaction under virtual time: nothing goes wrong that should not, and mistakes show."""

import pytest

from braidlog.sim.mistakes import MISTAKES
from braidlog.sim.runner import hunt, run_seeds


@pytest.mark.parametrize("scenario", ["merging", "compacting"])
def test_the_same_seed_gives_the_same_history(scenario: str) -> None:
    first, second = run_seeds([3, 3], scenario, jobs=2)
    assert first.is_good, first.anomalies
    assert first.digest == second.digest


@pytest.mark.parametrize("name", ["merge-out-of-order", "newest-value-dropped", "join-without-a-part"])
def test_some_mistakes_show_at_once(name: str) -> None:
    assert hunt(MISTAKES[name], 3, jobs=1).kind


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", ["merging", "compacting", "rounds"])
def test_forty_seeds(scenario: str) -> None:
    results = list(run_seeds(range(1, 41), scenario, jobs=2))
    assert [(result.seed, result.anomalies) for result in results if not result.is_good] == []
