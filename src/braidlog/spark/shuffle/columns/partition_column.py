"""Adds the partition of each row as a column: by its keys, or in turn."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from braidlog.spark.shuffle.columns.carried_types import content_hashes, key_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_POSITION_BITS = 33
"""`monotonically_increasing_id` has a row's position in its task in these low bits, and the task above them."""


def partitioned(df: "DataFrame", partitions: int, keys: "Sequence[str | Column]") -> "DataFrame":
    """Append the partition of each row as the last column.

    The names of the other columns may change.

    A row's partition must be the same when a task runs again. Otherwise some rows would be read twice, or never.
    """
    from pyspark.sql import functions

    if keys:
        # The JVM hashes keys as its own shuffle does.
        return df.select("*", functions.pmod(key_hash(df, keys), functions.lit(partitions)))
    # Names may occur twice, or have characters that would be taken for syntax.
    df = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    hashes = content_hashes(df) if df.columns else [functions.lit(0)]
    if df.isStreaming:
        # Spark can neither sort nor number the rows of a stream.
        return df.select("*", functions.pmod(hashes[0], functions.lit(partitions)).cast("int"))
    # A task may receive its rows in another order when it runs again. Sorting by content restores the order. Equal rows
    # may trade places, which makes no difference.
    position = functions.monotonically_increasing_id().bitwiseAND(functions.lit((1 << _POSITION_BITS) - 1))
    turn = functions.pmod(position + functions.spark_partition_id(), functions.lit(partitions))
    return df.sortWithinPartitions(*hashes).select("*", turn.cast("int"))
