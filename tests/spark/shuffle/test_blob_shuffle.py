"""`BlobShuffle` against Spark's own shuffle: the same rows, in the same partitions, without rows in the exchange."""

import contextlib
import decimal
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from braidlog.cost.prices import S3_STANDARD
from braidlog.node.children import BraidProcess
from braidlog.objects.keys import InvalidKey
from braidlog.runtime.clock import SystemClock
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle import BlobShuffle, ShuffleCache, ShuffleOptions
from braidlog.spark.shuffle.blob_shuffle import NOTIFICATION_DDL
from braidlog.spark.shuffle.notification import NOTIFICATION_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def shuffle(tmp_path: Path) -> BlobShuffle:
    return BlobShuffle(f"file://{tmp_path}", batch_bytes="256KiB", zones=["a", "b", "c"], job="test")


def in_partitions(df: "DataFrame") -> list[str]:
    """Every row with the partition it is in."""
    from pyspark.sql import functions

    return sorted(map(repr, df.withColumn("__in", functions.spark_partition_id()).collect()))


def random_rows(count: int, seed: int) -> pa.Table:
    """Nulls, nested types, a few keys that occur once, and one that half of all rows have."""
    chance = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.1 else value

    keys = [maybe(chance.choice([7, 7, 7, 7, chance.randrange(20), chance.randrange(10**6)])) for _ in range(count)]
    words = [maybe("x" * int(chance.paretovariate(0.8) % 2000) + str(each)) for each in range(count)]
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "word": pa.array(words),
            "raw": pa.array([maybe(chance.randbytes(chance.randrange(30))) for _ in range(count)], pa.binary()),
            "price": pa.array([maybe(decimal.Decimal(chance.randrange(10**9)) / 100) for _ in range(count)]),
            "time": pa.array([maybe(chance.randrange(10**15)) for _ in range(count)], pa.timestamp("us", "UTC")),
            "list": pa.array(
                [maybe([maybe(n) for n in range(chance.randrange(4))]) for _ in range(count)], pa.list_(pa.int32())
            ),
            "struct": pa.array(
                [maybe({"a": maybe(n), "b": maybe([{"c": str(n)}])}) for n in range(count)],
                pa.struct({"a": pa.int64(), "b": pa.list_(pa.struct({"c": pa.string()}))}),
            ),
            "map": pa.array([maybe([("k", maybe(n))]) for n in range(count)], pa.map_(pa.string(), pa.int64())),
        }
    )


@pytest.mark.parametrize(("seed", "partitions", "compression"), [(1, 7, "lz4"), (2, 200, "none")])
def test_repartition_is_as_native(
    spark: "SparkSession", tmp_path: Path, seed: int, partitions: int, compression: str
) -> None:
    shuffle = BlobShuffle(f"file://{tmp_path}", batch_bytes="128KiB", zones=["a", "b"], compression=compression)
    df = spark.createDataFrame(random_rows(3000, seed))
    assert in_partitions(shuffle.repartition(df, partitions, "key")) == in_partitions(df.repartition(partitions, "key"))


def test_columns_of_every_type_and_expressions_as_keys(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    df = spark.range(20).selectExpr(
        "id",
        "cast(id as tinyint) tiny",
        "cast(id as decimal(30,7)) number",
        "date_from_unix_date(int(id)) day",
        "timestamp_seconds(id) instant",
        "cast(timestamp_seconds(id) as timestamp_ntz) local",
        "make_dt_interval(id) days",
        "if(id % 3 = 0, null, make_ym_interval(id, 3)) months",
        "array(struct(make_ym_interval(id) as m)) nested_months",
        "make_interval(1, id, 0, 0, 0, 0, 1.5) mixed",
        "null nothing",
        "map('a', array(id)) map",
        "parse_json('{\"a\": 1}') variant",
        "id % 2 = 0 flag",
        "float(id) single",
        "double('nan') nan",
        "time'12:03:04' clock",
        "if(id % 2 = 0, 'Ab', 'aB') collate UTF8_LCASE as text",
    )
    keys = ["`text`", (df.id % 3).alias("third"), "number", "days"]
    shuffled = shuffle.repartition(df, 5, *keys)
    assert [(field.name, field.dataType) for field in shuffled.schema] == [
        (field.name, field.dataType) for field in df.schema
    ]

    def readable(rows: "DataFrame") -> "DataFrame":
        """Python has nothing to show these as."""
        return rows.withColumns({each: rows[each].cast("string") for each in ("months", "nested_months", "mixed")})

    assert in_partitions(readable(shuffled)) == in_partitions(readable(df.repartition(5, *keys)))
    # What a collation takes for equal goes to one partition.
    text = df.select("id", "text")
    assert in_partitions(shuffle.repartition(text, 5, "text")) == in_partitions(text.repartition(5, "text"))


def exchanges(plan: str) -> list[str]:
    """What the exchanges of a formatted plan have as their input."""
    lines = plan.split("\n")
    titles = [number for number, line in enumerate(lines) if line.startswith("(") and line.endswith(") Exchange")]
    return [lines[number + 1].partition("[")[2].partition(":")[2] for number in titles]


def shuffle_write_bytes(spark: "SparkSession", work: "DataFrame") -> int:
    """What Spark itself says its shuffle wrote for an action."""
    store = spark.sparkContext._jsc.sc().statusStore()  # type: ignore[union-attr]

    def total() -> int:
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[union-attr]
        stages = store.stageList(None, False, False, spark.sparkContext._gateway.new_array(spark._jvm.double, 0), None)
        return sum(stages.apply(number).shuffleWriteBytes() for number in range(stages.size()))

    before = total()
    work.write.format("noop").mode("overwrite").save()
    return total() - before


def test_only_notifications_go_through_sparks_exchange(spark: "SparkSession", tmp_path: Path) -> None:
    shuffle = BlobShuffle(f"file://{tmp_path}", batch_bytes="4MiB")
    values = pa.array([random.Random(each).randbytes(1016) for each in range(16_000)], pa.binary())
    df = spark.createDataFrame(pa.table({"key": pa.array(range(16_000), pa.int64()), "value": values}))
    shuffled = shuffle.repartition(df, 16, "key")
    plan = spark._jvm.PythonSQLUtils.explainString(shuffled._jdf.queryExecution(), "formatted")  # type: ignore[union-attr]
    assert len(exchanges(plan)) == 1
    assert "value" not in exchanges(plan)[0]
    assert plan.count("MapInArrow\nInput") == 2
    native_bytes = shuffle_write_bytes(spark, df.repartition(16, "key"))
    blob_bytes = shuffle_write_bytes(spark, shuffled)
    assert native_bytes > 16_000 * 1016
    assert 0 < blob_bytes <= 0.01 * native_bytes


def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = [batch.select(["key"]) for batch in batches]
    if rows:
        counts = pa.Table.from_batches(rows).group_by("key").aggregate([([], "count_all")])
        yield from counts.rename_columns(["key", "count"]).to_batches()


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.set_column(0, "id", pc.multiply(batch.column(0), 2))


def test_a_function_per_partition(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    df = spark.createDataFrame(random_rows(2000, 3))
    found = shuffle.apply(df, 5, "key", counted, schema="key bigint, count bigint")
    expected = df.groupBy("key").count()
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
    ids = spark.range(100)
    assert sorted(row.id for row in shuffle.apply(ids, 3, ["id"], doubled).collect()) == list(range(0, 200, 2))


def joined(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    sides = [list(left), list(right)]
    if all(sides):
        tables = [pa.Table.from_batches(each) for each in sides]
        yield from tables[0].join(tables[1], ["a", "b"], join_type="inner").to_batches()


def test_a_join_of_what_is_partitioned_alike(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    left = spark.range(600).selectExpr("id % 50 a", "if(id % 7 = 0, null, string(id % 3)) b", "id x")
    right = spark.range(100).selectExpr("id a", "string(id % 3) b", "id * 10 y")
    found = shuffle.cogroup(left, right, 5, ["a", "b"], joined, "a bigint, b string, x bigint, y bigint")
    expected = left.join(right, ["a", "b"])
    assert sorted(map(repr, found.collect())) == sorted(map(repr, expected.collect()))
    plan = spark._jvm.PythonSQLUtils.explainString(found._jdf.queryExecution(), "formatted")  # type: ignore[union-attr]
    assert all("row_count" in each for each in exchanges(plan))
    with pytest.raises(JobError, match="cast one side"):
        shuffle.cogroup(left, right.selectExpr("int(a) a", "b"), 5, ["a", "b"], joined, "a bigint")


def test_joins_are_as_native(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    left = spark.range(300).selectExpr(
        "if(id % 9 = 0, null, id % 40) a",
        "case id % 4 when 0 then double('nan') when 1 then -0D else id % 3 end b",
        "id x",
        "if(id % 2 = 0, null, array(struct(id))) nested",
        "make_ym_interval(id) months",
    )
    right = spark.range(90).selectExpr(
        "id % 60 + 5 A", "if(id % 5 = 0, double('nan'), id % 3) b", "id * 10 x", "map('k', id) `y.z`"
    )
    for keys, how in ((["a"], "inner"), (["b", "a"], "right"), (["b", "a"], "full"), (["b", "a"], "leftanti")):
        found, expected = shuffle.join(left, right, 5, keys, how), left.join(right, keys, how)
        assert [(each.name, each.dataType) for each in found.schema] == [
            (each.name, each.dataType) for each in expected.schema
        ]
        assert as_text(found) == as_text(expected), how
    with pytest.raises(JobError, match="no kind of join"):
        shuffle.join(left, right, 5, "a", "cross")
    with pytest.raises(JobError, match="Join by its parts"):
        shuffle.join(left, left, 5, "nested")
    with pytest.raises(JobError, match="a stream cannot be joined"):
        shuffle.join(spark.readStream.format("rate").load(), left.selectExpr("x value"), 5, "value")


def as_text(df: "DataFrame") -> list[str]:
    """Python has nothing to show intervals as."""
    names = [f"c{number}" for number in range(len(df.columns))]
    return sorted(map(repr, df.toDF(*names).selectExpr(*(f"string({name})" for name in names)).collect()))


def test_rows_without_a_key_take_turns_whatever_their_order(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    """A task that is run again may get its rows in another order."""
    df = spark.range(40).selectExpr("id % 7 same", "if(id > 20, map('a', id), null) map", "'x' `a.b`", "'y' `a.b`")
    there, back = (df.orderBy(key).coalesce(1) for key in (df.map["a"].desc(), df.same.asc()))
    found = in_partitions(shuffle.repartition(there, 8))
    assert found == in_partitions(shuffle.repartition(back, 8)) != in_partitions(there)
    assert len(found) == 40
    sizes = [sum(f"__in={number})" in row for row in found) for number in range(8)]
    assert sizes == [5] * 8
    alike = spark.range(8).selectExpr("1 one").coalesce(1)
    assert len(set(in_partitions(shuffle.repartition(alike, 8)))) == 8


def test_what_a_shuffle_did_is_observed(spark: "SparkSession", tmp_path: Path) -> None:
    from pyspark.sql import Observation

    shuffle = BlobShuffle(
        f"file://{tmp_path}", batch_bytes="64KiB", zone="a", zones=["a", "b", "c"], compression="none"
    )
    values = pa.array([bytes(1000)] * 2000, pa.binary())
    df = spark.createDataFrame(pa.table({"key": pa.array(range(2000), pa.int64()), "value": values}))
    observation = Observation("shuffle")
    shuffle.repartition(df, 12, "key", observe=observation).write.format("noop").mode("overwrite").save()
    metrics = observation.get
    batches = [each.stat().st_size for each in (tmp_path / "shuffle").glob("*/?/*")]
    assert metrics["batches"] == len(batches)
    assert metrics["stored_bytes"] == sum(batches)
    assert metrics["rows"] == 2000
    assert metrics["notifications"] >= 12
    assert metrics["cross_zone_bytes"] == pytest.approx(2_000_000 * 2 / 3, rel=0.1)
    found = shuffle.bills(metrics, S3_STANDARD)
    assert found["store"].requests_usd == pytest.approx(len(batches) * 5e-6, rel=0.1)
    assert found["native"].transfer_usd == pytest.approx(2_000_000 / 2**30 * 2 / 3 * 0.02, rel=0.1)
    assert found["kafka"].transfer_usd == pytest.approx(2_000_000 / 2**30 * 8 / 3 * 0.02, rel=0.1)
    assert shuffle.bills(metrics)["store"].total_usd == 0  # a folder costs nothing


def test_nothing_and_a_little(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    empty = spark.range(0)
    assert shuffle.repartition(empty, 4, "id").collect() == []
    assert shuffle.repartition(spark.range(1000), 4, "id").limit(3).count() == 3
    # Other columns may have any name, that of our own included.
    odd = spark.range(5).selectExpr("id", "id as `__braidlog_partition`", "id as `a.b``c`")
    assert in_partitions(shuffle.repartition(odd, 2, "`a.b``c`")) == in_partitions(odd.repartition(2, "`a.b``c`"))


def test_a_store_that_cannot_be_written_fails_the_job(spark: "SparkSession", tmp_path: Path) -> None:
    shuffle = BlobShuffle(f"file://{tmp_path}/store")
    shuffled = shuffle.repartition(spark.range(10), 2, "id")
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("in the way")
    with pytest.raises(Exception, match="a batch could not be uploaded"):
        shuffled.collect()
    with pytest.raises(JobError):
        BlobShuffle(f"file://{tmp_path}/store/inside").repartition(spark.range(10), 2, "id")
    with pytest.raises(JobError, match="a store in memory"):
        BlobShuffle("memory://shared").repartition(spark.range(10), 2, "id")


def test_through_a_ring_of_caches(spark: "SparkSession", tmp_path: Path) -> None:
    with contextlib.ExitStack() as running:
        members = []
        for number in range(2):
            folder = tmp_path / f"cache{number}"
            folder.mkdir()
            arguments = ["shuffle", "cache", "--store", f"file://{tmp_path}/store", "--listen", "127.0.0.1:0"]
            member = running.enter_context(BraidProcess(f"cache{number}", arguments, folder, SystemClock()))
            members.append(member.addresses["cache"])
        cache = ShuffleCache.of(memory="8MiB", members={"a": members})
        shuffle = BlobShuffle(f"file://{tmp_path}/store", batch_bytes="16KiB", zone="a", cache=cache)
        df = spark.range(3000).selectExpr("id", "sha2(string(id), 256) text")
        assert in_partitions(shuffle.repartition(df, 6, "text")) == in_partitions(df.repartition(6, "text"))
    said = [(tmp_path / f"cache{number}").rglob("*.log") for number in range(2)]
    texts = [each.read_text() for found in said for each in found]
    assert len(texts) == 2
    batches = len(list((tmp_path / "store" / "shuffle").glob("*/?/*")))
    puts = [int(text.partition("stopped after ")[2].partition(" ")[0]) for text in texts]
    gets = [int(text.partition("PUTs and ")[2].partition(" ")[0]) for text in texts]
    assert sum(puts) == batches > 4
    assert min(puts) > 0
    assert gets == [0, 0], "what was written through its owner is in its cache"


def test_a_batch_that_is_gone_fails_the_job(spark: "SparkSession", tmp_path: Path) -> None:
    shuffle = BlobShuffle(f"file://{tmp_path}", job="gone")

    def remove(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in list((tmp_path / "shuffle").glob("*/*/*-*")):
            each.unlink(missing_ok=True)
        yield from batches

    with pytest.raises(Exception, match="is not in the store any more"):
        shuffle.apply(spark.range(10), 2, "id", remove).collect()


@pytest.mark.parametrize(
    "wrong",
    [{"batch_bytes": "2GiB"}, {"batch_bytes": "many"}, {"batch_interval": "0s"}, {"compression": "gzip"}],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(JobError):
        BlobShuffle("file:///tmp/x", **wrong)


def test_options_are_given_together_or_by_name() -> None:
    options = ShuffleOptions(job="together", batch_bytes="8MiB")
    assert BlobShuffle("file:///tmp/x", options).job == "together"
    changed = BlobShuffle("file:///tmp/x", options, job="changed").plan(3)
    assert (changed.job, changed.batch_bytes, changed.partitions) == ("changed", 8 * 1024 * 1024, 3)
    with pytest.raises(TypeError, match="batchbytes"):
        BlobShuffle("file:///tmp/x", batchbytes="8MiB")


def test_wrong_names_and_counts_are_refused(spark: "SparkSession", shuffle: BlobShuffle) -> None:
    with pytest.raises(InvalidKey):
        BlobShuffle("file:///tmp/x", job="a/b")
    for partitions in (0, 100_000):
        with pytest.raises(JobError, match="partitions"):
            shuffle.repartition(spark.range(1), partitions, "id")
    assert "secret" not in repr(BlobShuffle("s3://bucket/x?secret_access_key=secret"))


def test_the_two_schemas_of_notifications_are_one(spark: "SparkSession") -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    assert to_arrow_schema(StructType.fromDDL(NOTIFICATION_DDL)).remove_metadata() == NOTIFICATION_SCHEMA
