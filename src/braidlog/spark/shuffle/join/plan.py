"""Plans a join of two DataFrames: which rows meet, and the columns of the result."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.columns.carried_types import arrow_schema, numbered_schema
from braidlog.spark.shuffle.join.joiner import Join, Joiner, JoinSide

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def check_same_kinds(left: "DataFrame", right: "DataFrame", names: Sequence[str]) -> None:
    kinds = [[field.dataType for field in df.select(*names).schema] for df in (left, right)]
    if kinds[0] != kinds[1]:
        raise JobError(
            f"the keys {', '.join(names)} are {kinds[0]} on the left and {kinds[1]} on the right",
            help="Equal keys of different types have different hashes: cast one side.",
        )


def plan_join(left: "DataFrame", right: "DataFrame", names: Sequence[str], how: str) -> "tuple[Joiner, StructType]":
    """Plan a join: returns what its tasks run, and the schema of its result."""
    kind = Join.parse(how)
    if left.isStreaming or right.isStreaming:
        raise JobError(
            "a stream cannot be joined here: a row would not find matches in other micro-batches",
            help="Join in foreachBatch, or use Spark's own join.",
        )
    result = left.join(right, list(names), kind.value).schema
    joiner = Joiner(kind, _side(left, names), _side(right, names), arrow_schema(numbered_schema(result)))
    return joiner, result


def _side(df: "DataFrame", names: Sequence[str]) -> JoinSide:
    lowered = [column.lower() for column in df.columns]
    keys = tuple(
        df.columns.index(name) if name in df.columns else lowered.index(name.lower())  # as Spark finds them
        for name in names
    )
    schema = arrow_schema(df.schema)
    for key in keys:
        if pa.types.is_nested(schema.field(key).type):
            raise JobError(
                f"the key {df.columns[key]} is {df.schema[key].dataType.simpleString()}",
                help="Join by its parts, each in a column of its own, or by to_json of it.",
            )
    return JoinSide(schema, keys)
