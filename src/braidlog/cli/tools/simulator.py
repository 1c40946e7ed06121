"""`braid sim` and `braid mutants`: run simulated clusters with faults."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from braidlog.cli.options import Format
from braidlog.cli.output import OutputFormat, counted, emit_fields, emit_rows, say

Seed = Annotated[int, typer.Option("--seed", metavar="N", help="The first seed. The same seed gives the same run.")]
Runs = Annotated[int, typer.Option("--runs", metavar="N", min=1, help="How many seeds to run.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=0, help="Processes; 0 for one per core.")]


def simulate(
    seed: Seed = 1,
    runs: Runs = 20,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", help="Stop after this long; 0 for no limit.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the figures here, as JSON.")] = None,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario", metavar="NAME", help="mixed, crashes, lightning, ripcord and others: docs/simulator.md."
        ),
    ] = "mixed",
    mistake: Annotated[
        str, typer.Option("--mistake", metavar="NAME", help="Plant one of the mistakes of `braid mutants`.")
    ] = "",
    history: Annotated[
        Path | None, typer.Option("--history", metavar="FILE", help="Write the first seed's history, as JSON lines.")
    ] = None,
    jobs: Jobs = 0,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Run clusters in virtual time, and check what clients saw.

    Each seed has a mix of faults of its own.

    \b
    Example: braid sim --seed 1 --runs 100 --out figures.json
    """
    from braidlog.cli.progress import progress_bar
    from braidlog.runtime.clock import SystemClock
    from braidlog.sim.runner import Report, record_history, run_seed, run_seeds

    _check_names(scenario, mistake)
    if history is not None:
        history.write_bytes(record_history(seed, scenario, mistake))
    clock = SystemClock()
    end_s = clock.monotonic_s() + minutes * 60 if minutes else float("inf")
    report = Report()
    with progress_bar("seeds", runs) as bar:
        for result in run_seeds(
            range(seed, seed + runs),
            scenario,
            jobs=jobs or os.cpu_count() or 1,
            mistake=mistake,
            keep_going=lambda: clock.monotonic_s() < end_s,
        ):
            report.add(result)
            bar.advance()
    for failed in report.failed[:3]:
        say(f"seed {failed.seed} failed: {failed.anomalies[0]}")
        say(run_seed(failed.seed, scenario, mistake, shrink=True).story)
    if out is not None:
        out.write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    emit_fields(format, report.as_dict())
    raise typer.Exit(1 if report.failed else 0)


def mutants(
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=1, help="The most seeds to try for each mistake.")
    ] = 500,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="One mistake; repeat.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the figures here, as JSON.")] = None,
    jobs: Jobs = 0,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Plant known mistakes, and count the seeds that catch each.

    \b
    Example: braid mutants --only forget-the-dedup
    """
    from braidlog.cli.progress import progress_bar
    from braidlog.sim.mistakes import MISTAKES
    from braidlog.sim.runner import hunt

    for name in only or []:
        _check_names("mixed", name)
    rows: list[dict[str, object]] = []
    wanted = [MISTAKES[name] for name in only or MISTAKES]
    with progress_bar("mistakes", len(wanted)) as bar:
        for number, mistake in enumerate(wanted, start=1):
            caught = hunt(mistake, runs, jobs=jobs or os.cpu_count() or 1)
            rows.append(
                {
                    "mistake": mistake.name,
                    "seeds": caught.seeds,
                    "caught_by": caught.kind or "not caught",
                    "what": mistake.what,
                }
            )
            result = f"caught by {caught.kind}" if caught.kind else "not caught"
            say(f"{number} of {len(wanted)}  {mistake.name}: {result}, {counted(caught.seeds, 'seed')}")
            bar.advance()
    caught_count = sum(row["caught_by"] != "not caught" for row in rows)
    if out is not None:
        out.write_text(json.dumps({"mistakes": len(rows), "caught": caught_count, "rows": rows}, indent=2) + "\n")
    emit_rows(format, ["mistake", "seeds", "caught_by"], rows)
    say(f"{caught_count} of {len(rows)} caught")
    raise typer.Exit(0 if caught_count == len(rows) else 1)


def _check_names(scenario: str, mistake: str) -> None:
    from braidlog.clients.errors import WrongUsage
    from braidlog.sim.mistakes import MISTAKES
    from braidlog.sim.scenarios import SCENARIOS

    if scenario not in SCENARIOS:
        raise WrongUsage(f"there is no scenario {scenario!r}", help=f"Choose one of {', '.join(SCENARIOS)}.")
    if mistake and mistake not in MISTAKES:
        raise WrongUsage(f"there is no mistake {mistake!r}", help=f"Choose one of {', '.join(MISTAKES)}.")
