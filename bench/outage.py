"""An outage of the control plane: one hour, at ten thousand records a second, in virtual time.

    python bench/outage.py --out outage.json     a few minutes; also writes outage.png
    python bench/outage.py --quick               an outage of five minutes

Agents, control plane and their protocols are the real ones; time, network, store and disk are simulated, as `braid sim`
does. The control plane is killed and comes back; producers go on all the time. Then everything is read, and compared
with what was acknowledged. README.md says what each figure means.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from _outage_load import Identity, Ledger, LoadProducer, Sent, Template, read_partition
from _outage_plot import plot
from braidlog import __version__
from braidlog.control.service import ControlService
from braidlog.sim.cluster import CONTROL_HOST, CONTROL_SETTINGS, ClusterPlan
from braidlog.sim.world import World, simulate

AT_MOST: dict[str, float] = {"failed": 0, "lost": 0, "duplicates": 0, "out_of_order": 0, "live_p99_ratio": 2}
AT_LEAST: dict[str, float] = {"drained": 1}

TOPIC = "readings"
PARTITIONS = 8
PLAIN_PARTITIONS = 2
"""The number of partitions whose producers are not idempotent."""
RECORDS_PER_S = 10_000
RECORDS_PER_BATCH = 500
SAMPLE_S = 5.0
STEPS_MAX = 50_000_000
POINTS_MAX = 300
DRAIN_S_MAX = 3_600.0
AFTER_S = 60.0
"""How long the load goes on after the backlog is gone."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Options:
    quick: bool
    mode: str
    seed: int

    @property
    def before_s(self) -> float:
        return 60.0 if self.quick else 180.0

    @property
    def outage_s(self) -> float:
        return 300.0 if self.quick else 3_600.0


@dataclass
class Samples:
    """Figures over time. Counts grow over the whole run, however often the control plane starts anew."""

    at_s: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    """Batches that were acknowledged."""
    files: list[int] = field(default_factory=list)
    """In the journal."""
    fast_files: list[int] = field(default_factory=list)
    slow_files: list[int] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    """With files that are not sequenced, or not known to be."""
    held: list[int] = field(default_factory=list)

    @property
    def backlog(self) -> list[int]:
        """Files that are not sequenced."""
        counts = zip(self.files, self.fast_files, self.slow_files, strict=True)
        return [max(0, files - fast - slow) for files, fast, slow in counts]

    def thinned(self) -> dict[str, list[float]]:
        """Enough to draw it again."""
        step = max(1, len(self.at_s) // POINTS_MAX)
        named = {**vars(self), "backlog": self.backlog}
        return {name: values[::step] for name, values in named.items()}


class Observer:
    """Looks at agents and control plane from outside of their world."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self._world = world
        self._ledger = ledger
        self._seen: ControlService | None = None
        self._fast_before = self._slow_before = self._fast = self._slow = 0
        self._done = self._held = 0
        self.samples = Samples()

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_S)

    def look(self) -> None:
        cluster, samples = self._world.cluster, self.samples
        control = cluster.control if cluster.processes[CONTROL_HOST].is_alive else None
        if control is not None:
            if control is not self._seen:
                self._seen = control
                self._fast_before, self._slow_before = self._fast, self._slow
            figures = control.parts.journals.statistics()
            self._fast = self._fast_before + figures.fast_files
            self._slow = self._slow_before + figures.slow_files
            self._done = figures.complete_sequences + figures.closed_sequences
            self._held = figures.held_batches
        journals = [agent.write_path.journal.statistics()[1] for agent in cluster.agents.values()]
        samples.at_s.append(self._world.loop.time())
        samples.accepted.append(self._ledger.acknowledged)
        samples.files.append(sum(each.files for each in journals))
        samples.fast_files.append(self._fast)
        samples.slow_files.append(self._slow)
        samples.sequences.append(max(0, sum(each.sequences for each in journals) - self._done))
        samples.held.append(self._held)

    @property
    def is_drained(self) -> bool:
        """Whether the backlog is only what agents have under way at any time."""
        recent = self.samples.backlog[-3:]
        return len(recent) == 3 and max(recent) <= 16 and self.samples.held[-1] == 0


@dataclass
class Outcome:
    samples: Samples
    ledger: Ledger
    outage_s: tuple[float, float]
    """From when to when the control plane was away."""
    drained_s: float | None
    found: dict[int, list[Identity]]


async def run_outage(world: World, options: Options) -> Outcome:
    world.loop.steps_max = STEPS_MAX
    await world.create_topic(TOPIC, PARTITIONS)
    world.topics.clear()  # it is read here, and not record by record as the simulator does
    ledger = Ledger(RECORDS_PER_BATCH)
    template = Template(RECORDS_PER_BATCH)
    interval_s = PARTITIONS * RECORDS_PER_BATCH / RECORDS_PER_S
    producers = [
        LoadProducer(
            world.session("producer"),
            TOPIC,
            partition,
            idempotent=partition >= PLAIN_PARTITIONS,
            interval_s=interval_s,
            template=template,
            ledger=ledger,
        )
        for partition in range(PARTITIONS)
    ]
    tasks = [asyncio.create_task(producer.run()) for producer in producers]
    observer = Observer(world, ledger)
    observing = asyncio.create_task(observer.run())
    await world.sleep(options.before_s)
    away_s = world.loop.time()
    world.cluster.kill(CONTROL_HOST)
    await world.sleep(options.outage_s)
    back_s = world.loop.time()
    world.cluster.boot(CONTROL_HOST)
    drained_s = None
    await world.sleep(4 * SAMPLE_S)
    while drained_s is None and world.loop.time() < back_s + DRAIN_S_MAX:
        await world.sleep(SAMPLE_S)
        if observer.is_drained:
            drained_s = world.loop.time()
    await world.sleep(AFTER_S)
    for producer in producers:
        producer.stopping = True
    await asyncio.gather(*tasks)
    await world.sleep(AFTER_S)
    observing.cancel()
    observer.look()
    session = world.session("reader")
    found = {partition: await read_partition(session, TOPIC, partition) for partition in range(PARTITIONS)}
    return Outcome(observer.samples, ledger, (away_s, back_s), drained_s, found)


def judge(outcome: Outcome, options: Options) -> Figures:
    ledger = outcome.ledger
    away_s, back_s = outcome.outage_s
    drained_s = outcome.drained_s if outcome.drained_s is not None else back_s + DRAIN_S_MAX
    acknowledged = [sent for sent in ledger.sent if sent.acknowledged_s >= 0]
    missing = duplicates = turned = 0
    for partition, found in outcome.found.items():
        there = set(found)
        missing += sum(sent.identity not in there for sent in acknowledged if sent.partition == partition)
        duplicates += len(found) - len(there)
        sequences = [sequence for producer, sequence in found if producer >= 0]
        turned += sum(later < earlier for earlier, later in pairwise(sequences))
    latencies = {
        "normal": _latencies_ms(acknowledged, 20.0, away_s - 1.0),
        "outage": _latencies_ms(acknowledged, away_s, back_s),
        "drain": _latencies_ms(acknowledged, back_s, drained_s),
    }
    p99 = {name: _percentile(values, 0.99) for name, values in latencies.items()}
    return {
        "failed": len(ledger.failed) * RECORDS_PER_BATCH,
        "lost": missing * RECORDS_PER_BATCH,
        "drained": int(outcome.drained_s is not None),
        "live_p99_ratio": p99["drain"] / p99["normal"],
        "duplicates": duplicates * RECORDS_PER_BATCH,
        "out_of_order": turned,
        "refused_and_sent_again": sum(ledger.errors.values()),
        "refusals": dict(ledger.errors),
        "outage_s": back_s - away_s,
        "drain_s": drained_s - back_s,
        "records_sent": len(ledger.sent) * RECORDS_PER_BATCH,
        "records_accepted": len(acknowledged) * RECORDS_PER_BATCH,
        "records_accepted_in_outage": sum(away_s <= sent.acknowledged_s < back_s for sent in acknowledged)
        * RECORDS_PER_BATCH,
        "records_read": sum(map(len, outcome.found.values())) * RECORDS_PER_BATCH,
        "backlog_files_max": max(outcome.samples.backlog),
        "sequences_max": max(outcome.samples.sequences),
        "held_batches_max": max(outcome.samples.held),
        "fast_files": outcome.samples.fast_files[-1],
        "slow_files": outcome.samples.slow_files[-1],
        "normal_p50_ms": _percentile(latencies["normal"], 0.5),
        "normal_p99_ms": p99["normal"],
        "outage_p99_ms": p99["outage"],
        "drain_p99_ms": p99["drain"],
        "mode": options.mode,
    }


def _latencies_ms(acknowledged: list[Sent], start_s: float, end_s: float) -> list[float]:
    return sorted((sent.acknowledged_s - sent.due_s) * 1000 for sent in acknowledged if start_s <= sent.due_s < end_s)


def _percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def run(options: Options) -> tuple[Outcome, Figures]:
    outcomes: list[Outcome] = []

    async def scenario(world: World) -> None:
        outcomes.append(await run_outage(world, options))

    plan = ClusterPlan(
        agent_count=2,
        upload_interval_ms=250,
        upload_size_bytes=4 * 1024 * 1024,
        cache_bytes=64 * 1024 * 1024,
        ripcord=options.mode,
        # An hour must not be long: nothing here is about what is left behind by uploads.
        control=replace(CONTROL_SETTINGS, sweep_interval_s=60.0, full_sweep_interval_s=86_400.0),
    )
    finished = simulate(options.seed, scenario, plan)
    if not outcomes:
        raise SystemExit(f"the run did not come to its end: {finished.error}")
    return outcomes[0], judge(outcomes[0], options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures here, and the plot beside them")
    parser.add_argument("--quick", action="store_true", help="an outage of five minutes instead of an hour")
    parser.add_argument("--mode", choices=("on", "auto"), default="on", help="the agents' setting `ripcord`")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    out: Path | None = arguments.out
    options = Options(arguments.quick, arguments.mode, arguments.seed)
    started_s = time.perf_counter()
    outcome, figures = run(options)
    print(f"outage: {time.perf_counter() - started_s:.1f} s", file=sys.stderr)
    samples = outcome.samples.thinned()
    figures |= {"quick": options.quick, "seed": options.seed, "braidlog": __version__}
    figures = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in figures.items()}
    show(figures)
    text = json.dumps({**figures, "samples": samples}, indent=2)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n")
        path = out.with_suffix(".png")
        plot(outcome.samples, outcome.outage_s, RECORDS_PER_BATCH, figures, path)
        print(f"plotted to {path}", file=sys.stderr)
    return 0 if all(is_met(name, figures[name]) for name in {**AT_MOST, **AT_LEAST}) else 1


def is_met(name: str, value: float) -> bool:
    return value <= AT_MOST[name] if name in AT_MOST else value >= AT_LEAST[name]


def show(figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Braidlog: an outage of the control plane")
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("goal", justify="right")
    for name, value in figures.items():
        goal = f"≤ {AT_MOST[name]:g}" if name in AT_MOST else f"≥ {AT_LEAST[name]:g}" if name in AT_LEAST else ""
        style = ("green" if is_met(name, value) else "red") if goal else None
        table.add_row(name, f"{value:,}" if isinstance(value, int | float) else str(value), goal, style=style)
    Console(stderr=True).print(table)


if __name__ == "__main__":
    sys.exit(main())
