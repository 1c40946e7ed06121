"""What a task does when the log changes between the plan and the read. Spark itself is not needed for it."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition
from tests.spark.log_driver import Braid
from tests.spark.readers import batch_reader, read

from braidlog.control.interface import COMPACT, RequestCompaction
from braidlog.control.remote import connect_control
from braidlog.jobs.rounds import LocalEngine, RoundExecutor
from braidlog.jobs.worker import Worker
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.source.readers import LogTask


def delete_objects(braid: Braid, tasks: Iterable[InputPartition]) -> None:
    """As the sweeper does when nothing points to them any more."""
    keys = {piece.key for task in tasks if isinstance(task, LogTask) for each in task.slices for piece in each.pieces}
    assert keys
    for key in keys:
        (braid.cluster.store_path / key).unlink()


async def compact(braid: Braid, topic: str) -> None:
    clock, entropy = SystemClock(), SystemEntropy()
    control = connect_control(braid.control.address, clock, entropy)
    store = open_store(braid.cluster.store_url, clock=clock, entropy=entropy)
    requested = await control.request_compaction(RequestCompaction(topic), timeout_s=60)
    assert requested.error_code == 0
    executor = RoundExecutor(LocalEngine(store, clock, entropy), store, entropy)
    worker = Worker(control, executor, clock, entropy, name="test", kinds=[COMPACT])
    while await worker.run_once():
        pass
    assert worker.statistics().done > 0
    await store.close()
    await control.close()


def test_objects_that_compaction_replaced_are_looked_up_again(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="replaced", cleanup_policy="compact", min_cleanable_dirty_ratio="0.0")
    for round_number in range(4):
        braid.produce(topic, [{"key": str(i), "value": f"{round_number}-{i}"} for i in range(25)])
    reader = batch_reader(braid, subscribe=topic)
    tasks = reader.partitions()
    before = read(reader, tasks)
    assert [offset for offset, _ in before] == list(range(100))
    asyncio.run(compact(braid, topic))
    delete_objects(braid, tasks)
    after = read(reader, tasks)
    # What is left is where it was, and the newest of every key is left.
    assert set(after) <= set(before)
    assert set(after) >= {(75 + i, f"3-{i}".encode()) for i in range(25)}
    assert len(after) < len(before)
    assert sorted(after) == after
    # Only the range of the plan, though the objects now hold more.
    start, end = json.dumps({topic: {"0": 80}}), json.dumps({topic: {"0": 90}})
    part = batch_reader(braid, subscribe=topic, startingOffsets=start, endingOffsets=end)
    assert read(part, part.partitions()) == [(75 + i, f"3-{i}".encode()) for i in range(5, 15)]


def test_records_that_expired_meanwhile_are_an_error_or_left_out(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="gone")
    for start in range(0, 40, 10):
        braid.produce(topic, [{"value": str(i)} for i in range(start, start + 10)])
    options = {"subscribe": topic, "minPartitions": "2"}
    strict, lenient = batch_reader(braid, **options), batch_reader(braid, **options, failOnDataLoss="false")
    tasks = strict.partitions()
    assert len(tasks) == 2
    braid.delete_records(topic, 0, 30)
    delete_objects(braid, tasks[:1])
    with pytest.raises(DataLoss, match=r"records 0 to 19 .* expired or were deleted"):
        read(strict, tasks)
    assert [offset for offset, _ in read(lenient, tasks)] == list(range(20, 40))


def test_a_store_that_lacks_what_the_index_names(braid: Braid, tmp_path: Path) -> None:
    topic = braid.new_topic(1, prefix="elsewhere")
    braid.produce(topic, [{"value": "v"}])
    (tmp_path / "empty").mkdir()
    reader = batch_reader(braid, subscribe=topic, **{"braidlog.store": f"file://{tmp_path / 'empty'}"})
    with pytest.raises(JobError, match="which is not in the store"):
        read(reader, reader.partitions())


def test_damage_is_told_from_loss(braid: Braid) -> None:
    topic = braid.new_topic(1, prefix="damaged")
    braid.produce(topic, [{"value": "v" * 1000}])
    reader = batch_reader(braid, subscribe=topic, failOnDataLoss="false")
    tasks = reader.partitions()
    task = tasks[0]
    assert isinstance(task, LogTask)
    piece = task.slices[0].pieces[0]
    path = braid.cluster.store_path / piece.key
    data = bytearray(path.read_bytes())
    data[piece.position + piece.length - 50] ^= 1
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(JobError, match="stored records are damaged"):
        read(reader, tasks)


def test_a_control_plane_that_is_not_there(braid: Braid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.spark.link.PATIENCE_S", 0.1)
    monkeypatch.setattr("braidlog.spark.link.CALL_TIMEOUT_S", 0.1)
    reader = batch_reader(braid, subscribe="any", **{"braidlog.control": "127.0.0.1:1"})
    with pytest.raises(JobError, match="does not answer"):
        reader.partitions()
