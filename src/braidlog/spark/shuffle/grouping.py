"""`shuffle.group_by(df, …).agg(…)`: from Spark's columns to an aggregation, and its plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregates import FUNCTIONS, Aggregate, supported
from braidlog.spark.shuffle.aggregation import Aggregation, EventTime
from braidlog.spark.shuffle.carrying import carried_schema, cast_to, has_collation, key_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

WINDOW_MARK = "spark.timeWindow"
SESSION_MARK = "spark.sessionWindow"
DELAY_MARK = "spark.watermarkDelayMs"
"""How Spark marks columns that are windows, and those that have a watermark."""

_EVENT_TIME = "__event_time"


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate function as somebody wrote it."""

    function: str
    argument: "Column | None"
    """None: all rows are counted."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Rows as the map side takes them, and what is to become of them."""

    rows: "DataFrame"
    aggregation: Aggregation
    has_event_time: bool
    result: "StructType"


class GroupedShuffle:
    """Use `BlobShuffle.group_by`."""

    def __init__(
        self,
        df: "DataFrame",
        keys: "Sequence[str | Column]",
        partitions: int,
        run: "Callable[[Planned], DataFrame]",
    ) -> None:
        self._df = df
        self._keys = keys
        self._partitions = partitions
        self._run = run

    def agg(self, *columns: "Column") -> "DataFrame":
        """A row for each group, with its keys and these aggregates, as `df.groupBy(…).agg(…)` has it."""
        result = self._df.groupBy(*self._keys).agg(*columns).schema
        planned = plan_aggregation(self._df, self._keys, columns, result, self._partitions)
        return self._run(planned)

    def count(self) -> "DataFrame":
        """The number of rows of each group, in the column `count`."""
        from pyspark.sql import functions

        return self.agg(functions.count("*").alias("count"))


def plan_aggregation(
    df: "DataFrame", keys: "Sequence[str | Column]", columns: "Sequence[Column]", result: "StructType", partitions: int
) -> Planned:
    from pyspark.sql import functions

    calls = [read_call(df, column) for column in columns]
    arguments = [call.argument for call in calls if call.argument is not None]
    key_names = [f"k{number}" for number in range(len(keys))]
    input_names = [f"i{number}" for number in range(len(arguments))]
    event_time = _event_time_of(df)
    chosen = [
        *(_as_column(key).alias(name) for key, name in zip(keys, key_names, strict=True)),
        *(argument.alias(name) for argument, name in zip(arguments, input_names, strict=True)),
        *([event_time.alias(_EVENT_TIME)] if event_time is not None else []),
    ]
    rows = df.select(*chosen)
    fields = list(rows.schema)[: len(keys)]
    for field in fields:
        _check_key(field)
    rows = rows.withColumns({field.name: _normal(field) for field in fields if _is_floating(field.dataType)})
    flat, windows, event_key = _flatten(fields)
    hashed = functions.pmod(key_hash(rows, list(key_names)), functions.lit(partitions))
    rows = rows.select(
        *(each.alias(f"f{number}") for number, each in enumerate(flat)),
        *input_names,
        *([_EVENT_TIME] if event_time is not None else []),
        hashed.alias("partition"),
    )
    kinds = arrow_schema(rows.schema)
    numbers = iter(range(len(flat), len(flat) + len(arguments)))
    aggregates = []
    for call in calls:
        number = None if call.argument is None else next(numbers)
        kind = pa.int64() if number is None else kinds.field(number).type
        aggregates.append(Aggregate(call.function, None if number is None else number - len(flat), kind))
    aggregation = Aggregation(
        tuple(kinds.types[: len(flat)]), tuple(aggregates), arrow_schema(result), tuple(windows), event_key
    )
    return Planned(cast_to(rows, carried_schema(rows.schema)), aggregation, event_time is not None, result)


def arrow_schema(schema: "StructType") -> pa.Schema:
    """As Spark hands columns to Python, those that it cannot as text."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(carried_schema(schema), timezone="UTC")


def read_call(df: "DataFrame", column: "Column") -> Call:
    """The function and its argument. Spark keeps columns as trees, whose leaves become columns again."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    if not isinstance(column, ClassicColumn):
        raise JobError("Spark Connect does not tell what an aggregate is", help="Use a session of the driver's own.")
    node: Any = cast(Any, column)._jc.node()
    while _kind_of(node) == "Alias":
        node = node.child()
    if _kind_of(node) != "UnresolvedFunction" or node.functionName().lower() not in FUNCTIONS:
        raise JobError(f"{column} is no aggregate function that a shuffle knows", help=supported())
    name = node.functionName().lower()
    arguments = node.arguments()
    if node.isDistinct() or arguments.size() != 1:
        raise JobError(f"{column}: {name} takes one argument here, and not distinct ones", help=supported())
    argument = arguments.apply(0)
    if _kind_of(argument) == "UnresolvedStar":
        return Call("count", None)
    jvm: Any = df.sparkSession._jvm
    return Call(FUNCTIONS[name], ClassicColumn(jvm.org.apache.spark.sql.Column(argument)))


def _kind_of(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name


def _as_column(key: "str | Column") -> "Column":
    from pyspark.sql import functions

    return functions.col(key) if isinstance(key, str) else key


def _check_key(field: "StructField") -> None:
    if SESSION_MARK in field.metadata:
        raise JobError("windows of sessions are not possible here", help="Use window(), or Spark's own groupBy.")
    if has_collation(field.dataType):
        raise JobError("a key has text with a collation", help="Use a key without one: lower(name), for example.")


def _is_floating(kind: "DataType") -> bool:
    from pyspark.sql.types import DoubleType, FloatType

    return isinstance(kind, DoubleType | FloatType)


def _normal(field: "StructField") -> "Column":
    """Zeros and NaNs that are equal have different bits."""
    from pyspark.sql import functions

    column = functions.col(field.name)
    nan = functions.lit(float("nan")).cast(field.dataType)
    zero = functions.lit(0.0).cast(field.dataType)
    return functions.when(functions.isnan(column), nan).when(column == zero, zero).otherwise(column)


def _event_time_of(df: "DataFrame") -> "Column | None":
    """The column by which a stream's event time is measured: the one with a watermark."""
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    if not df.isStreaming:
        return None
    marked = [field for field in df.schema if DELAY_MARK in field.metadata]
    # Of a window alone, the start is what its rows have surely reached.
    marked.sort(key=lambda field: isinstance(field.dataType, StructType))
    if not marked:
        return None
    name = f"`{marked[0].name.replace('`', '``')}`"
    return functions.col(f"{name}.start" if isinstance(marked[0].dataType, StructType) else name)


def _flatten(fields: "Sequence[StructField]") -> "tuple[list[Column], list[int], EventTime | None]":
    """Keys as columns: a window is two. Which of them are windows, and which tells when a group is over."""
    from pyspark.sql import functions

    flat: list[Column] = []
    windows: list[int] = []
    event_time: EventTime | None = None
    for field in fields:
        is_window = bool(field.metadata.get(WINDOW_MARK))
        if is_window:
            windows.append(len(flat))
            flat += [functions.col(f"{field.name}.start"), functions.col(f"{field.name}.end")]
        else:
            flat.append(functions.col(field.name))
        if DELAY_MARK in field.metadata and event_time is None:
            event_time = EventTime(len(flat) - 1, field.metadata[DELAY_MARK] * 1000)
    return flat, windows, event_time
