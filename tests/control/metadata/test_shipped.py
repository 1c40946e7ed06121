"""The copy of the metadata in the bucket: what is in it, when, and who may still answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest
from tests.control.driver import batch, commit, create_topic
from tests.control.transactions.driver import TransactionalProducer
from tests.fakes import FakeClock

from braidlog.control.interface import DeleteRecords, DeleteTopics, DescribeCluster, InitProducerId, TopicInfo, TopicRef
from braidlog.control.metadata import shipped
from braidlog.control.metadata.copies import CopyLog
from braidlog.control.metadata.copy_reader import LoadedCopy, load_copy
from braidlog.control.metadata.counters import write_counter
from braidlog.control.metadata.increments import COPY_PREFIX, increments_prefix, restore_key
from braidlog.control.metadata.shipped import LEASE_S, with_copy
from braidlog.control.metadata.sqlite import SqliteMetadata
from braidlog.control.metadata.store import MetadataDamaged, MetadataError, MetadataUnavailable, Transaction
from braidlog.control.metadata.tables import tables_of
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.control.store_owner import WrongStore
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import StoreUnavailable
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import Fenced

INTERVAL_S = 10.0


class Cluster:
    """One control plane over a SQLite file with a copy in memory."""

    def __init__(self, folder: Path, bucket: MemoryBucket | None = None, clock: FakeClock | None = None) -> None:
        self.folder = folder
        self.clock = clock or FakeClock(sleepers_wait=True)
        self.bucket = bucket or MemoryBucket()
        self.store = MemoryStore(self.bucket, url="memory://", clock=self.clock)

    async def start(self) -> "Cluster":
        inner = await SqliteMetadata.open(str(self.folder / "metadata.db"))
        self.metadata = with_copy(inner, self.store, self.clock, SeededEntropy("copy"), interval_s=INTERVAL_S)
        self.service = ControlService(
            self.metadata, self.store, self.clock, SeededEntropy("control"), ControlSettings()
        )
        await self.service.start()
        return self

    async def stop(self) -> None:
        await self.service.close()

    async def load(self) -> LoadedCopy:
        copies = CopyLog(self.store, self.clock, SeededEntropy("read"))
        found = await load_copy(copies, self.folder / "loaded.db")
        assert found is not None
        return found

    def rows(self, name: str) -> dict[str, list[object]]:
        connection = apsw.Connection(str(self.folder / name))
        found = {table.name: connection.execute(table.select).fetchall() for table in tables_of(connection)}
        connection.close()
        return {name: sorted(rows, key=repr) for name, rows in found.items()}

    def increments(self) -> list[str]:
        return [key for key in self.bucket.keys if key.startswith(increments_prefix(0))]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = await Cluster(tmp_path).start()
    yield cluster
    await cluster.stop()


async def write(cluster: Cluster, topic: TopicInfo, count: int = 3) -> None:
    for _ in range(count):
        await commit(cluster.service, topic, [batch(2)])


def add_fact(name: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.execute("INSERT INTO facts (name, value) VALUES (?, '')", (name,))


async def test_the_copy_has_every_row_once_it_is_shipped(cluster: Cluster) -> None:
    topic = await create_topic(cluster.service)
    await write(cluster, topic)
    await cluster.metadata.copied()
    loaded = await cluster.load()
    assert loaded.damage == ""
    assert cluster.rows("loaded.db") == cluster.rows("metadata.db")


async def test_what_footers_cannot_give_back_is_in_the_bucket_before_it_is_told(cluster: Cluster) -> None:
    topic = await create_topic(cluster.service, "events", 2)
    await write(cluster, topic)
    producer = TransactionalProducer(cluster.service, version=1)
    await producer.init()

    async def in_copy(*tables: str) -> bool:
        await cluster.load()
        copied, own = cluster.rows("loaded.db"), cluster.rows("metadata.db")
        return all(copied[table] == own[table] for table in tables)

    await create_topic(cluster.service, "second")
    assert await in_copy("topics", "partitions")
    await cluster.service.delete_records(DeleteRecords(topic.partition_ids[0], 2))
    assert await in_copy("partitions")
    for ends_well in (True, False):
        await producer.begin(topic, 0, 1)
        assert await producer.end(commit=ends_well) == 0
        assert await in_copy("transactional_ids", "transaction_partitions", "aborted_transactions", "recent_objects")
    await cluster.service.init_producer_id(InitProducerId(None, 0))
    assert await in_copy("counters")
    await cluster.service.delete_topics(DeleteTopics([TopicRef("second")]))
    assert await in_copy("topics", "partitions")


async def test_sequenced_objects_do_not_wait_for_the_copy_but_it_follows(cluster: Cluster) -> None:
    topic = await create_topic(cluster.service)
    before = len(cluster.increments())
    await write(cluster, topic, 5)
    assert len(cluster.increments()) == before
    assert cluster.metadata.copy_age_s == 0.0
    cluster.clock.advance(INTERVAL_S / 2)
    assert cluster.metadata.copy_age_s == INTERVAL_S / 2
    cluster.clock.advance(INTERVAL_S / 2)
    while len(cluster.increments()) == before:
        await asyncio.sleep(0)
    assert len(cluster.increments()) == before + 1  # one PUT for all of them
    found = (await cluster.service.describe_cluster(DescribeCluster())).copy
    assert (found.kind, found.trouble) == ("shipped", "")


async def test_a_restart_goes_on_with_the_same_copy(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path).start()
    topic = await create_topic(cluster.service)
    await write(cluster, topic)
    await cluster.stop()
    snapshots = [key for key in cluster.bucket.keys if "/snapshot/" in key]
    again = await Cluster(tmp_path, cluster.bucket, cluster.clock).start()
    await write(again, topic)
    await again.metadata.copied()
    assert [key for key in cluster.bucket.keys if "/snapshot/" in key] == snapshots
    await again.load()
    assert again.rows("loaded.db") == again.rows("metadata.db")
    await again.stop()


async def test_a_crash_before_shipping_makes_a_snapshot_at_the_next_start(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path).start()
    topic = await create_topic(cluster.service)
    await write(cluster, topic)
    await cluster.metadata._tasks.cancel_all()  # as if it had died before it shipped
    await cluster.stop()
    again = await Cluster(tmp_path, cluster.bucket, cluster.clock).start()
    await again.metadata.copied()
    await again.load()
    assert again.rows("loaded.db") == again.rows("metadata.db")
    await again.stop()


async def test_snapshots_bound_the_increments_and_old_ones_are_trimmed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "SNAPSHOT_INCREMENTS", 3)
    topic = await create_topic(cluster.service)
    for _ in range(20):
        await write(cluster, topic, 1)
        await cluster.metadata.copied()
    assert len(cluster.increments()) <= 8
    assert len([key for key in cluster.bucket.keys if "/snapshot/" in key]) == 2
    await cluster.load()
    assert cluster.rows("loaded.db") == cluster.rows("metadata.db")


async def test_too_much_to_ship_becomes_a_snapshot(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await create_topic(cluster.service)
    monkeypatch.setattr(shipped, "PENDING_BYTES_MAX", 500)
    await write(cluster, topic, 10)
    await cluster.metadata.copied()
    await cluster.load()
    assert cluster.rows("loaded.db") == cluster.rows("metadata.db")


async def test_a_damaged_increment_ends_the_copy_and_is_told(cluster: Cluster) -> None:
    topic = await create_topic(cluster.service)
    await write(cluster, topic, 1)
    await cluster.metadata.copied()
    first = await cluster.load()
    await write(cluster, topic, 1)
    await cluster.metadata.copied()
    key = cluster.increments()[-1]
    data = bytearray((await cluster.store.get(key)).data)
    data[-1] ^= 1
    await cluster.store.put(key, bytes(data), overwrite=True)
    loaded = await cluster.load()
    assert "damaged" in loaded.damage
    assert loaded.position == first.position
    for name in [each for each in cluster.bucket.keys if each.startswith(COPY_PREFIX)]:
        await cluster.store.put(name, b"nothing", overwrite=True)
    with pytest.raises(MetadataDamaged):
        await cluster.load()


async def test_a_restore_fences_whoever_still_runs_after_the_lease(cluster: Cluster) -> None:
    topic = await create_topic(cluster.service)
    await cluster.store.put(restore_key(1), b"")
    await write(cluster, topic, 1)  # within the lease: the restore waits longer than that
    cluster.clock.advance(LEASE_S)
    with pytest.raises(Fenced, match="restore"):
        await write(cluster, topic, 1)
    with pytest.raises(Fenced):
        await cluster.service.describe_cluster(DescribeCluster())
    assert cluster.service.fenced.is_set()


async def test_replaced_metadata_does_not_start_again(tmp_path: Path) -> None:
    cluster = await Cluster(tmp_path).start()
    await create_topic(cluster.service)
    await cluster.stop()
    await cluster.store.put(restore_key(1), b"")
    with pytest.raises(WrongStore, match="restore 1"):
        await Cluster(tmp_path, cluster.bucket, cluster.clock).start()


async def test_without_the_store_nothing_is_answered_after_the_lease(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_topic(cluster.service)

    async def away(_key: str) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(cluster.store, "head", away)
        await write(cluster, topic, 1)
        cluster.clock.advance(LEASE_S)
        with pytest.raises(MetadataUnavailable, match="restored elsewhere"):
            await write(cluster, topic, 1)
    await write(cluster, topic, 1)


async def test_what_is_dropped_while_a_snapshot_is_made_needs_another_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(cluster.service)
    inner = cluster.metadata._inner
    dump = inner.dump

    async def slow_dump() -> bytes:
        content = await dump()
        monkeypatch.setattr(inner, "dump", dump)
        monkeypatch.setattr(shipped, "PENDING_BYTES_MAX", 1)
        for name in ("dropped", "dropped too"):
            await cluster.metadata.plan(add_fact(name))
        return content

    monkeypatch.setattr(inner, "dump", slow_dump)
    cluster.metadata._needs_snapshot = True
    await cluster.metadata.plan(add_fact("shipped"))
    await cluster.metadata.copied()
    monkeypatch.undo()
    await create_topic(cluster.service, "second")
    loaded = await cluster.load()
    assert loaded.damage == ""
    assert cluster.rows("loaded.db") == cluster.rows("metadata.db")


async def test_transactions_whose_outcomes_are_learned_out_of_order_are_all_in_the_copy(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_topic(cluster.service)
    inner = cluster.metadata._inner
    plan, learned = inner.plan, asyncio.Event()

    async def plan_late(fn: Callable[[Transaction], int]) -> int:
        monkeypatch.setattr(inner, "plan", plan)
        result = await plan(fn)
        await learned.wait()
        return result

    monkeypatch.setattr(inner, "plan", plan_late)
    late = asyncio.create_task(cluster.metadata.plan(add_fact("first")))
    await asyncio.sleep(0)
    await cluster.metadata.plan(add_fact("second"))
    learned.set()
    await late
    await cluster.metadata.copied()
    loaded = await cluster.load()
    assert loaded.damage == ""
    assert cluster.rows("loaded.db") == cluster.rows("metadata.db")


async def test_not_too_much_is_planned_while_the_copy_cannot_be_written(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_key: str, _data: bytes) -> bool:
        raise MetadataError("the bucket is full")

    monkeypatch.setattr(shipped, "AHEAD_MAX", 3)
    with monkeypatch.context() as patched:
        patched.setattr(cluster.metadata._copies, "write", refuse)
        for number in range(3):
            await cluster.metadata.plan(lambda tx, number=number: write_counter(tx, "producer_id", number))
        with pytest.raises(MetadataError, match="wait for the copy"):
            await cluster.metadata.plan(lambda tx: write_counter(tx, "producer_id", 4))
        while not cluster.metadata.copy_trouble:
            await asyncio.sleep(0)
    cluster.clock.advance(INTERVAL_S)
    await cluster.metadata.durable()
