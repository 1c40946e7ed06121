"""Carries column types that Spark cannot pass to Python.

They travel as text, and are cast back afterwards.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.spark.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_SEED = 42
"""The seed of every hash by which Spark partitions."""


def carried_schema(schema: "StructType") -> "StructType":
    """Return the schema in which rows travel.

    It equals `schema` if all types can be passed.
    """
    from pyspark.sql.types import StructType

    carried = _carried(schema)
    assert isinstance(carried, StructType)
    return carried


def arrow_schema(schema: "StructType") -> pa.Schema:
    """Return the Arrow schema in which Spark passes these columns to Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(carried_schema(schema), timezone="UTC")


def numbered_schema(schema: "StructType") -> "StructType":
    """Return the carried schema with numbered names.

    Spark accepts no duplicate names from Python.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [
            StructField(f"c{number}", each.dataType, each.nullable, each.metadata)
            for number, each in enumerate(carried_schema(schema))
        ]
    )


def cast_to(df: "DataFrame", schema: "StructType", names: Sequence[str] | None = None) -> "DataFrame":
    """Cast columns to the types of `schema`, and give them its names or others."""
    from pyspark.sql import functions

    # By position: names may occur twice, or have characters that the calls below would take for syntax.
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
    """Return the hash by which Spark itself partitions these keys."""
    from pyspark.sql import functions

    columns = [functions.col(key) if isinstance(key, str) else key for key in keys]
    if not any(has_collation(field.dataType) for field in df.select(*columns).schema):
        return functions.hash(*columns)
    # Text that is equal under a collation must have equal hashes. The function `hash` ignores collations, and what
    # Spark uses itself has no name in SQL.
    from pyspark.sql.classic.column import Column as ClassicColumn

    if not all(isinstance(column, ClassicColumn) for column in columns):
        raise JobError(
            "a key has a collation, which Spark Connect cannot hash",
            help="Use a key without one, for example lower(name).",
        )
    jvm: Any = df.sparkSession._jvm
    expressions = jvm.org.apache.spark.sql.classic.ExpressionUtils
    inputs = jvm.PythonUtils.toSeq([expressions.expression(cast(Any, column)._jc) for column in columns])
    hashed = jvm.org.apache.spark.sql.catalyst.expressions.CollationAwareMurmur3Hash(inputs, _SEED)
    return ClassicColumn(expressions.column(hashed))


def content_hashes(df: "DataFrame") -> "list[Column]":
    """Return two hashes over all columns. Together they tell different rows apart."""
    from pyspark.sql import functions

    columns = [
        functions.to_json(functions.struct(field.name)) if _is_unhashable(field.dataType) else functions.col(field.name)
        for field in df.schema
    ]
    return [functions.xxhash64(*columns), functions.hash(*columns)]


def _is_unhashable(kind: "DataType") -> bool:
    """Return whether Spark cannot hash this type: a map or a variant, at any depth."""
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, StructType):
        return any(_is_unhashable(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return _is_unhashable(kind.elementType)
    return isinstance(kind, MapType | VariantType)


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
