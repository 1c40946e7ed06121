"""`BlobShuffle`: what people change in a Spark job, a line for each shuffle."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from braidlog.cost.bill import Bill
from braidlog.cost.prices import Price
from braidlog.objects.keys import shuffle_key
from braidlog.objects.open import redacted
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.quantities import parse_bytes, parse_seconds
from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregating import (
    SUMMARY,
    AggregatingMap,
    AggregatingReduce,
    SparkRows,
    Statefulness,
    check_stateful,
    check_watermark,
    fingerprint_of,
)
from braidlog.spark.shuffle.beating import Beating
from braidlog.spark.shuffle.caching import NO_CACHE, ShuffleCache
from braidlog.spark.shuffle.carrying import carried_schema, cast_to, key_hash
from braidlog.spark.shuffle.expiry import RETENTION_S_DEFAULT
from braidlog.spark.shuffle.grouping import GroupedShuffle, Planned
from braidlog.spark.shuffle.notifying import NOTIFICATION_DDL
from braidlog.spark.shuffle.observing import bills, observed
from braidlog.spark.shuffle.state import STATE_VERSIONS_KEPT
from braidlog.spark.shuffle.tasks import (
    SIDE_COLUMN,
    ArrowFunction,
    CogroupedSide,
    MapSide,
    PairFunction,
    ReduceSide,
    ShufflePlan,
    check_shuffle,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from braidlog.spark.shuffle.pipeline import Pipeline


class BlobShuffle:
    """Shuffles DataFrames through an object store.

    Rows cross executors in objects of about `batch_bytes`; Spark itself exchanges only who finds what where. Works on
    DataFrames and on streams.
    """

    def __init__(
        self,
        store: str,
        *,
        batch_bytes: int | str = "16MiB",
        batch_interval: float | str = "5s",
        compression: str = "lz4",
        zone: str | None = None,
        zones: Sequence[str] = (),
        uploads_in_flight: int = 4,
        read_ahead: int | str = "64MiB",
        cache: ShuffleCache = NO_CACHE,
        shared: bool = False,
        retention: float | str = RETENTION_S_DEFAULT,
        job: str | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        """`store` is a URL that all executors can reach: s3://bucket/prefix, or file:///folder on a shared disk.

        `zones` are where executors run; batches are then formed for each of them. An executor's own zone is `zone`, or
        what the variable BRAIDLOG_ZONE says on it (spark.executorEnv.BRAIDLOG_ZONE). `job` names the application's
        batches in the store, and is random by default. With `shared`, what tasks of one node have left at their end
        becomes batches together, through a process beside them: fewer and larger ones, where tasks are many and have
        little. `retention` is that of `braid shuffle expire`: while the
        application lives, it says so several times within it.
        """
        chosen = job if job is not None else (entropy or SystemEntropy()).token(8).hex()
        shuffle_key(chosen, "check", 0)
        self._store_url = store
        try:
            self._template = ShufflePlan(
                store_url=store,
                job=chosen,
                zones=tuple(dict.fromkeys(zones)) or (zone or "",),
                partitions=1,
                batch_bytes=parse_bytes(batch_bytes),
                interval_s=parse_seconds(batch_interval),
                compression=compression,
                uploads_in_flight_max=uploads_in_flight,
                ahead_bytes_max=parse_bytes(read_ahead),
                zone=zone,
                cache=cache,
                shared=shared,
            )
            self._beating = Beating(store, chosen, parse_seconds(retention))
        except ValueError as error:
            raise JobError(f"a setting of the shuffle {error}", help='For example batch_bytes="16MiB".') from error
        _ = self._template.batcher_settings  # which refuses what cannot be

    @property
    def job(self) -> str:
        return self._template.job

    def __repr__(self) -> str:
        return f"BlobShuffle({redacted(self._store_url)!r}, job={self.job!r})"

    def use(self, session: "SparkSession", *, streaming: bool) -> None:
        """A shuffle is about to be part of a plan: its batches are kept from now on."""
        self._beating.use(session, streaming=streaming)

    def stop(self) -> None:
        """Say no more that the application is there: its batches go when the retention is over."""
        self._beating.stop()

    def repartition(
        self,
        df: "DataFrame",
        partitions: int,
        *keys: "str | Column",
        observe: "Observation | str | None" = None,
    ) -> "DataFrame":
        """As `df.repartition(partitions, *keys)`: the same rows in the same partitions.

        `observe` gets what the shuffle did, as `df.observe` would: an `Observation`, or a name by which the progress of
        a stream has it.
        """
        rows = self._notifications(df, partitions, list(keys), observe).mapInArrow(
            ReduceSide(self.plan(partitions)).__call__, carried_schema(df.schema)
        )
        return rows if rows.schema == df.schema else cast_to(rows, df.schema)

    def apply(
        self,
        df: "DataFrame",
        partitions: int,
        keys: "str | Column | list[str | Column]",
        function: ArrowFunction,
        schema: "StructType | str | None" = None,
        *,
        observe: "Observation | str | None" = None,
    ) -> "DataFrame":
        """What `function` makes of each partition, of which it gets the rows as Arrow batches. It runs where the rows
        are read, so that only its results go through the JVM. `schema` is that of the results; without one, the
        DataFrame's own. Intervals of months, and of months, days and time together, are text there."""
        chosen = keys if isinstance(keys, list) else [keys]
        return self._notifications(df, partitions, chosen, observe).mapInArrow(
            ReduceSide(self.plan(partitions), function).__call__,
            carried_schema(df.schema) if schema is None else schema,
        )

    def group_by(
        self,
        df: "DataFrame",
        *keys: "str | Column",
        partitions: int = 64,
        output_mode: str = "update",
        name: str = "aggregation",
        versions_kept: int = STATE_VERSIONS_KEPT,
    ) -> GroupedShuffle:
        """As `df.groupBy(*keys)`, of which `.agg(…)` is the aggregation. A key may be a `window`.

        Of a stream, groups go on from one micro-batch to the next: `update` tells groups that have changed, `append`
        those that the watermark of the stream (`withWatermark`) has passed, each once, and `complete` all of them.
        Write the result with a checkpoint, which names the state in the store. Several aggregations of one query need
        a `name` each. `versions_kept` is how many micro-batches of state are kept.
        """
        check_shuffle(list(keys), partitions)
        check_stateful(output_mode, name, versions_kept)

        def run(planned: Planned) -> "DataFrame":
            state = None
            if df.isStreaming:
                check_watermark(output_mode, planned.aggregation)
                fingerprint = fingerprint_of(planned.aggregation, partitions, output_mode)
                state = Statefulness(name, output_mode, versions_kept, fingerprint)
            self.use(df.sparkSession, streaming=df.isStreaming)
            plan = self.plan(partitions)
            mapped = SparkRows(AggregatingMap(plan, planned.aggregation, state), planned.has_event_time)
            exchanged = planned.rows.mapInArrow(mapped.__call__, f"{NOTIFICATION_DDL}, {SUMMARY} binary")
            rows = exchanged.repartitionById(partitions, "partition").mapInArrow(
                AggregatingReduce(plan, planned.aggregation, state).__call__, carried_schema(planned.result)
            )
            return rows if rows.schema == planned.result else cast_to(rows, planned.result)

        return GroupedShuffle(df, keys, partitions, run)

    def pipeline(
        self, options: Mapping[str, str] | None = None, *, session: "SparkSession | None" = None, **more: object
    ) -> "Pipeline":
        """From a topic of Braidlog to another, through an aggregation, with rows in Python alone: only notifications
        enter the JVM. `options` are those of `spark.read.format("braidlog")`."""
        from pyspark.sql import SparkSession

        from braidlog.spark.shuffle.pipeline import Pipeline

        session = session or SparkSession.getActiveSession()
        if session is None:
            raise JobError("there is no Spark session", help="Make one first: create_session().")
        return Pipeline(self, session, {**(options or {}), **{name: str(value) for name, value in more.items()}})

    def cogroup(
        self,
        left: "DataFrame",
        right: "DataFrame",
        partitions: int,
        keys: "str | list[str]",
        function: PairFunction,
        schema: "StructType | str",
    ) -> "DataFrame":
        """What `function` makes of each partition of two DataFrames that have these keys in common: a join, for
        example. It gets the rows of both, left and right; a side without rows in the partition is an empty iterator."""
        names = [keys] if isinstance(keys, str) else keys
        kinds = [[field.dataType for field in df.select(*names).schema] for df in (left, right)]
        if kinds[0] != kinds[1]:
            raise JobError(
                f"the keys {', '.join(names)} are {kinds[0]} on the left and {kinds[1]} on the right",
                help="Equal keys of different types have different hashes: cast one side.",
            )
        from pyspark.sql import functions

        sides = [
            self._batched(df, partitions, list(names), None).withColumn(SIDE_COLUMN, functions.lit(number))
            for number, df in enumerate((left, right))
        ]
        exchanged = sides[0].union(sides[1]).repartitionById(partitions, "partition")
        return exchanged.mapInArrow(CogroupedSide(self.plan(partitions), function).__call__, schema)

    def _notifications(
        self, df: "DataFrame", partitions: int, keys: "list[str | Column]", observe: "Observation | str | None"
    ) -> "DataFrame":
        """The map side, and the plan's only exchange."""
        return self._batched(df, partitions, keys, observe).repartitionById(partitions, "partition")

    def _batched(
        self, df: "DataFrame", partitions: int, keys: "list[str | Column]", observe: "Observation | str | None"
    ) -> "DataFrame":
        from pyspark.sql import functions
        from pyspark.sql.types import IntegerType, StructField, StructType

        check_shuffle(keys, partitions)
        self.use(df.sparkSession, streaming=df.isStreaming)
        # The JVM hashes keys as its own shuffle does, with the same seed.
        partition = functions.pmod(key_hash(df, keys), functions.lit(partitions))
        schema = StructType([*carried_schema(df.schema), StructField("partition", IntegerType())])
        # Spark refuses to hand columns with odd names to Python, so names take another way.
        rows = cast_to(df.select("*", partition), schema, [f"c{number}" for number in range(len(schema))])
        found = rows.mapInArrow(MapSide(self.plan(partitions), tuple(df.columns)).__call__, NOTIFICATION_DDL)
        if observe is not None:
            found = observed(found, self._template.zones, observe)
        return found

    def bills(self, metrics: Mapping[str, Any], price: Price | None = None) -> dict[str, Bill]:
        """What an observed shuffle cost, and what Spark's own and a topic of Kafka would have cost for traffic between
        zones. Prices are those of the store, unless others are given."""
        return bills(metrics, self._store_url, zones=len(self._template.zones), price=price)

    def plan(self, partitions: int) -> ShufflePlan:
        """What tasks of a shuffle with so many partitions are told."""
        return replace(self._template, partitions=partitions)
