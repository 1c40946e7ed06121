"""Joins of Arrow rows, without Spark."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.spark.errors import JobError
from braidlog.spark.shuffle.join import joiner as joiner_module
from braidlog.spark.shuffle.join.joiner import Join, Joiner, JoinSide

LEFT = pa.schema({"x": pa.string(), "k": pa.int64()})
RIGHT = pa.schema({"k": pa.int64(), "y": pa.list_(pa.int64())})
ROWS = st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=12)


def joiner(how: Join) -> Joiner:
    fields = [pa.field("k", pa.int64()), pa.field("x", pa.string())]
    if how not in (Join.SEMI, Join.ANTI):
        fields.append(pa.field("y", pa.list_(pa.int64())))
    return Joiner(how, JoinSide(LEFT, (1,)), JoinSide(RIGHT, (0,)), pa.schema(fields))


def batches(rows: list[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), 3):
        yield pa.RecordBatch.from_pylist(rows[start : start + 3], schema)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr(sorted(row.items())))


def expected(how: Join, left: list[dict[str, Any]], right: list[dict[str, Any]]) -> list[dict[str, Any]]:
    pairs = [(mine, other) for mine in left for other in right if mine["k"] is not None and mine["k"] == other["k"]]
    met_left, met_right = {mine["x"] for mine, _ in pairs}, {other["y"][0] for _, other in pairs}
    if how in (Join.SEMI, Join.ANTI):
        return [{"k": row["k"], "x": row["x"]} for row in left if (row["x"] in met_left) is (how is Join.SEMI)]
    rows = [{"k": mine["k"], "x": mine["x"], "y": other["y"]} for mine, other in pairs]
    if how in (Join.LEFT, Join.OUTER):
        rows += [{**row, "y": None} for row in left if row["x"] not in met_left]
    if how in (Join.RIGHT, Join.OUTER):
        rows += [{**row, "x": None} for row in right if row["y"][0] not in met_right]
    return rows


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joiner_module, "CHUNK_ROWS", 4)
    monkeypatch.setattr(joiner_module, "RESULT_ROWS_MAX", 3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(Join)), ROWS, ROWS)
def test_every_kind_of_join(how: Join, left_keys: list[int | None], right_keys: list[int | None]) -> None:
    left = [{"x": str(number), "k": key} for number, key in enumerate(left_keys)]
    right = [{"k": key, "y": [number]} for number, key in enumerate(right_keys)]
    found = [row for batch in joiner(how)(batches(left, LEFT), batches(right, RIGHT)) for row in batch.to_pylist()]
    assert in_order(found) == in_order(expected(how, left, right))


KEYS = [
    pa.array(["a", "b", None]),
    pa.array([b"a", b"b", None]),
    pa.array([0.0, 1.5, None], pa.float32()),
    pa.array([0, 1, None]).cast(pa.decimal128(30, 2)),
    pa.array([True, False, None]),
    pa.array([0, 1, None], pa.int32()).cast(pa.date32()),
    pa.array([0, 1, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
    pa.array([0, 1, None], pa.int64()).cast(pa.duration("us")),
]


@pytest.mark.parametrize("keys", KEYS, ids=lambda keys: str(keys.type))
def test_keys_of_every_kind(keys: pa.Array) -> None:
    rows = pa.record_batch([keys], names=["k"])
    side = JoinSide(rows.schema, (0,))
    found = list(Joiner(Join.INNER, side, side, rows.schema)(iter([rows]), iter([rows])))
    assert sum(batch.num_rows for batch in found) == 2


def test_names_are_sparks() -> None:
    names = {"inner": "inner", "leftouter": "left", "left_outer": "left", "RIGHT": "right", "full": "outer"}
    names |= {"full_outer": "outer", "outer": "outer", "left_semi": "semi", "leftanti": "anti"}
    assert {name: Join.parse(name).value for name in names} == names
    with pytest.raises(JobError, match="no kind of join"):
        Join.parse("cross")
