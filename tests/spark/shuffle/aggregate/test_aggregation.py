"""Aggregations of Arrow rows, without Spark: partial rows and their results."""

import random
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.spark.shuffle.aggregate import aggregation as aggregation_module
from braidlog.spark.shuffle.aggregate.aggregation import Aggregation, PreAggregation
from braidlog.spark.shuffle.aggregate.functions import Aggregate


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.tuples(st.sampled_from("abc") | st.none(), st.integers(-9, 9) | st.none())), max_size=5))
def test_groups_do_not_depend_on_how_rows_come(batches: list[list[tuple[str | None, int | None]]]) -> None:
    kind = pa.int64()
    functions = ("count", "sum", "min", "max", "avg")
    result = pa.schema([("k", pa.string()), *((name, pa.float64() if name == "avg" else kind) for name in functions)])
    aggregation = Aggregation((pa.string(),), tuple(Aggregate(name, 0, kind) for name in functions), result)
    groups = PreAggregation(aggregation, lambda keys: np.zeros(len(keys[0]), dtype=np.int32))
    partial: list[pa.RecordBatch] = []
    for rows in batches:
        keys = [pa.array([key for key, _ in rows], pa.string())]
        values = [pa.array([value for _, value in rows], kind)]
        partial += [batch for batch, _ in groups.add(keys, values, len(rows))]
    partial += [batch for batch, _ in groups.finish()]
    found = {row["k"]: row for batch in aggregation.finish(aggregation.merge(partial)) for row in batch.to_pylist()}
    expected: dict[Any, list[int]] = {}
    for key, value in (row for rows in batches for row in rows):
        expected.setdefault(key, []).extend([] if value is None else [value])
    assert found.keys() == expected.keys()
    for key, numbers in expected.items():
        row = found[key]
        assert row["count"] == len(numbers)
        assert row["sum"] == (sum(numbers) if numbers else None)
        assert (row["min"], row["max"]) == ((min(numbers), max(numbers)) if numbers else (None, None))
        assert row["avg"] == (pytest.approx(sum(numbers) / len(numbers)) if numbers else None)


@pytest.mark.parametrize(("distinct", "rows_at_most"), [(5, 200), (20_000, 20_000)])
def test_rows_are_held_back_where_that_makes_fewer(
    monkeypatch: pytest.MonkeyPatch, distinct: int, rows_at_most: int
) -> None:
    monkeypatch.setattr(aggregation_module, "MERGED_ROWS", 100)
    monkeypatch.setattr(aggregation_module, "HELD_BYTES_MAX", 2000)
    kind = pa.int64()
    result = pa.schema([("k", kind), ("n", kind)])
    aggregation = Aggregation((kind,), (Aggregate("count", None, kind),), result)
    groups = PreAggregation(aggregation)
    chance = random.Random(distinct)
    expected: dict[int, int] = defaultdict(int)
    out: list[pa.RecordBatch] = []
    for size in (30, 70, 3000, 1, 900) * 4:
        keys = [chance.randrange(distinct) for _ in range(size)]
        for key in keys:
            expected[key] += 1
        chosen = pa.array([key % 7 for key in keys], pa.int32())
        for batch, partitions in groups.add([pa.array(keys, kind)], [], size, chosen):
            assert partitions.tolist() == [key % 7 for key in batch.column(0).to_pylist()]
            out.append(batch)
    out += [batch for batch, _ in groups.finish()]
    merged = aggregation.merge(out)
    assert dict(zip(*(column.to_pylist() for column in merged.columns), strict=True)) == expected
    assert groups.row_count == sum(expected.values())
    assert sum(batch.num_rows for batch in out) <= rows_at_most
