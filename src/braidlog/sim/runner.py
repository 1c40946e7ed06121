"""Runs many seeds, and shrinks a failing one."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field

from braidlog.sim.checks.checker import check
from braidlog.sim.job_checks import LeaseLost, Unclean
from braidlog.sim.mistakes import MISTAKES, Mistake
from braidlog.sim.scenarios import SCENARIOS
from braidlog.sim.story import tell
from braidlog.sim.world import Run, Undrained, Unreadable, Untidy, simulate

SHRINK_RUNS_MAX = 40


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The result of one seed, small enough to send between processes."""

    seed: int
    operations: int
    faults: int
    simulated_s: float
    digest: str
    anomalies: tuple[str, ...]
    story: str = ""

    @property
    def is_good(self) -> bool:
        return not self.anomalies


@dataclass(slots=True)
class Report:
    """The results of many seeds, summed up."""

    seeds: int = 0
    operations: int = 0
    faults: int = 0
    simulated_s: float = 0.0
    failed: list[SeedResult] = field(default_factory=list)

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.operations += result.operations
        self.faults += result.faults
        self.simulated_s += result.simulated_s
        if not result.is_good:
            self.failed.append(result)

    def as_dict(self) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "operations": self.operations,
            "faults": self.faults,
            "simulated_hours": round(self.simulated_s / 3600, 3),
            "anomalies": sum(len(result.anomalies) for result in self.failed),
            "failed_seeds": [result.seed for result in self.failed],
        }


def run_seed(seed: int, scenario: str = "mixed", mistake: str = "", *, shrink: bool = False) -> SeedResult:
    """Run and check one seed.

    With `shrink`, a failing run is reduced to few faults that still make it fail.
    """
    run = _run(seed, scenario, mistake, None)
    anomalies = _anomalies(run)
    if anomalies and shrink:
        run = _shrunk(run, scenario, mistake)
    return SeedResult(
        seed,
        len(run.history),
        run.faults,
        run.simulated_s,
        run.history.digest(),
        anomalies,
        _story(run) if anomalies else "",
    )


@dataclass(frozen=True, slots=True)
class Caught:
    """How a planted mistake was found."""

    seeds: int
    """How many seeds were run, including the one that found it."""
    kind: str
    """The kind of anomaly that showed it; empty if it was not found."""


def hunt(mistake: Mistake, seeds_max: int, *, jobs: int) -> Caught:
    """Run seeds, from 1 on, until one finds the mistake."""
    seeds = 0
    for result in run_seeds(range(1, seeds_max + 1), mistake.scenario, jobs=jobs, mistake=mistake.name):
        seeds += 1
        if not result.is_good:
            return Caught(seeds, result.anomalies[0].partition(":")[0])
    return Caught(seeds, "")


def record_history(seed: int, scenario: str, mistake: str = "") -> bytes:
    """Run one seed, and give its history as JSON lines."""
    return _run(seed, scenario, mistake, None).history.to_jsonl()


def _run(seed: int, scenario: str, mistake: str, strikes: frozenset[int] | None) -> Run:
    with MISTAKES[mistake].plant() if mistake else nullcontext():
        planned = SCENARIOS[scenario]
        return simulate(seed, planned.run, planned.plan, strikes=strikes)


def _anomalies(run: Run) -> tuple[str, ...]:
    found = [f"{anomaly.kind}: {anomaly.message}" for anomaly in check(run.history)] if not run.error else []
    return (*([f"{_kind(run.error)}: {run.error}"] if run.error else []), *found)


def _kind(error: str) -> str:
    known = {
        Unreadable.__name__: "unreadable",
        Untidy.__name__: "untidy-store",
        Undrained.__name__: "undrained-journal",
        LeaseLost.__name__: "lease-lost",
        Unclean.__name__: "unclean-log",
    }
    return known.get(error.partition(":")[0], "run-failed")


def _story(run: Run) -> str:
    return tell(run.history, [] if run.error else check(run.history))


def _shrunk(run: Run, scenario: str, mistake: str) -> Run:
    """Leave out faults, in ever smaller parts, while the run still fails."""
    kept = list(range(run.strikes_laid_out))
    budget = SHRINK_RUNS_MAX
    share = max(1, len(kept) // 2)
    while budget and kept:
        for start in range(0, len(kept), share):
            fewer = kept[:start] + kept[start + share :]
            budget -= 1
            attempt = _run(run.seed, scenario, mistake, frozenset(fewer))
            if _anomalies(attempt):
                run, kept = attempt, fewer
                break
            if not budget:
                break
        else:
            if share == 1:
                break
            share = max(1, share // 2)
    return run


def run_seeds(
    seeds: Iterable[int],
    scenario: str,
    *,
    jobs: int,
    mistake: str = "",
    keep_going: Callable[[], bool] = lambda: True,
) -> Iterator[SeedResult]:
    """Yield results in the order of the seeds, until `keep_going` is false."""
    if jobs <= 1:
        for seed in seeds:
            if not keep_going():
                return
            yield run_seed(seed, scenario, mistake)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting: deque[Future[SeedResult]] = deque()
        try:
            for seed in seeds:
                waiting.append(pool.submit(run_seed, seed, scenario, mistake))
                if len(waiting) == 2 * jobs:
                    yield waiting.popleft().result()
                    if not keep_going():
                        break
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
