"""`shuffle.group_by(df, …).agg(…)`: makes an aggregation of Spark's columns.

It also makes the aggregation's plan.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregate.aggregation import Aggregation, EventTime
from braidlog.spark.shuffle.aggregate.functions import DISTINCT, FUNCTIONS, Aggregate, supported
from braidlog.spark.shuffle.aggregate.hyperloglog import precision_of
from braidlog.spark.shuffle.columns.carried_types import arrow_schema, carried_schema, cast_to, has_collation, key_hash

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

WINDOW_MARK = "spark.timeWindow"
SESSION_MARK = "spark.sessionWindow"
DELAY_MARK = "spark.watermarkDelayMs"
"""The metadata by which Spark marks columns that are windows or have a watermark."""

RELATIVE_ERROR_DEFAULT = 0.05
"""The default error of `approx_count_distinct`, as in Spark."""

_EVENT_TIME = "__event_time"


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate function as the user wrote it."""

    function: str
    argument: "Column | None"
    """None: the function counts rows."""
    precision: int = 0
    """The precision of an approximation."""


@dataclass(frozen=True, slots=True)
class PlannedAggregation:
    """The rows as the map side takes them, and their aggregation."""

    rows: "DataFrame"
    aggregation: Aggregation
    has_event_time: bool
    result: "StructType"


class GroupedShuffle:
    """A grouped DataFrame, as `BlobShuffle.group_by` returns it."""

    def __init__(
        self,
        df: "DataFrame",
        keys: "Sequence[str | Column]",
        partitions: int,
        run: "Callable[[PlannedAggregation], DataFrame]",
    ) -> None:
        self._df = df
        self._keys = keys
        self._partitions = partitions
        self._run = run

    def agg(self, *columns: "Column") -> "DataFrame":
        """Return one row per group, with its keys and these aggregates.

        The result equals that of `df.groupBy(…).agg(…)`.
        """
        result = self._df.groupBy(*self._keys).agg(*columns).schema
        planned = plan_aggregation(self._df, self._keys, columns, result, self._partitions)
        return self._run(planned)

    def count(self) -> "DataFrame":
        """Count the rows of each group, in the column `count`."""
        from pyspark.sql import functions

        return self.agg(functions.count("*").alias("count"))


def plan_aggregation(
    df: "DataFrame", keys: "Sequence[str | Column]", columns: "Sequence[Column]", result: "StructType", partitions: int
) -> PlannedAggregation:
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
        input_number = None if number is None else number - len(flat)
        aggregates.append(Aggregate(call.function, input_number, kind, call.precision))
    aggregation = Aggregation(
        tuple(kinds.types[: len(flat)]), tuple(aggregates), arrow_schema(result), tuple(windows), event_key
    )
    return PlannedAggregation(cast_to(rows, carried_schema(rows.schema)), aggregation, event_time is not None, result)


def read_call(df: "DataFrame", column: "Column") -> Call:
    """Read the function and its argument out of the expression tree of a column."""
    from pyspark.sql.classic.column import Column as ClassicColumn

    if not isinstance(column, ClassicColumn):
        raise JobError("Spark Connect does not show the parts of an aggregate", help="Use a classic Spark session.")
    node: Any = cast(Any, column)._jc.node()
    while _kind_of(node) == "Alias":
        node = node.child()
    if _kind_of(node) != "UnresolvedFunction" or node.functionName().lower() not in FUNCTIONS:
        raise JobError(f"{column} is not a supported aggregate function", help=supported())
    name = node.functionName().lower()
    arguments = [node.arguments().apply(number) for number in range(node.arguments().size())]
    jvm: Any = df.sparkSession._jvm
    inputs = [ClassicColumn(jvm.org.apache.spark.sql.Column(each)) for each in arguments]
    if node.isDistinct() and name in DISTINCT:
        return Call(DISTINCT[name], _together(inputs))
    if name == "approx_count_distinct" and len(arguments) == 2 and _kind_of(arguments[1]) == "Literal":
        return Call(name, inputs[0], precision_of(float(arguments[1].value())))
    if node.isDistinct() or len(arguments) != 1:
        raise JobError(f"{column}: {name} takes one argument here, without distinct", help=supported())
    if _kind_of(arguments[0]) == "UnresolvedStar":
        return Call("count", None)
    precision = precision_of(RELATIVE_ERROR_DEFAULT) if name == "approx_count_distinct" else 0
    return Call(FUNCTIONS[name], inputs[0], precision)


def _together(columns: "Sequence[Column]") -> "Column":
    """Combine columns into one that is null where any of them is.

    Such rows are not counted.
    """
    from pyspark.sql import functions

    if len(columns) == 1:
        return columns[0]
    all_there = functools.reduce(operator.and_, (column.isNotNull() for column in columns))
    return functions.when(all_there, functions.struct(*columns))


def _kind_of(node: Any) -> str:
    name: str = node.getClass().getSimpleName()
    return name


def _as_column(key: "str | Column") -> "Column":
    from pyspark.sql import functions

    return functions.col(key) if isinstance(key, str) else key


def _check_key(field: "StructField") -> None:
    if SESSION_MARK in field.metadata:
        raise JobError("windows of sessions are not supported", help="Use window(), or Spark's own groupBy.")
    if has_collation(field.dataType):
        raise JobError("a key has a collation", help="Use a key without one, for example lower(name).")


def _is_floating(kind: "DataType") -> bool:
    from pyspark.sql.types import DoubleType, FloatType

    return isinstance(kind, DoubleType | FloatType)


def _normal(field: "StructField") -> "Column":
    """Make equal zeros and NaNs have equal bits."""
    from pyspark.sql import functions

    column = functions.col(field.name)
    nan = functions.lit(float("nan")).cast(field.dataType)
    zero = functions.lit(0.0).cast(field.dataType)
    return functions.when(functions.isnan(column), nan).when(column == zero, zero).otherwise(column)


def _event_time_of(df: "DataFrame") -> "Column | None":
    """Return the event time of a stream: the column with a watermark."""
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    if not df.isStreaming:
        return None
    marked = [field for field in df.schema if DELAY_MARK in field.metadata]
    # If only a window has the watermark, its start is a time that its rows have surely reached.
    marked.sort(key=lambda field: isinstance(field.dataType, StructType))
    if not marked:
        return None
    name = f"`{marked[0].name.replace('`', '``')}`"
    return functions.col(f"{name}.start" if isinstance(marked[0].dataType, StructType) else name)


def _flatten(fields: "Sequence[StructField]") -> "tuple[list[Column], list[int], EventTime | None]":
    """Flatten keys: a window becomes two columns.

    Also returns which are windows, and the event time key.
    """
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
