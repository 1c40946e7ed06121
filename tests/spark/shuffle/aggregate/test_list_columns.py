"""Lists of collected values: the order of merging makes no difference."""

import math
from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.spark.shuffle.aggregate.functions import Aggregate
from braidlog.spark.shuffle.aggregate.merge import merge_groups, merge_into

ROWS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(-3, 3))), max_size=30)


def partial(aggregate: Aggregate, rows: list[tuple[int, Any]]) -> pa.Table:
    values = pa.array([value for _, value in rows], aggregate.kind)
    keys = pa.array([key for key, _ in rows], pa.int64())
    return pa.table({"k": keys, "p": aggregate.partials(values, len(rows))[0]})


def results(aggregate: Aggregate, merged: pa.Table, kind: pa.DataType) -> dict[int, Any]:
    found = aggregate.finish([merged.column("p").combine_chunks()], kind)
    return dict(zip(merged.column("k").to_pylist(), found.to_pylist(), strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_what_is_collected_is_what_there_was(parts: list[list[tuple[int, int | None]]]) -> None:
    everything = [row for part in parts for row in part]
    expected: dict[int, Counter[int]] = {key: Counter() for key, _ in everything}
    for key, value in everything:
        if value is not None:
            expected[key][value] += 1
    for function, kind in (
        ("collect_list", pa.list_(pa.int64())),
        ("collect_set", pa.list_(pa.int64())),
        ("count_distinct", pa.int64()),
    ):
        aggregate = Aggregate(function, 0, pa.int64())
        merges = {"p": aggregate.merges[0]}
        state = partial(aggregate, []).slice(0, 0)
        for part in parts:
            news = merge_groups(partial(aggregate, part), ["k"], merges)
            state, touched = merge_into(state, news, ["k"], merges)
            assert set(touched.column("k").to_pylist()) == {key for key, _ in part}
        found = results(aggregate, state, kind)
        if function == "collect_list":
            assert {key: Counter(values) for key, values in found.items()} == expected
        elif function == "collect_set":
            assert {key: sorted(values) for key, values in found.items()} == {
                key: sorted(values) for key, values in expected.items()
            }
        else:
            assert found == {key: len(values) for key, values in expected.items()}


def test_values_that_spark_takes_for_equal_are_one() -> None:
    aggregate = Aggregate("count_distinct", 0, pa.float64())
    rows = [(1, 0.0), (1, -0.0), (1, math.nan), (1, -math.nan), (1, 2.5), (1, None)]
    merged = merge_groups(partial(aggregate, rows), ["k"], {"p": aggregate.merges[0]})
    assert results(aggregate, merged, pa.int64()) == {1: 3}
