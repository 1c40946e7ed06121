"""`BlobShuffle`: the public entry to shuffles.

A Spark job changes one line for each shuffle.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from braidlog.cost.bill import Bill
from braidlog.cost.prices import Price
from braidlog.objects.keys import shuffle_key
from braidlog.objects.open import redacted
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.quantities import parse_bytes, parse_seconds
from braidlog.spark.errors import JobError, readable_errors
from braidlog.spark.shuffle.aggregate.group_by import GroupedShuffle, PlannedAggregation
from braidlog.spark.shuffle.aggregate.stages import (
    SUMMARY,
    AggregatingMap,
    AggregatingReduce,
    DataFrameMap,
    StateSettings,
    check_stateful,
    check_watermark,
    fingerprint_of,
)
from braidlog.spark.shuffle.aggregate.state_store import STATE_VERSIONS_KEPT
from braidlog.spark.shuffle.caches import MEMORY_DEFAULT, NO_CACHE, ShuffleCache
from braidlog.spark.shuffle.columns.carried_types import carried_schema, cast_to, numbered_schema
from braidlog.spark.shuffle.columns.partition_column import partitioned
from braidlog.spark.shuffle.expiry.heartbeat import HeartbeatThread
from braidlog.spark.shuffle.join.plan import check_same_kinds, plan_join
from braidlog.spark.shuffle.notification import NOTIFICATION_DDL
from braidlog.spark.shuffle.observed_metrics import bills, observed
from braidlog.spark.shuffle.options import ShuffleOptions
from braidlog.spark.shuffle.service.collected_usage import current_usage
from braidlog.spark.shuffle.service.settings import RingSettings
from braidlog.spark.shuffle.service.usage import ShuffleUsage
from braidlog.spark.shuffle.tasks.plan import ShufflePlan
from braidlog.spark.shuffle.tasks.python_worker import PythonWorker, python_worker
from braidlog.spark.shuffle.tasks.stages import (
    SIDE_COLUMN,
    ArrowFunction,
    CogroupedSide,
    MapSide,
    PairFunction,
    ReduceSide,
    check_partitions,
    check_shuffle,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from braidlog.spark.shuffle.pipeline.builder import Pipeline


DEFAULT_CACHE = ShuffleCache.of(memory=MEMORY_DEFAULT)


class BlobShuffle:
    """Shuffles DataFrames and streams through an object store.

    Rows travel between executors in objects of about `batch_bytes`. Spark itself only exchanges notifications, which
    say where each partition's rows lie.
    """

    def __init__(self, store: str, options: ShuffleOptions | None = None, **changes: Any) -> None:
        """Use a store that all executors can reach.

        For example s3://bucket/prefix, or file:///folder on a shared disk. Options can be given by name as
        well: `BlobShuffle(store, zones=[…], batch_bytes="8MiB")`.
        """
        options = replace(options or ShuffleOptions(), **changes)
        job = options.job if options.job is not None else SystemEntropy().token(8).hex()
        shuffle_key(job, "check", 0)  # raises if the name cannot be part of a key
        self._store_url = store
        self._secret = SystemEntropy().token(16).hex()
        self._route: str | None = None
        is_folder = store.startswith("file:")
        try:
            self._template = ShufflePlan(
                store_url=store,
                job=job,
                zones=tuple(dict.fromkeys(options.zones)) or (options.zone or "",),
                partitions=1,
                batch_bytes=parse_bytes(options.batch_bytes),
                interval_s=parse_seconds(options.batch_interval),
                compression=options.compression,
                uploads_in_flight_max=options.uploads_in_flight,
                ahead_bytes_max=parse_bytes(options.read_ahead),
                zone=options.zone,
                cache=options.cache if options.cache is not None else (NO_CACHE if is_folder else DEFAULT_CACHE),
                shared=options.shared if options.shared is not None else not is_folder,
                share_wait_s=parse_seconds(options.share_wait),
            )
            self._heartbeat = HeartbeatThread(store, job, parse_seconds(options.retention))
        except ValueError as error:
            raise JobError(f"an option of the shuffle {error}", help='For example batch_bytes="16MiB".') from error
        _ = self._template.batcher_settings  # raises if an option is out of range

    @property
    def job(self) -> str:
        return self._template.job

    def __repr__(self) -> str:
        return f"BlobShuffle({redacted(self._store_url)!r}, job={self.job!r})"

    def use(self, session: "SparkSession", *, streaming: bool) -> None:
        """Keep the batches of a shuffle from now on.

        The shuffle is about to become part of a plan.
        """
        if self._route is None:
            self._route = route_between_nodes(session)
        self._heartbeat.use(session, streaming=streaming)

    def stop(self) -> None:
        """Stop the application's heartbeat. Its batches expire when the retention is over."""
        self._heartbeat.stop()

    def repartition(
        self,
        df: "DataFrame",
        partitions: int,
        *keys: "str | Column",
        observe: "Observation | str | None" = None,
    ) -> "DataFrame":
        """Repartition rows as `df.repartition(partitions, *keys)` does.

        The same rows are in the same partitions. Without keys, rows are dealt out in turn; rows of a stream go
        by a hash of all their columns. `observe` receives metrics of the shuffle, as with `df.observe`: an
        `Observation`, or a name under which the progress of a stream shows them.
        """
        schema = numbered_schema(df.schema)
        rows = self._notifications(df, partitions, list(keys), observe, tuple(schema.names)).mapInArrow(
            ReduceSide(self.plan(partitions)).__call__, schema
        )
        return cast_to(rows, df.schema)

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
        """Apply a function to each partition.

        It receives the rows as Arrow batches and returns others.

        The function runs where the rows are read, so only its results go through the JVM. `schema` is the schema of the
        results, by default that of the DataFrame. The function sees year-month intervals and calendar intervals as
        text.
        """
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
        """Group rows as `df.groupBy(*keys)` does; `.agg(…)` on the result aggregates.

        A key may be a `window`.

        The groups of a stream continue from one micro-batch to the next. Output mode `update` emits the groups that
        have changed, `append` emits each group once when the watermark of the stream (`withWatermark`) has passed it,
        and `complete` emits all groups. Write the result with a checkpoint, which names the state in the store. Several
        aggregations of one query need a `name` each. `versions_kept` is the number of micro-batches whose state is
        kept.
        """
        check_shuffle(list(keys), partitions)
        check_stateful(output_mode, name, versions_kept)

        def run(planned: PlannedAggregation) -> "DataFrame":
            state = None
            if df.isStreaming:
                check_watermark(output_mode, planned.aggregation)
                fingerprint = fingerprint_of(planned.aggregation, partitions, output_mode)
                state = StateSettings(name, output_mode, versions_kept, fingerprint)
            self.use(df.sparkSession, streaming=df.isStreaming)
            plan = self.plan(partitions)
            mapped = DataFrameMap(AggregatingMap(plan, planned.aggregation, state), planned.has_event_time)
            exchanged = planned.rows.mapInArrow(mapped.__call__, f"{NOTIFICATION_DDL}, {SUMMARY} binary")
            rows = exchanged.repartitionById(partitions, "partition").mapInArrow(
                AggregatingReduce(plan, planned.aggregation, state).__call__, carried_schema(planned.result)
            )
            return rows if rows.schema == planned.result else cast_to(rows, planned.result)

        return GroupedShuffle(df, keys, partitions, run)

    def pipeline(
        self, options: Mapping[str, str] | None = None, *, session: "SparkSession | None" = None, **more: object
    ) -> "Pipeline":
        """Aggregate from one Braidlog topic to another, with rows in Python only.

        Only notifications enter the JVM. `options` are those of `spark.read.format("braidlog")`.
        """
        from pyspark.sql import SparkSession

        from braidlog.spark.shuffle.pipeline.builder import Pipeline

        session = session or SparkSession.getActiveSession()
        if session is None:
            raise JobError("there is no Spark session", help="Create one first: create_session().")
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
        """Apply a function to each pair of partitions of two DataFrames.

        The DataFrames have the keys in common. The function may join them, for example. The function receives
        the rows of both sides, left and right. A side without rows in the partition is an empty iterator.
        """
        names = [keys] if isinstance(keys, str) else keys
        check_shuffle(names, partitions)
        check_same_kinds(left, right, names)
        from pyspark.sql import functions

        sides = [
            self._batched(df, partitions, list(names)).withColumn(SIDE_COLUMN, functions.lit(number))
            for number, df in enumerate((left, right))
        ]
        exchanged = sides[0].union(sides[1]).repartitionById(partitions, "partition")
        return exchanged.mapInArrow(CogroupedSide(self.plan(partitions), function).__call__, schema)

    def join(
        self, left: "DataFrame", right: "DataFrame", partitions: int, keys: "str | list[str]", how: str = "inner"
    ) -> "DataFrame":
        """Join as `left.join(right, keys, how)` does.

        The keys are names of columns that both DataFrames have.

        The right side of each partition is held in memory, so put the smaller DataFrame there.
        """
        names = [keys] if isinstance(keys, str) else keys
        joiner, result = plan_join(left, right, names, how)
        quoted = [f"`{name.replace('`', '``')}`" for name in names]
        rows = self.cogroup(left, right, partitions, quoted, joiner.__call__, numbered_schema(result))
        return cast_to(rows, result)

    def _notifications(
        self,
        df: "DataFrame",
        partitions: int,
        keys: "list[str | Column]",
        observe: "Observation | str | None",
        names: tuple[str, ...] = (),
    ) -> "DataFrame":
        """Return the notifications behind the exchange.

        It is the only exchange in the plan.
        """
        return self._batched(df, partitions, keys, observe, names).repartitionById(partitions, "partition")

    def _batched(
        self,
        df: "DataFrame",
        partitions: int,
        keys: "list[str | Column]",
        observe: "Observation | str | None" = None,
        names: tuple[str, ...] = (),
    ) -> "DataFrame":
        """Return the notifications of the map side.

        `names` are the names of the columns in the store, by default their own.
        """
        from pyspark.sql.types import IntegerType, StructField, StructType

        check_partitions(partitions)
        self.use(df.sparkSession, streaming=df.isStreaming)
        schema = StructType([*carried_schema(df.schema), StructField("partition", IntegerType())])
        # Spark refuses to pass columns with unusual names to Python, so names travel with the plan instead.
        plain = [f"c{number}" for number in range(len(schema))]
        rows = cast_to(partitioned(df, partitions, keys), schema, plain)
        found = rows.mapInArrow(MapSide(self.plan(partitions), names or tuple(df.columns)).__call__, NOTIFICATION_DDL)
        if observe is not None:
            found = observed(found, self._template.zones, observe)
        return found

    def bills(self, metrics: Mapping[str, Any], price: Price | None = None) -> dict[str, Bill]:
        """Compute the bill of an observed shuffle, and of its alternatives.

        The alternatives are Spark's own shuffle and a Kafka topic. They count traffic between zones only. Prices are
        those of the store, unless others are given.
        """
        return bills(metrics, self._store_url, self.usage(), zones=len(self._template.zones), price=price)

    def usage(self) -> ShuffleUsage | None:
        """Return what all shuffles of this application have really used so far.

        None if that is not measured, as with a folder as the store.
        """
        if not self._template.uses_node:
            return None
        with readable_errors("shuffle"):
            worker = python_worker(self._store_url)
            return worker.loop.run(self._usage(worker))

    async def _usage(self, worker: PythonWorker) -> ShuffleUsage:
        found = await current_usage(
            worker.store, self.job, self._secret, clock=worker.clock, entropy=worker.entropy.fork("usage")
        )
        plan = self.plan(1)
        if plan.node_settings.ring is None:  # nodes without a ring are known to their own tasks alone
            statistics = await (await worker.node_service(plan.node_settings)).statistics()
            found += statistics.usage if statistics is not None else ShuffleUsage()
        return found

    def plan(self, partitions: int) -> ShufflePlan:
        """Return the plan that tasks of a shuffle with this many partitions receive."""
        ring = RingSettings(self._secret, self._route) if self._route else None
        return replace(self._template, partitions=partitions, ring=ring)


def route_between_nodes(session: "SparkSession") -> str:
    """Return a host that all nodes reach: the driver's.

    Empty: there is one node only, or it is not known.
    """
    try:
        master: str = session.sparkContext.master or ""
    except Exception:  # noqa: BLE001 - over Spark Connect there is no context, and the class of the error varies
        return ""
    if master.startswith("local") and not master.startswith("local-cluster"):
        return ""
    return session.conf.get("spark.driver.host", "") or ""
