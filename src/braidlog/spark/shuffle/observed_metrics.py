"""Metrics of a shuffle, as Spark's observed metrics.

They are computed from notifications, once per accepted task.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from braidlog.cost.bill import Bill, Usage, bill
from braidlog.cost.prices import Price, price_for
from braidlog.spark.shuffle.service.usage import ShuffleUsage

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation


KAFKA_REPLICAS = 3


def observed(notifications: "DataFrame", zones: Sequence[str], where: "Observation | str") -> "DataFrame":
    """Observe notifications under `where`.

    The metrics are `batches` (uploaded), `stored_bytes`, `notifications`, `rows`, and `cross_zone_bytes`: the bytes
    whose destination is in another zone than the task that wrote them. A shuffle between executors would have sent
    them across.
    """
    from pyspark.sql import functions

    def total(column: "Column", name: str) -> "Column":
        return functions.coalesce(functions.sum(column), functions.lit(0)).alias(name)

    # Every batch has exactly one extent at its beginning. Hints to Spark have no length.
    is_first = functions.col("position") == 0
    is_real = functions.col("length") >= 0
    turn = functions.pmod(functions.col("partition"), functions.lit(len(zones))) + 1
    destination = functions.element_at(functions.array(*map(functions.lit, zones)), turn)
    crosses = is_real & (functions.col("zone") != destination)
    return notifications.observe(
        where,
        total(functions.when(is_first, 1).otherwise(0), "batches"),
        total(functions.when(is_first, functions.col("object_bytes")).otherwise(0), "stored_bytes"),
        functions.count(functions.when(is_real, 1)).alias("notifications"),
        total(functions.col("row_count"), "rows"),
        total(functions.when(crosses, functions.col("length")).otherwise(0), "cross_zone_bytes"),
    )


def bills(
    metrics: Mapping[str, Any],
    store_url: str,
    usage: ShuffleUsage | None = None,
    *,
    zones: int,
    price: Price | None = None,
) -> dict[str, Bill]:
    """Compute the bill of an observed shuffle, and of its alternatives.

    The alternatives are a shuffle between executors and a Kafka topic.

    The bills count traffic between zones only. Reads are those that the application's nodes have measured, for as many
    batches. Without a measurement they are counted as in zones with caches: one for each batch that was written in
    another zone.
    """
    chosen = price if price is not None else price_for(store_url)
    batches, stored_bytes = int(metrics["batches"]), int(metrics["stored_bytes"])
    gets, downloads = (zones - 1) / zones, (zones - 1) / zones
    if usage is not None and usage.puts:
        gets, downloads = usage.gets / usage.puts, usage.get_bytes / usage.put_bytes
    through_store = Usage(
        put_count=batches,
        get_count=round(batches * gets),
        upload_bytes=stored_bytes,
        download_bytes=round(stored_bytes * downloads),
    )
    crossing_bytes = int(metrics["cross_zone_bytes"])
    between_executors = Usage(cross_zone_bytes=2 * crossing_bytes)
    # Replicas of a topic outside the leader's zone receive the rows once more.
    copies = KAFKA_REPLICAS - -(-KAFKA_REPLICAS // zones)
    through_kafka = Usage(cross_zone_bytes=2 * (crossing_bytes + copies * int(metrics["stored_bytes"])))
    return {
        "store": bill(through_store, chosen, elapsed_s=0.0),
        "native": bill(between_executors, chosen, elapsed_s=0.0),
        "kafka": bill(through_kafka, chosen, elapsed_s=0.0),
    }
