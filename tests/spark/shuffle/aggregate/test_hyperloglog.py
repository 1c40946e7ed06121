"""Sketches: about right, whatever the type of the values."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.aggregate.functions import Aggregate
from braidlog.spark.shuffle.aggregate.hyperloglog import entries_of, precision_of
from braidlog.spark.shuffle.aggregate.merge import merge_groups, merge_into


def partial(aggregate: Aggregate, rows: list[tuple[int, Any]]) -> pa.Table:
    values = pa.array([value for _, value in rows], aggregate.kind)
    keys = pa.array([key for key, _ in rows], pa.int64())
    return pa.table({"k": keys, "p": aggregate.partials(values, len(rows))[0]})


def results(aggregate: Aggregate, merged: pa.Table, kind: pa.DataType) -> dict[int, Any]:
    found = aggregate.finish([merged.column("p").combine_chunks()], kind)
    return dict(zip(merged.column("k").to_pylist(), found.to_pylist(), strict=True))


@pytest.mark.parametrize("count", [0, 1, 10, 300, 2_000, 50_000])
def test_a_sketch_is_about_right(count: int) -> None:
    """Always the same hashes, and so always the same estimate."""
    aggregate = Aggregate("approx_count_distinct", 0, pa.string(), precision_of(0.02))
    rows: list[tuple[int, Any]] = [(1, f"value {number}") for number in range(count)] + [(1, None), (2, None)]
    merges = {"p": aggregate.merges[0]}
    whole = merge_groups(partial(aggregate, rows), ["k"], merges)
    halves = [
        merge_groups(partial(aggregate, part), ["k"], merges) for part in (rows[: count // 2], rows[count // 3 :])
    ]
    joined, _ = merge_into(halves[0], halves[1], ["k"], merges)
    found = results(aggregate, whole, pa.int64())
    assert found[1] == pytest.approx(count, rel=0.06)
    assert found[2] == 0
    assert results(aggregate, joined, pa.int64()) == found
    assert max(len(each) for each in whole.column("p").to_pylist()) <= 1 << aggregate.precision


@pytest.mark.parametrize("kind", [pa.int32(), pa.float32(), pa.decimal128(38, 2), pa.bool_(), pa.date32(), pa.binary()])
def test_every_type_has_entries(kind: pa.DataType) -> None:
    values = pa.array([None, 0, 1], pa.int32())
    column = pa.array([None, b"a", b"b"]) if kind == pa.binary() else values.cast(kind, safe=False)
    entries = entries_of(column, 9).to_pylist()
    assert entries[0] is None
    assert entries[1] != entries[2]


def test_ranks_are_geometric() -> None:
    entries = entries_of(pa.array(np.arange(100_000)), 4).to_numpy(zero_copy_only=False)
    ranks = np.bincount(entries & 63)
    assert ranks[0] == 0
    assert ranks[1] == pytest.approx(50_000, rel=0.05)
    assert ranks[4] == pytest.approx(6_250, rel=0.1)


@pytest.mark.parametrize("error", [0.0, 1.0, -1.0, 0.0001])
def test_errors_that_cannot_be(error: float) -> None:
    with pytest.raises(JobError, match="relative error"):
        precision_of(error)


def test_precision_is_sparks() -> None:
    assert precision_of(0.05) == 9
