"""Shuffles on executors in several zones: what they request, and where their reduce tasks run.

python bench/_shuffle_zones.py --zones 2 --nodes 4        prints figures as JSON
python bench/_shuffle_zones.py --kill node --kill zone    and kills services in the middle of two more runs
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from _standalone import Node, services_of, session_on, standalone

Figures = dict[str, Any]
RECORD_BYTES = 1024
CHECKED_SCHEMA = "partition int, rows bigint, total bigint, zone string"
BATCH = "256KiB"
CACHE = "128MiB"


@dataclass(frozen=True, slots=True)
class Check:
    """Looks at the rows of a partition, and kills services when it has seen some."""

    partitions: int
    victims: tuple[Node, ...] = ()
    marker: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from braidlog.spark.shuffle.columns.spark_hash import partitions_of

        rows = total = 0
        partition = -1
        for batch in batches:
            chosen = partitions_of([batch.column("key")], self.partitions)
            partition = int(chosen[0]) if partition < 0 else partition
            if (chosen != partition).any():
                raise RuntimeError(f"a row of partition {chosen[chosen != partition][0]} is in {partition}")
            rows += batch.num_rows
            total += int(batch.column("key").to_numpy().sum())
            self._kill_once()
        yield pa.record_batch(
            {
                "partition": pa.array([partition], pa.int32()),
                "rows": pa.array([rows]),
                "total": pa.array([total]),
                "zone": [os.environ.get("BRAIDLOG_ZONE", "")],
            }
        )

    def _kill_once(self) -> None:
        if self.victims:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            for node in self.victims:
                for process in services_of(node):
                    os.kill(process, signal.SIGKILL)


def zoned(zones: int, nodes: int, *, mib: int, runs: int, partitions: int, kills: Sequence[str] = ()) -> list[Figures]:
    """The figures of each run. The first one also starts services and compiles, so it does not count. After them comes
    a run for each of `kills`, in which the services of a node or of a whole zone are killed."""
    from braidlog.spark.shuffle import BlobShuffle, ShuffleCache

    # Executors import what is above.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    names = [f"zone-{chr(ord('a') + number)}" for number in range(zones)]
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as text:
        folder = Path(text)
        with standalone(folder, [names[number % zones] for number in range(nodes)]) as (master, places):
            session = session_on(master, nodes)
            try:
                shuffle = BlobShuffle(
                    f"file://{folder}/store",
                    zones=names,
                    batch_bytes=BATCH,
                    shared=True,
                    cache=ShuffleCache.of(memory=CACHE),
                    compression="none",
                )
                rows = mib * (1 << 20) // RECORD_BYTES
                records = session.range(0, rows, 1, 2 * nodes).selectExpr(
                    "id AS key", f"CAST(repeat(lpad(hex(id), 8, '0'), {(RECORD_BYTES - 8) // 8}) AS BINARY) AS value"
                )
                found: list[Figures] = []
                before = shuffle.usage()
                for run, kill in enumerate([""] * runs + list(kills)):
                    marker = folder / f"killed{run}"
                    check = Check(partitions, _victims(kill, places), str(marker))
                    started_s = time.perf_counter()
                    checked = shuffle.apply(records, partitions, "key", check.__call__, CHECKED_SCHEMA).collect()
                    elapsed_s = time.perf_counter() - started_s
                    exact = (
                        sorted(each["partition"] for each in checked) == list(range(partitions))
                        and sum(each["rows"] for each in checked) == rows
                        and sum(each["total"] for each in checked) == rows * (rows - 1) // 2
                    )
                    if not exact:
                        raise SystemExit(f"{rows} rows went in, and others came out")
                    usage = shuffle.usage()
                    in_zone = sum(each["zone"] == names[each["partition"] % zones] for each in checked)
                    found.append(
                        {
                            "puts": usage.puts - before.puts,
                            "gets": usage.gets - before.gets,
                            "reduce_tasks": usage.reduce_tasks - before.reduce_tasks,
                            "reduce_tasks_in_zone": in_zone / partitions,
                            "ring_reads": usage.ring_reads - before.ring_reads,
                            "ring_around": usage.ring_around - before.ring_around,
                            "gets_per_put": (usage.gets - before.gets) / max(1, usage.puts - before.puts),
                            "elapsed_s": elapsed_s,
                            "killed": int(marker.exists()),
                            "exact": 1,
                        }
                    )
                    print(json.dumps(found[-1]), file=sys.stderr, flush=True)
                    before = usage
                shuffle.stop()
                return found
            finally:
                session.stop()


def _victims(kill: str, places: Sequence[Node]) -> tuple[Node, ...]:
    if kill == "zone":
        return tuple(node for node in places if node.zone == places[0].zone)
    return tuple(places[:1]) if kill else ()


def medians(runs: Sequence[Figures], name: str) -> float:
    return float(statistics.median(each[name] for each in runs))


def figures_of(zones: int, *, quick: bool) -> Figures:
    """The medians of the runs behind the first."""
    runs = zoned(zones, 4 if zones == 2 else zones, mib=16 if quick else 64, runs=2 if quick else 4, partitions=24)[1:]
    return {
        f"gets_per_put_{zones}_zones": medians(runs, "gets_per_put"),
        f"gets_per_put_{zones}_zones_max": max(each["gets_per_put"] for each in runs),
        f"reduce_tasks_in_zone_{zones}_zones": medians(runs, "reduce_tasks_in_zone"),
        f"reduce_tasks_in_zone_{zones}_zones_min": min(each["reduce_tasks_in_zone"] for each in runs),
        f"puts_{zones}_zones": medians(runs, "puts"),
        f"gets_{zones}_zones": medians(runs, "gets"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--zones", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=24)
    parser.add_argument("--kill", choices=["node", "zone"], action="append", default=[])
    chosen = parser.parse_args()
    found = zoned(
        chosen.zones, chosen.nodes, mib=chosen.mib, runs=chosen.runs, partitions=chosen.partitions, kills=chosen.kill
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
