"""Versions of a state in a store: any process reads them, and the first attempt decides."""

import asyncio
import random
from collections import defaultdict

import msgspec
import pyarrow as pa
import pytest
from tests.fakes import FakeClock

from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.clock import SystemClock
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle.aggregate.merge import Merge, merge_into
from braidlog.spark.shuffle.aggregate.state_store import (
    BatchInput,
    BatchRecord,
    StateStore,
    WarmStates,
    next_record,
    next_watermark,
    state_folder,
)
from braidlog.spark.shuffle.expiry.expire import expire_states

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
    first = next_record(None, 0, BatchInput(10, frozenset({1})), None, partitions=2, fingerprint="f")
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
    assert next_watermark(None, 5) is None
    assert next_watermark(record, 5) is None
    record = msgspec.structs.replace(record, event_us_max=10_000_999)
    assert next_watermark(record, 1_000_000) == 9_000_000
    assert next_watermark(msgspec.structs.replace(record, watermark_us=9_500_000), 1_000_000) == 9_500_000
