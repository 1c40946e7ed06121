"""What an aggregation's tasks compute and keep, without Spark: groups, windows, and versions of a state in a store."""

import asyncio
import random
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.clock import SystemClock
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle import aggregation as aggregation_module
from braidlog.spark.shuffle.aggregates import Aggregate
from braidlog.spark.shuffle.aggregation import Aggregation, PreAggregation
from braidlog.spark.shuffle.expiry import expire_states
from braidlog.spark.shuffle.groups import Merge, merge_groups, merge_into, overlay
from braidlog.spark.shuffle.state import (
    BatchInput,
    BatchRecord,
    StateStore,
    WarmStates,
    record_after,
    state_folder,
    watermark_after,
)
from braidlog.spark.shuffle.windows import Windows

KEYS = ["k0"]
MERGES = {"p0": Merge.SUM}
FOLDER = state_folder("query", "aggregation")


def counts(**values: int) -> pa.Table:
    return pa.table({"k0": pa.array(list(values), pa.string()), "p0": pa.array(list(values.values()), pa.int64())})


def as_dict(groups: pa.Table) -> dict[str, int]:
    found = dict(zip(groups.column("k0").to_pylist(), groups.column("p0").to_pylist(), strict=True))
    assert len(found) == groups.num_rows
    return found


class Bucket:
    """One store, and as many processes that use it as wanted."""

    def __init__(self) -> None:
        self.bucket = MemoryBucket()

    def process(self, *, versions_kept: int = 3, warm_bytes: int = 1 << 20) -> StateStore:
        store = MemoryStore(self.bucket, url="memory://", clock=SystemClock())
        return StateStore(store, FOLDER, KEYS, WarmStates(warm_bytes), versions_kept=versions_kept)

    async def names(self) -> list[str]:
        store = MemoryStore(self.bucket, url="memory://", clock=SystemClock())
        return [each.key.removeprefix(FOLDER) for each in (await store.list(FOLDER)).objects]


async def add(states: StateStore, batch: int, newest: int, **values: int) -> dict[str, int]:
    """A micro-batch's work on partition 0, and what it tells."""
    version = await states.load(0, newest) if newest >= 0 else None
    before = counts() if version is None else version.groups
    everything, changed = merge_into(before, counts(**values), KEYS, MERGES)
    other = await states.write(0, batch, version, changed, everything)
    return as_dict(changed if other is None else other.changed)


async def test_versions_are_read_by_any_process() -> None:
    bucket = Bucket()
    expected: dict[str, int] = defaultdict(int)
    processes = [bucket.process(), bucket.process(warm_bytes=0), bucket.process()]
    chance = random.Random(1)
    newest = -1
    for batch in range(60):
        states = chance.choice(processes)
        if batch % 7 == 3:
            continue  # a micro-batch without rows for this partition writes nothing
        values = {str(chance.randrange(200)): chance.randrange(9) for _ in range(20)}
        told = await add(states, batch, newest, **values)
        newest = batch
        for key, value in values.items():
            expected[key] += value
        assert told == {key: expected[key] for key in values}
        reader = chance.choice([*processes, bucket.process()])
        assert as_dict((await reader.load(0, newest)).groups) == expected
    assert len(await bucket.names()) < 45, "versions that nobody can need are still there"


async def test_every_kept_version_can_be_gone_back_to() -> None:
    bucket = Bucket()
    chance = random.Random(2)
    snapshots: dict[int, dict[str, int]] = {}
    states = bucket.process(versions_kept=5)
    for batch in range(50):
        values = {str(chance.randrange(1000)): 1 for _ in range(chance.choice([1, 300]))}
        await add(states, batch, batch - 1, **values)
        snapshots[batch] = as_dict((await states.load(0, batch)).groups)
        for past in range(max(0, batch - 5), batch):
            assert as_dict((await bucket.process().load(0, past)).groups) == snapshots[past]
    with pytest.raises(DataLoss, match="not in the store"):
        await bucket.process().load(0, 0)


async def test_the_first_attempt_decides() -> None:
    """Attempts that see other rows, as nobody should: all of them tell the same, and so does what comes later."""
    bucket = Bucket()
    processes = [bucket.process() for _ in range(4)]
    await add(processes[0], 0, -1, a=1)
    told = await asyncio.gather(*(add(states, 1, 0, a=10 * n, b=n) for n, states in enumerate(processes, 1)))
    assert len({tuple(sorted(each.items())) for each in told}) == 1
    after = [as_dict((await states.load(0, 1)).groups) for states in [*processes, bucket.process()]]
    assert all(each == after[0] for each in after)
    # Also after a restart.
    assert await add(bucket.process(), 1, 0, a=77) == told[0]
    assert len(await bucket.names()) == 2


async def test_a_batch_that_changed_is_refused() -> None:
    states = Bucket().process()
    first = record_after(None, 0, BatchInput(10, frozenset({1})), None, partitions=2, fingerprint="f")
    assert first.newest == [-1, 0]
    await states.write_batch(0, first)
    await states.write_batch(0, first)
    with pytest.raises(JobError, match="with other rows"):
        await states.write_batch(0, msgspec.structs.replace(first, row_count=11))
    for batch in range(1, 9):
        await states.write_batch(batch, first)
    assert await states.batch(8) == first


async def test_states_of_queries_that_do_not_run_go_when_asked_for() -> None:
    clock = FakeClock()
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    for query in ("idle", "running"):
        for number in range(600):
            await store.put(f"{state_folder(query, 'a')}00000/{number:010d}", b"version")
    await store.put("shuffle/job/heartbeat", b"not a state")
    clock.advance(3600)
    await store.put(f"{state_folder('running', 'a')}00001/0000000001", b"version")
    dry = await expire_states(store, retention_s=1800, clock=clock, dry_run=True)
    assert (dry.queries, dry.states_expired, dry.states_expired_bytes) == (2, 600, 600 * 7)
    assert await expire_states(store, retention_s=1800, clock=clock) == dry
    assert (await expire_states(store, retention_s=1800, clock=clock)).states_expired == 0
    left = [each.key for each in (await store.list("", limit=2000)).objects]
    assert len(left) == 602
    assert not any("idle" in key for key in left)


async def test_damage_is_found() -> None:
    bucket = Bucket()
    await add(bucket.process(), 0, -1, a=1)
    store = MemoryStore(bucket.bucket, url="memory://", clock=SystemClock())
    key = f"{FOLDER}00000/0000000000"
    data = bytearray((await store.get(key)).data)
    for changed in (data[:-1], data[:10], bytes(len(data))):
        await store.put(key, bytes(changed), overwrite=True)
        with pytest.raises(DataLoss, match="damaged"):
            await bucket.process().load(0, 0)


def test_the_watermark_never_goes_back() -> None:
    record = BatchRecord([], 0, None, None, "")
    assert watermark_after(None, 5) is None
    assert watermark_after(record, 5) is None
    record = msgspec.structs.replace(record, event_us_max=10_000_999)
    assert watermark_after(record, 1_000_000) == 9_000_000
    assert watermark_after(msgspec.structs.replace(record, watermark_us=9_500_000), 1_000_000) == 9_500_000


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


def test_windows_overlap_and_have_offsets() -> None:
    times = pa.array([0, 7_000_000, None, -1], pa.timestamp("us", "UTC"))
    rows, starts, ends = Windows(10_000_000, 5_000_000, 2_000_000).assign(times)
    assert rows is not None
    assert rows.tolist() == [0, 0, 1, 1, 3, 3]
    assert starts.cast(pa.int64()).to_pylist() == [each * 1_000_000 for each in (-3, -8, 7, 2, -3, -8)]
    assert pc.subtract(ends, starts).cast(pa.int64()).unique().to_pylist() == [10_000_000]
    rows, starts, _ = Windows(5_000_000, 5_000_000).assign(times.drop_null())
    assert rows is None
    assert starts.cast(pa.int64()).to_pylist() == [0, 5_000_000, -5_000_000]
    for wrong in ((0, 1, 0), (1, 2, 0), (10, 5, 5), (10_000, 1, 0)):
        with pytest.raises(JobError):
            Windows(*wrong)
