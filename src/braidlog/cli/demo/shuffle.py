"""The part of `braid demo` that shuffles records by key.

It shuffles through the store and through Spark's own shuffle, and compares both bills with that of a Kafka topic.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 12
ZONES = ("demo-a", "demo-b", "demo-c")
"""The zones that the partitions are spread over. In the demo, all tasks run in the first."""
BATCH_BYTES = 16 << 20
TIB = 1 << 40


@dataclass(frozen=True, slots=True)
class ShuffleAccount:
    rows: int
    same_as_native: bool
    """Whether every partition has the same rows as with Spark's own shuffle."""
    rows_bytes: int
    batches: int
    notifications: int
    cross_zone_bytes: int
    """The bytes that Spark's own shuffle would have sent between zones."""
    usd_per_tib: dict[str, float]
    """The bill for 1 TiB of records: through the store, through Spark's own shuffle, and through a Kafka topic."""

    def is_right(self, record_count: int) -> bool:
        return self.same_as_native and self.rows == record_count


def run_shuffle(spark: "SparkSession", topics: Sequence[str], control: str, folder: Path) -> ShuffleAccount:
    from pyspark.sql import Observation

    from braidlog.cost.prices import S3_STANDARD
    from braidlog.spark.shuffle import BlobShuffle

    records = (
        spark.read.format("braidlog")
        .option("braidlog.control", control)
        .option("subscribe", ",".join(topics))
        .load()
        .select("key", "value", "topic", "partition", "offset")
    )
    shuffle = BlobShuffle(
        f"file://{folder}/shuffle", zones=ZONES, zone=ZONES[0], batch_bytes=BATCH_BYTES, compression="none"
    )
    try:
        observation = Observation("shuffle")
        found = _fingerprints(shuffle.repartition(records, PARTITIONS, "key", observe=observation))
        expected = _fingerprints(records.repartition(PARTITIONS, "key"))
        metrics = observation.get
        stored_bytes = metrics["stored_bytes"]
        bills = shuffle.bills(metrics, S3_STANDARD)
        # The demo has too few records to fill batches, as a longer shuffle does.
        full = {**metrics, "batches": -(-TIB // BATCH_BYTES), "stored_bytes": TIB}
        usd_per_tib = {name: each.total_usd * TIB / max(1, stored_bytes) for name, each in bills.items()}
        usd_per_tib["store, full batches"] = shuffle.bills(full, S3_STANDARD)["store"].total_usd
        return ShuffleAccount(
            rows=sum(rows for _, rows, _ in found),
            same_as_native=found == expected,
            rows_bytes=stored_bytes,
            batches=metrics["batches"],
            notifications=metrics["notifications"],
            cross_zone_bytes=metrics["cross_zone_bytes"],
            usd_per_tib={name: round(usd, 2) for name, usd in usd_per_tib.items()},
        )
    finally:
        shuffle.stop()


def _fingerprints(shuffled: "DataFrame") -> list[tuple[int, int, int]]:
    """Count the rows of each partition, and hash them independently of their order."""
    from pyspark.sql import functions

    hashed = functions.expr("sum(cast(xxhash64(key, value, topic, partition, offset) as decimal(20, 0)))")
    sums = shuffled.groupBy(functions.spark_partition_id().alias("place")).agg(
        functions.count(functions.lit(1)), hashed
    )
    return sorted((row[0], row[1], int(row[2])) for row in sums.collect())
