"""Column types that Spark cannot hand to Python travel as text, and become themselves again behind the shuffle."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from braidlog.spark.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_SEED = 42
"""Of every hash by which Spark partitions."""


def carried_schema(schema: "StructType") -> "StructType":
    """The schema in which rows travel. It equals `schema` where nothing needs carrying."""
    from pyspark.sql.types import StructType

    carried = _carried(schema)
    assert isinstance(carried, StructType)
    return carried


def cast_to(df: "DataFrame", schema: "StructType", names: Sequence[str] | None = None) -> "DataFrame":
    """The same columns as the types of `schema`, with its names or with others."""
    from pyspark.sql import functions

    # By position: names may occur twice, and have characters that the calls below would take for syntax.
    numbered = df.toDF(*(f"c{number}" for number in range(len(schema))))
    columns = [
        functions.col(have.name)
        if have.dataType == wanted.dataType
        else functions.col(have.name).cast(wanted.dataType).alias(have.name)
        for have, wanted in zip(numbered.schema, schema, strict=True)
    ]
    numbered = numbered.select(*columns)
    return numbered.toDF(*(schema.names if names is None else names))


def key_hash(df: "DataFrame", keys: "Sequence[str | Column]") -> "Column":
    """The hash by which Spark itself partitions these keys."""
    from pyspark.sql import functions

    columns = [functions.col(key) if isinstance(key, str) else key for key in keys]
    if not any(has_collation(field.dataType) for field in df.select(*columns).schema):
        return functions.hash(*columns)
    # Text that a collation takes for equal must have one hash. The function `hash` does not care; what Spark uses
    # for itself has no name in SQL.
    from pyspark.sql.classic.column import Column as ClassicColumn

    if not all(isinstance(column, ClassicColumn) for column in columns):
        raise JobError(
            "a key has text with a collation, which Spark Connect cannot hash",
            help="Use a key without one: lower(name), for example.",
        )
    jvm: Any = df.sparkSession._jvm
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    inputs = jvm.PythonUtils.toSeq([expressions.expression(cast(Any, column)._jc) for column in columns])
    hashed = jvm.org.apache.spark.sql.catalyst.expressions.CollationAwareMurmur3Hash(inputs, _SEED)
    return ClassicColumn(expressions.column(hashed))


def _carried(kind: "DataType") -> "DataType":
    from pyspark.sql.types import (
        ArrayType,
        CalendarIntervalType,
        MapType,
        StringType,
        StructField,
        StructType,
        YearMonthIntervalType,
    )

    if isinstance(kind, CalendarIntervalType | YearMonthIntervalType):
        return StringType()
    if isinstance(kind, StructType):
        return StructType(
            [StructField(each.name, _carried(each.dataType), each.nullable, each.metadata) for each in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_carried(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_carried(kind.keyType), _carried(kind.valueType), kind.valueContainsNull)
    return kind


def _is_collated(kind: "DataType") -> bool:
    from pyspark.sql.types import StringType

    return isinstance(kind, StringType) and getattr(kind, "collation", "UTF8_BINARY") != "UTF8_BINARY"


def has_collation(kind: "DataType") -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, StructType):
        return any(has_collation(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return has_collation(kind.elementType)
    return _is_collated(kind)
