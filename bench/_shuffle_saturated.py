"""Spark executors in processes of their own, which shuffle as fast as they can: over batch sizes, numbers of partitions
and numbers of executors.

Stores are folders behind the latency model of S3. Each configuration runs once to warm up, and then several times.
"""

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from _standalone import Node, services_of, session_on, standalone

Figures = dict[str, Any]
MIB = 1 << 20
RECORD_BYTES = 1024
ZONES_MAX = 3
SWEEP_EXECUTORS = 3
PARTITIONS_EACH = 9
PARTITIONS_EACH_SCALED = 6
BATCH_MIB = 16
COUNTED_SCHEMA = "rows bigint, total bigint"


@dataclass(frozen=True, slots=True)
class Load:
    """What every configuration shuffles, and how often."""

    mib: int
    runs: int


def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = total = 0
    for batch in batches:
        rows += batch.num_rows
        total += int(batch.column("key").to_numpy().sum())
    yield pa.record_batch({"rows": pa.array([rows]), "total": pa.array([total])})


def saturated(
    sizes_mib: Sequence[int], factors: Sequence[int], counts: Sequence[int], load: Load, say: Callable[[str], None]
) -> Figures:
    """Medians and ranges of each configuration."""
    figures: Figures = {}
    for count in sorted({*counts, SWEEP_EXECUTORS}):
        with executors(count) as cluster:
            if count == SWEEP_EXECUTORS:
                for size in sizes_mib:
                    # Enough that every buffer of every node is filled more than once.
                    enough = replace(load, mib=max(load.mib, 4 * count * size))
                    found = measure(cluster, enough, batch_mib=size, partitions=PARTITIONS_EACH * count)
                    figures |= {f"real_{size}mib_{name}": value for name, value in found.items()}
                    say(f"batches of {size} MiB: {found['mib_per_s']:.1f} MiB/s, {found['puts']:.0f} PUTs")
                for factor in factors:
                    found = measure(cluster, load, batch_mib=BATCH_MIB, partitions=factor * count)
                    figures |= {f"real_x{factor}_{name}": value for name, value in found.items()}
                    say(f"{factor} partitions for each executor: {found['mib_per_s']:.1f} MiB/s")
            if count in counts:
                found = measure(cluster, load, batch_mib=BATCH_MIB, partitions=PARTITIONS_EACH_SCALED * count)
                figures |= {f"real_{count}ex_{name}": value for name, value in found.items()}
                say(f"{count} executors: {found['mib_per_s']:.1f} MiB/s")
    peak = max(sizes_mib, key=lambda size: figures[f"real_{size}mib_mib_per_s"])
    first, last = min(counts), max(counts)
    return figures | {
        "throughput_peak_mib": peak,
        "throughput_peak_mib_per_s": figures[f"real_{peak}mib_mib_per_s"],
        f"executors_{last}_vs_{first}": figures[f"real_{last}ex_mib_per_s"] / figures[f"real_{first}ex_mib_per_s"],
        "real_put_s": _percentiles(figures, "put"),
        "real_get_s": _percentiles(figures, "get"),
        "real_load_average": os.getloadavg()[2],
        "real_cores": os.cpu_count(),
    }


def _percentiles(figures: Figures, kind: str) -> list[float]:
    """The distribution of requests for batches of the usual size: 101 percentiles."""
    found: list[float] = figures.pop(f"real_{BATCH_MIB}mib_{kind}_times", [])
    for name in [each for each in figures if each.endswith(f"_{kind}_times")]:
        del figures[name]
    if not found:
        return []
    ordered = sorted(found)
    return [ordered[min(len(ordered) - 1, percent * len(ordered) // 100)] for percent in range(101)]


@dataclass(frozen=True, slots=True)
class Cluster:
    session: Any
    places: list[Node]
    folder: Path
    times: Path
    zones: list[str]


@contextmanager
def executors(count: int) -> Iterator[Cluster]:
    here = Path(__file__).parent
    names = [f"zone-{chr(ord('a') + number)}" for number in range(min(count, ZONES_MAX))]
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-", dir=memory) as text:
        folder = Path(text)
        times = folder / "times"
        times.mkdir()
        os.environ["BRAIDLOG_BENCH_TIMES"] = str(times)
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(here / "_s3_model"), str(here), before])
        try:
            with standalone(folder, [names[number % len(names)] for number in range(count)]) as (master, places):
                session = session_on(master, count)
                try:
                    yield Cluster(session, places, folder, times, names)
                finally:
                    session.stop()
        finally:
            os.environ["PYTHONPATH"] = before
            del os.environ["BRAIDLOG_BENCH_TIMES"]


def measure(cluster: Cluster, load: Load, *, batch_mib: int, partitions: int) -> Figures:
    """One configuration: its services start, it warms up, and is measured."""
    from braidlog.spark.shuffle import BlobShuffle, ShuffleCache

    store = cluster.folder / f"store-{batch_mib}-{partitions}"
    shuffle = BlobShuffle(
        f"file://{store}",
        zones=cluster.zones,
        batch_bytes=f"{batch_mib}MiB",
        batch_interval="60s",
        shared=True,
        cache=ShuffleCache.of(memory="512MiB"),
        compression="none",
    )
    rows = load.mib * MIB // RECORD_BYTES
    records = cluster.session.range(0, rows, 1, len(cluster.places)).selectExpr(
        "id AS key", f"CAST(repeat(lpad(hex(id), 8, '0'), {(RECORD_BYTES - 8) // 8}) AS BINARY) AS value"
    )
    seconds: list[float] = []
    before = None
    for run in range(load.runs + 1):
        if run == 1:
            before = shuffle.usage()
            _forget(cluster.times)
        for old in store.glob(f"shuffle/{shuffle.job}/?/*"):  # batches of the run before
            old.unlink()
        started_s = time.perf_counter()
        found = shuffle.apply(records, partitions, "key", count_rows, COUNTED_SCHEMA).collect()
        seconds.append(time.perf_counter() - started_s)
        if (
            sum(each["rows"] for each in found) != rows
            or sum(each["total"] for each in found) != rows * (rows - 1) // 2
        ):
            raise SystemExit(f"{rows} rows went in, and others came out")
    after = shuffle.usage()
    shuffle.stop()
    for node in cluster.places:
        for service in services_of(node):
            os.kill(service, signal.SIGTERM)
    if before is None or after is None:
        raise SystemExit("nothing was measured")
    taken_s = statistics.median(seconds[1:])
    puts, gets = after.puts - before.puts, after.gets - before.gets
    times = _times(cluster.times)
    return {
        "mib_per_s": load.mib / taken_s,
        "mib_per_s_min": load.mib / max(seconds[1:]),
        "mib_per_s_max": load.mib / min(seconds[1:]),
        "puts": puts / load.runs,
        "gets": gets / load.runs,
        "puts_per_s": puts / load.runs / taken_s,
        "gets_per_s": gets / load.runs / taken_s,
        "gets_per_put": gets / max(1, puts),
        "batch_mib_mean": (after.put_bytes - before.put_bytes) / max(1, puts) / MIB,
        "overhead": (after.put_bytes - before.put_bytes) / load.runs / (load.mib * MIB),
        "in_zone": (after.reduce_tasks_in_zone - before.reduce_tasks_in_zone)
        / max(1, after.reduce_tasks - before.reduce_tasks),
        "put_times": times["put"],
        "get_times": times["get"],
    }


def _times(folder: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"put": [], "get": []}
    for path in folder.iterdir():
        for line in path.read_text().splitlines():
            kind, _, seconds = line.partition(" ")
            found[kind].append(float(seconds))
    return found


def _forget(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    print(saturated([1, 16], [3], [1, 3], Load(64, 1), lambda text: print(text, file=sys.stderr)))
