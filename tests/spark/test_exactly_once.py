"""Nothing twice and nothing lost, whoever is killed. The judge is confluent-kafka."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster import Cluster, wait_until
from tests.spark.log_driver import Braid
from tests.spark.windowed_job import WINDOW_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_MS = 1_700_000_000_000
JOB_PATIENCE_S = 600.0
ENDS_MAX = 5


def copy_available(spark: "SparkSession", braid: Braid, source: str, sink: str, checkpoint: Path) -> str:
    """Copy what is there from one topic to another; the query's id."""
    query = (
        spark.readStream.format("braidlog")
        .options(**braid.options, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="20")
        .load()
        .selectExpr("key", "value")
        .writeStream.format("braidlog")
        .options(**braid.options, topic=sink, checkpointLocation=str(checkpoint))
        .queryName("a name that says nothing")
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120), "the query did not end"
    finally:
        query.stop()
    return str(query.id)


def test_a_batch_that_spark_repeats_is_in_the_log_once(spark: "SparkSession", braid: Braid, tmp_path: Path) -> None:
    """A driver that dies between the commit and Spark's note of it runs the same batch again after its restart."""
    source, sink = braid.new_topic(2, prefix="copied"), braid.new_topic(3, prefix="copy")
    braid.produce(source, [{"key": str(i), "value": f"v{i}"} for i in range(50)])
    checkpoint = tmp_path / "checkpoint"
    query_id = copy_available(spark, braid, source, sink, checkpoint)
    expected = sorted((str(i).encode(), f"v{i}".encode()) for i in range(50))
    first = braid.read(sink)
    assert sorted((seen.key or b"", seen.value or b"") for seen in first) == expected
    notes = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(notes) == 3
    for left_over in (notes[-1], checkpoint / "commits" / f".{notes[-1].name}.crc"):
        left_over.unlink(missing_ok=True)
    assert copy_available(spark, braid, source, sink, checkpoint) == query_id
    assert braid.read(sink) == first
    # And it goes on from there.
    braid.produce(source, [{"key": "last", "value": "one"}])
    copy_available(spark, braid, source, sink, checkpoint)
    assert len(braid.read(sink)) == 51


class Job:
    """The job of `windowed_job`, in a process group of its own."""

    def __init__(self, braid: Braid, source: str, sink: str, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self._log_path = folder / "job.log"
        self._command = [
            sys.executable,
            "-m",
            "tests.spark.windowed_job",
            braid.control.address,
            source,
            sink,
            str(self.checkpoint),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_count = 0

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def keep_running(self) -> None:
        """As whoever runs jobs would: on a busy machine Spark gives up on Python workers that start too slowly."""
        assert self._process is not None
        if self._process.poll() is not None:
            self._ended_count += 1
            assert self._ended_count <= ENDS_MAX, f"the job ended by itself again and again:\n{self.log}"
            self.start()

    def kill(self) -> None:
        """The driver and its JVM at once: no goodbye, nothing flushed."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")[-6000:]

    def noted_count(self) -> int:
        """How many micro-batches Spark has noted as done."""
        return len(list((self.checkpoint / "commits").glob("[0-9]*")))

    def planned_count(self) -> int:
        return len(list((self.checkpoint / "offsets").glob("[0-9]*")))

    def wait_for(self, condition: str, count: int) -> None:
        """Until so many batches are noted, or planned: the moment after the one, or in the midst of the other."""
        measure = {"noted": self.noted_count, "planned": self.planned_count}[condition]

        def reached() -> bool:
            self.keep_running()
            return measure() >= count

        wait_until(reached, timeout_s=JOB_PATIENCE_S, what=f"{count} batches {condition}", interval_s=0.01)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.kill()


def expected_windows(events: list[tuple[str, int, int]]) -> dict[bytes, bytes]:
    """Return the output, by key, for (key, number, milliseconds) of the input."""
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for key, number, timestamp_ms in events:
        start_s = timestamp_ms // 1000 // WINDOW_S * WINDOW_S
        counts[f"{start_s}/{key}"] += 1
        totals[f"{start_s}/{key}"] += number
    return {key.encode(): f"{counts[key]} {totals[key]}".encode() for key in counts}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_windows_are_right_whoever_is_killed(own_cluster: Cluster, tmp_path: Path, jobs: list[Job]) -> None:
    braid = Braid.start(own_cluster)
    source = braid.new_topic(2, prefix="events", message_timestamp_before_max_ms=1 << 60)
    sink = braid.new_topic(2, prefix="windows")
    events: list[tuple[str, int, int]] = []

    def produce(count: int) -> None:
        """Ten events a second of their own time, so that windows close as more come."""
        fresh = [(f"key-{i % 5}", i, START_MS + 100 * i) for i in range(len(events), len(events) + count)]
        braid.produce(source, [{"key": key, "value": str(number), "timestamp": at} for key, number, at in fresh])
        events.extend(fresh)

    job = Job(braid, source, sink, tmp_path)
    jobs.append(job)
    produce(2000)
    job.start()
    job.wait_for("noted", 2)
    job.kill()
    # In the midst of a batch: planned, and not noted as done.
    produce(1000)
    job.start()
    job.wait_for("planned", job.planned_count() + 2)
    job.kill()
    # The log's own processes go too, while the job runs.
    job.start()
    produce(1000)
    job.wait_for("noted", job.noted_count() + 1)
    braid.agent.restart()
    produce(1000)
    braid.control.restart()
    produce(1000)
    expected = expected_windows(events)
    # One event of much later closes all windows before it.
    braid.produce(source, [{"key": "end", "value": "0", "timestamp": START_MS + 10_000_000, "partition": 0}])

    def done() -> bool:
        job.keep_running()
        return len(braid.read(sink)) >= len(expected)

    wait_until(done, timeout_s=JOB_PATIENCE_S, what=f"{len(expected)} windows", interval_s=1.0)
    job.kill()
    found = braid.read(sink)
    assert len(found) == len({seen.key for seen in found}), "a window came twice"
    assert {seen.key: seen.value for seen in found} == expected
    assert "the first attempt fails, on purpose" in job.log, "no task ever failed"
