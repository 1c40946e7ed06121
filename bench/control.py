"""Measures commits to the metadata: their rate and latency.

It does so for each place in which the metadata can be kept.

    python bench/control.py --out control.json      about a minute
    python bench/control.py --quick                 under half a minute
    python bench/control.py --postgres URL          a database of yours as well

Eight committers hand in objects of 50 extents, one after the other, to a control plane in this process. `sqlite` syncs
to this machine's disk; `bucket` stores each group of transactions in a store that takes as long as S3 Express.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from _sequencer import SequencerLoad
from braidlog.control.metadata.store import BucketParts, open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.latency import SlowStore, latency_profile
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.wrapper import Operation, Request, StoreWrapper, T
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy

COMMITTERS = 8
RUNS = 3
PROFILE = "s3-express"


class TimedPuts(StoreWrapper):
    """Notes how long each PUT of the metadata takes."""

    def __init__(self, inner: SlowStore) -> None:
        super().__init__(inner)
        self.puts_ms: list[float] = []

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        started_s = time.perf_counter()
        result = await call()
        if request.operation is Operation.PUT and request.key.startswith("metadata/delta/"):
            self.puts_ms.append((time.perf_counter() - started_s) * 1000)
        return result


async def measure(kind: str, object_count: int, postgres: str = "") -> dict[str, float]:
    clock, entropy = SystemClock(), SeededEntropy(kind)
    plain = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    store = TimedPuts(SlowStore(plain, latency_profile(PROFILE), clock=clock, entropy=entropy.fork("latency")))
    with tempfile.TemporaryDirectory(prefix="braidlog-bench-") as folder:
        url = postgres or f"{kind}://{Path(folder) / 'metadata.db'}"
        metadata = await open_metadata(url, BucketParts(store, clock, entropy.fork("metadata"), "bench"))
        service = ControlService(metadata, store, clock, entropy, ControlSettings())
        await service.start()
        try:
            load = SequencerLoad(service, committers=COMMITTERS)
            await load.prepare()
            await load.run(object_count // 4)
            store.puts_ms.clear()
            runs = [await load.run(object_count) for _ in range(RUNS)]
        finally:
            await service.close()
    quantiles = [statistics.quantiles(run.latencies_ms, n=100) for run in runs]
    figures = {
        f"{kind}_extents_per_s": statistics.median(run.extents_per_s for run in runs),
        f"{kind}_commit_p50_ms": statistics.median(each[49] for each in quantiles),
        f"{kind}_commit_p99_ms": statistics.median(each[98] for each in quantiles),
    }
    if kind == "bucket":
        put_p50_ms = statistics.median(store.puts_ms)
        figures["bucket_put_p50_ms"] = put_p50_ms
        figures["bucket_commit_p50_over_put"] = figures["bucket_commit_p50_ms"] / put_p50_ms
        figures["bucket_commits_per_put"] = RUNS * object_count / len(store.puts_ms)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures here, as flat JSON")
    parser.add_argument("--postgres", default="", metavar="URL", help="an empty database, to measure it too")
    parser.add_argument("--quick", action="store_true", help="fewer commits")
    options = parser.parse_args()
    object_count = 400 if options.quick else 2_400
    figures: dict[str, float] = {}
    for kind in ("sqlite", "bucket"):
        figures |= asyncio.run(measure(kind, object_count))
    if options.postgres:
        figures |= asyncio.run(measure("postgres", object_count, options.postgres))
    rounded = {name: round(value, 3) for name, value in figures.items()}
    for name, value in rounded.items():
        print(f"{name:32}{value:>14,}", file=sys.stderr)
    if options.out is not None:
        options.out.write_text(json.dumps(rounded, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
