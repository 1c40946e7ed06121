"""A shuffle through the store while tasks, executors and drivers die: every row once."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.shuffle.shuffle_job import streaming_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S_MAX = 900
ROWS_PER_FILE = 500


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.spark.shuffle.shuffle_job", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def write_input(folder: Path, files: range) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for number in files:
        ids = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"text {each % 37}" for each in ids]})
        pq.write_table(table, folder / f"{number}.parquet")
        (folder / f"{number}.parquet").rename(folder / "in" / f"{number}.parquet")


def committed_ids(spark: "SparkSession", folder: Path) -> list[int]:
    """What a reader of the sink sees: files of committed micro-batches alone."""
    return sorted(row.id for row in spark.read.parquet(f"{folder}/out").collect())


def test_a_stream_goes_on_where_it_stopped(spark: "SparkSession", tmp_path: Path) -> None:
    for files in (range(2), range(2, 3)):
        write_input(tmp_path, files)
        query = streaming_query(spark, tmp_path)
        assert query.awaitTermination(120)
        observed = [progress["observedMetrics"]["shuffle"] for progress in query.recentProgress]
        assert sum(each["rows"] for each in observed) == len(files) * ROWS_PER_FILE
    assert committed_ids(spark, tmp_path) == list(range(3 * ROWS_PER_FILE))


@pytest.mark.slow
def test_killed_executors_and_speculation(tmp_path: Path) -> None:
    job = start("batch", str(tmp_path))
    output, errors = job.communicate(timeout=WAIT_S_MAX)
    assert job.returncode == 0, errors[-3000:]
    assert "equal=True rows=20000 killed=killed-map,killed-reduce" in output


@pytest.mark.slow
def test_killed_tasks_and_a_killed_shuffle_service(tmp_path: Path) -> None:
    job = start("tasks", str(tmp_path))
    output, errors = job.communicate(timeout=WAIT_S_MAX)
    assert job.returncode == 0, errors[-3000:]
    assert "equal=True rows=20000 killed=killed-map,killed-service,killed-reduce" in output


@pytest.mark.slow
def test_a_driver_killed_in_the_middle(spark: "SparkSession", tmp_path: Path) -> None:
    write_input(tmp_path, range(12))
    job = start("stream", str(tmp_path))
    deadline_s = time.monotonic() + WAIT_S_MAX
    commits = tmp_path / "checkpoint" / "commits"
    while not (commits / "2").exists():
        assert job.poll() is None, job.communicate()[1][-3000:]
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    job.send_signal(signal.SIGKILL)
    job.communicate()
    assert not (commits / "11").exists(), "it was too late to be killed in the middle"
    query = streaming_query(spark, tmp_path)
    assert query.awaitTermination(WAIT_S_MAX)
    assert committed_ids(spark, tmp_path) == list(range(12 * ROWS_PER_FILE))
