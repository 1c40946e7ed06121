"""Rows with equal keys become one, and are merged into a state."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregate.merge import Merge, merge_groups, merge_into, overlay

KEYS = ["k0"]


MERGES = {"p0": Merge.SUM}


def test_a_large_state_is_touched_where_it_must_be() -> None:
    state = pa.table({"k0": [f"{i}" for i in range(100)] + [None], "k1": [1] * 101, "p0": [0] * 101})
    news = pa.table({"k0": ["5", None, "new", "7"], "k1": [1, 1, 1, 2], "p0": [3, 4, 5, 6]})
    everything, touched = merge_into(state, news, ["k0", "k1"], MERGES)
    assert sorted(touched.column("p0").to_pylist()) == [3, 4, 5, 6]
    assert everything.num_rows == 103
    assert pc.sum(everything.column("p0")).as_py() == 18
    assert overlay(state, [touched], ["k0", "k1"]).num_rows == 103


def test_nested_keys_and_sums_that_do_not_fit() -> None:
    rows = pa.table(
        {
            "k0": pa.array([{"a": 1, "b": [1]}, {"a": 1, "b": [1]}, None, {"a": None, "b": None}, {"a": 1, "b": []}]),
            "p0": pa.array([2**62, 2**62 - 1, 1, 1, -5]),
        }
    )
    merged = merge_groups(rows, KEYS, MERGES)
    assert merged.num_rows == 4
    assert merged.column("k0").to_pylist()[0] == {"a": 1, "b": [1]}
    assert merged.column("p0").to_pylist()[0] == 2**63 - 1
    with pytest.raises(JobError, match="beyond 64 bits"):
        merge_groups(pa.concat_tables([rows, rows]), KEYS, MERGES)
