"""`group_by().agg()` against Spark's own: the same groups with the same results, and rows only in the store."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.shuffle.aggregate.aggregate_job import SCHEMA, groups
from tests.spark.shuffle.test_blob_shuffle import exchanges, random_rows

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle import BlobShuffle

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

WAIT_S_MAX = 120


@pytest.fixture
def shuffle(tmp_path: Path) -> BlobShuffle:
    return BlobShuffle(f"file://{tmp_path}/store", batch_bytes="256KiB", zones=["a", "b"], job="test")


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):  # what is collected comes in any order
        return sorted(value, key=repr)
    return value


def rows_of(df: "DataFrame") -> list[str]:
    from pyspark.sql.types import YearMonthIntervalType

    # Spark does not hand these to Python.
    odd = [number for number, field in enumerate(df.schema) if isinstance(field.dataType, YearMonthIntervalType)]
    if odd:
        names = [f"c{number}" for number in range(len(df.columns))]
        df = df.toDF(*names).selectExpr(*(f"string({name})" if name == f"c{odd[0]}" else name for name in names))
    return sorted(repr([rounded(value) for value in row]) for row in df.collect())


def of_everything() -> "list[Column]":
    from pyspark.sql import functions as f

    return [
        f.count("*"),
        f.count("word").alias("words"),
        f.sum("key").alias("keys"),
        f.sum("price"),
        f.avg("price").alias("price"),
        f.mean(f.col("key") % 1000),
        f.min("word"),
        f.max("raw"),
        f.min("time"),
        f.max(f.col("struct.a")).alias("greatest"),
        f.min(f.col("key").cast("double") / 7),
        f.max(f.col("key").cast("float")),
        f.count_if(f.col("key") > 10).alias("large"),
        f.bool_and(f.col("key") > 3).alias("all_large"),
        f.count_distinct("word"),
        f.count_distinct("key", "time").alias("pairs"),
        f.collect_list("struct"),
        f.array_agg(f.col("key") % 3).alias("rests"),
        f.collect_set("list"),
        f.collect_set(f.col("key") % 3).alias("different_rests"),
    ]


def test_groups_are_as_native(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    from pyspark.sql import functions as f

    df = spark.createDataFrame(random_rows(1500, 3))
    keys: list[list[Any]] = [
        [f.window("time", "30 days", "10 days"), f.col("key") % 5],
        [f.col("struct"), f.col("list")],
    ]
    for each in keys:
        found, expected = (
            shuffle.group_by(df, *each, partitions=7).agg(*of_everything()),
            df.groupBy(*each).agg(*of_everything()),
        )
        assert found.schema == expected.schema
        assert rows_of(found) == rows_of(expected)
        plan = spark._jvm.PythonSQLUtils.explainString(found._jdf.queryExecution(), "formatted")  # type: ignore[union-attr]
        assert exchanges(plan)
        assert all("row_count" in each for each in exchanges(plan))


def test_odd_keys_and_numbers(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    from pyspark.sql import functions as f

    df = spark.range(400).selectExpr(
        "case id % 4 when 0 then 0D when 1 then -0D when 2 then double('NaN') else null end number",
        "if(id % 5 = 0, null, make_ym_interval(id % 3, 0)) months",
        "if(id % 7 = 0, double('NaN'), -id) value",
        "cast(id as decimal(38, 6)) wide",
        "make_dt_interval(id) days",
        "bigint(9000000000000000000) + id - if(id % 2 = 0, 18000000000000000000BD, 0) `a.b``c`",
    )
    columns = [
        f.max("value"),
        f.min("value"),
        f.sum("wide"),
        f.avg("wide"),
        f.max("days"),
        f.min("days"),
        f.count_distinct("value"),
        f.count_distinct("wide"),
        f.count_distinct("number", "days"),
        f.count("*").alias("odd.na`me"),
        f.sum("`a.b``c`"),
    ]
    for key in ("number", "months", "`a.b``c`"):
        expected = df.groupBy(key).agg(*columns)
        assert rows_of(shuffle.group_by(df, key, partitions=3).agg(*columns)) == rows_of(expected)
    assert rows_of(shuffle.group_by(spark.range(0), "id", partitions=3).count()) == []
    huge = spark.range(4).selectExpr("1 key", "bigint(9000000000000000000) number")
    with pytest.raises(Exception, match="beyond 64 bits"):
        shuffle.group_by(huge, "key", partitions=2).agg(f.sum("number")).collect()


def test_distinct_values_are_counted_about(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    from pyspark.sql import functions as f

    df = spark.range(20_000).selectExpr("id % 2 key", "id % (5000 * (1 + id % 2)) value", "struct(id % 70 s) nested")
    about = [f.approx_count_distinct("value", 0.02).alias("values"), f.approx_count_distinct("nested").alias("nested")]
    found = shuffle.group_by(df, "key", partitions=3).agg(*about)
    assert found.schema == df.groupBy("key").agg(*about).schema
    exact = df.groupBy("key").agg(f.count_distinct("value"), f.count_distinct("nested"))
    for row, expected in zip(found.orderBy("key").collect(), exact.orderBy("key").collect(), strict=True):
        assert row["values"] == pytest.approx(expected[1], rel=0.1)
        assert row["nested"] == pytest.approx(expected[2], rel=0.25)


def test_what_cannot_be_is_refused(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    from pyspark.sql import functions as f

    df = spark.range(3).selectExpr("id", "array(id) list", "timestamp_seconds(id) time", "'a' collate unicode_ci word")
    grouped = shuffle.group_by(df, "id")
    for wrong in (f.sum_distinct("id"), f.sum("id") + 1, f.first("id"), f.max("list")):
        with pytest.raises(JobError):
            grouped.agg(wrong)
    with pytest.raises(JobError, match="sessions"):
        shuffle.group_by(df, f.session_window("time", "5 seconds")).count()
    with pytest.raises(JobError, match="collation"):
        shuffle.group_by(df, "word").count()
    with pytest.raises(JobError, match="key"):
        shuffle.group_by(df)
    for setting in ({"output_mode": "all"}, {"name": "a/b"}, {"versions_kept": 1}, {"partitions": 0}):
        with pytest.raises(JobError):
            shuffle.group_by(df, "id", **setting)  # type: ignore[arg-type]
    stream = spark.readStream.format("rate").load()
    with pytest.raises(JobError, match="watermark"):
        shuffle.group_by(stream, "value", output_mode="append").count()


# ── streams ──


def write_input(folder: Path, files: range, rows: int = 400) -> None:
    """Later files have later times, and some rows of each are late."""
    import random

    (folder / "in").mkdir(exist_ok=True)
    for number in files:
        chance = random.Random(number)
        keys = [chance.choice([None, 1, 1, 1, chance.randrange(50)]) for _ in range(rows)]
        numbers = [chance.choice([None, chance.randrange(1000) / 8]) for _ in range(rows)]
        seconds = [number * 20 + chance.randrange(20) - 45 * (chance.random() < 0.1) for _ in range(rows)]
        times = [None if chance.random() < 0.05 else (each + 1000) * 1_000_000 for each in seconds]
        table = pa.table(
            {
                "key": pa.array(keys, pa.int64()),
                "word": pa.array([chance.choice([None, "a", "b"]) for _ in range(rows)]),
                "number": pa.array(numbers, pa.float64()),
                "time": pa.array(times, pa.timestamp("us", "UTC")),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet")
        (folder / f"{number}.parquet").rename(folder / "in" / f"{number:03d}.parquet")


def aggregated(spark: "SparkSession", folder: Path, mode: str, kind: str) -> "DataFrame":
    """The same stream, by Spark's own aggregation or through the store."""
    from pyspark.sql import functions as f

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    stream = stream.withWatermark("time", "10 seconds")
    keys = [f.window("time", "20 seconds", "10 seconds"), f.col("word")] if mode != "complete" else [f.col("key")]
    columns = [f.count("*").alias("n"), f.sum("number").alias("total"), f.max("key").alias("top"), f.avg("key")]
    columns += [f.collect_list("key"), f.collect_set("number")]
    if kind == "native":
        # Spark does not count distinct values of streams.
        return stream.groupBy(*keys).agg(*columns, f.size(f.collect_set("key")))
    columns.append(f.count_distinct("key"))
    shuffle = BlobShuffle(f"file://{folder}/store", batch_bytes="64KiB")
    return shuffle.group_by(stream, *keys, partitions=5, output_mode=mode, versions_kept=2).agg(*columns)


class Collected:
    def __init__(self) -> None:
        self.batches: dict[int, list[str]] = {}

    def __call__(self, df: "DataFrame", number: int) -> None:
        found = rows_of(df)
        assert self.batches.setdefault(number, found) == found


def run_query(df: "DataFrame", folder: Path, kind: str, mode: str, into: Any) -> None:
    query = (
        df.writeStream.foreachBatch(into)
        .option("checkpointLocation", f"{folder}/checkpoint-{kind}")
        .outputMode(mode if kind == "native" else "update")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S_MAX)


@pytest.mark.parametrize(
    "mode", ["append", pytest.param("update", marks=pytest.mark.slow), pytest.param("complete", marks=pytest.mark.slow)]
)
def test_a_stream_is_as_native(spark: "SparkSession", tmp_path: Path, mode: str) -> None:
    found = {"native": Collected(), "blob": Collected()}
    for files in (range(4), range(4, 7)):
        write_input(tmp_path, files)
        for kind, into in found.items():
            run_query(aggregated(spark, tmp_path, mode, kind), tmp_path, kind, mode, into)
    assert found["blob"].batches == found["native"].batches
    assert sum(map(len, found["blob"].batches.values())) > 20
    versions = [each for each in (tmp_path / "store" / "state").rglob("*") if each.is_file()]
    assert 0 < len(versions) <= 5 * 4 + 3, "old versions are kept for ever"


class Fails:
    """Once in every micro-batch: what was told to the sink is lost, and the query is started again."""

    def __init__(self, into: Collected) -> None:
        self.into = into
        self.failed: set[int] = set()

    def __call__(self, df: "DataFrame", number: int) -> None:
        self.into(df, number)
        if number not in self.failed:
            self.failed.add(number)
            raise RuntimeError("the sink fails, on purpose")


def test_micro_batches_that_are_run_again(spark: "SparkSession", tmp_path: Path) -> None:
    write_input(tmp_path, range(3))
    native, blob = Collected(), Collected()
    run_query(aggregated(spark, tmp_path, "append", "native"), tmp_path, "native", "append", native)
    fails = Fails(blob)
    for _ in range(3):
        with pytest.raises(Exception, match="on purpose"):
            run_query(aggregated(spark, tmp_path, "append", "blob"), tmp_path, "blob", "append", fails)
    run_query(aggregated(spark, tmp_path, "append", "blob"), tmp_path, "blob", "append", fails)
    assert blob.batches == native.batches


def test_a_state_that_is_not_its_own_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.sql import functions as f

    write_input(tmp_path, range(1))
    stream = spark.readStream.schema(SCHEMA).parquet(f"{tmp_path}/in")
    shuffle = BlobShuffle(f"file://{tmp_path}/store")
    run_query(shuffle.group_by(stream, "key", partitions=2).count(), tmp_path, "blob", "update", Collected())
    write_input(tmp_path, range(1, 2))
    with pytest.raises(Exception, match="belongs to another aggregation"):
        run_query(
            shuffle.group_by(stream, "key", partitions=2).agg(f.sum("number")), tmp_path, "blob", "update", Collected()
        )
    shutil.rmtree(tmp_path / "store" / "state")
    with pytest.raises(Exception, match="is not in the store"):
        run_query(shuffle.group_by(stream, "key", partitions=2).count(), tmp_path, "blob", "update", Collected())
    assert json.loads((tmp_path / "checkpoint-blob" / "metadata").read_text())["id"]


@pytest.mark.slow
def test_tasks_that_fail_and_a_driver_killed_in_the_middle(spark: "SparkSession", tmp_path: Path) -> None:
    write_input(tmp_path, range(7))
    command = [sys.executable, "-m", "tests.spark.shuffle.aggregate.aggregate_job", str(tmp_path)]
    commits = tmp_path / "checkpoint" / "commits"
    said = tmp_path / "said.log"
    deadline_s = time.monotonic() + WAIT_S_MAX
    with said.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as job:
        while not (commits / "2").exists():
            assert job.poll() is None, said.read_text()[-3000:]
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        job.send_signal(signal.SIGKILL)
    assert not (commits / "6").exists(), "it was too late to be killed in the middle"
    with said.open("a") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, timeout=WAIT_S_MAX)
    assert "the first attempt fails, on purpose" in said.read_text()
    native = Collected()
    run_query(groups(spark, tmp_path, "native"), tmp_path, "native", "append", native)
    expected = sorted(row for rows in native.batches.values() for row in rows)
    assert rows_of(spark.read.parquet(f"{tmp_path}/out")) == expected
    assert len(expected) > 10
