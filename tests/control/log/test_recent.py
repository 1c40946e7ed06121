"""What the newest objects changed survives a restart, whether it was moved to its tables, in part, or not at all."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.driver import Plane, batch, commit, create_topic, make_object, new_producer, outcomes, start_plane
from tests.control.log.test_sequencer_model import PARTITIONS, Model, objects

from braidlog.control.interface import FindExtents, InitProducerId, SnapshotRequest
from braidlog.control.settings import ControlSettings

_RESTART = "restart"
_SETTLE = "settle"

histories = st.lists(st.one_of(objects, objects, st.just(_RESTART), st.just(_SETTLE)), max_size=20)


async def _restart(plane: Plane, path: str) -> Plane:
    """As after a crash: the old one is not asked to finish anything, only fenced off."""
    following = await start_plane(path, clock=plane.clock, bucket=plane.bucket, settings=plane.service.settings)
    await plane.service.close()
    return following


async def _rows(plane: Plane, table: str) -> int:
    return int(await plane.metadata.read(lambda tx: tx.query(f"SELECT COUNT(*) FROM {table}")[0][0]))


@settings(max_examples=40, deadline=None)
@given(histories, st.sampled_from([1, 4, 12, 1000]))
def test_verdicts_do_not_depend_on_restarts(history: list[Any], extents_max: int) -> None:
    asyncio.run(_follow(history, extents_max))


async def _follow(history: list[Any], extents_max: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"sqlite://{folder}/metadata.db"
        limits = ControlSettings(recent_extents_max=extents_max, producer_states_max=2)
        plane = await start_plane(path, settings=limits)
        try:
            topic = await create_topic(plane.service, "t", PARTITIONS)
            handed_out = {await new_producer(plane.service) for _ in range(2)}
            model = Model()
            for step in history:
                if step == _RESTART:
                    plane = await _restart(plane, path)
                    continue
                if step == _SETTLE:
                    await plane.service.parts.recent.settle_in_steps(
                        plane.service.parts.jobs._state_lock, extents_per_step=1
                    )
                    assert await _rows(plane, "recent_objects") == 0
                    continue
                expected = [
                    model.expect(partition, entry, entry.producer_id in handed_out)
                    for partition in sorted(step)
                    for entry in step[partition]
                ]
                request = make_object([(topic.topic_id, partition, step[partition]) for partition in sorted(step)])
                assert outcomes(await plane.service.commit_object(request)) == expected
            before = await plane.service.snapshot(SnapshotRequest())
            plane = await _restart(plane, path)
            assert (await plane.service.snapshot(SnapshotRequest())).bounds == before.bounds
            for bounds in before.bounds:
                found = await plane.service.find_extents(FindExtents(bounds.partition_id, 0, 10**9))
                assert found.bounds == bounds
                assert sum(extent.length for extent in found.extents) == bounds.size_bytes
        finally:
            await plane.service.close()


@pytest.mark.parametrize("moved", [False, True])
async def test_the_last_five_batches_are_known_after_a_restart(tmp_path: Path, moved: bool) -> None:
    path = f"sqlite://{tmp_path}/metadata.db"
    plane = await start_plane(path)
    topic = await create_topic(plane.service)
    pid = await new_producer(plane.service)
    for sequence in range(7):
        await commit(plane.service, topic, [batch(1, pid, 0, sequence)])
        if moved and sequence == 4:
            async with plane.service.parts.jobs._state_lock:
                await plane.service.parts.recent.settle()
            assert await _rows(plane, "recent_objects") == 0
    assert await _rows(plane, "producer_partitions") == int(moved)
    plane = await _restart(plane, path)
    assert await _rows(plane, "recent_objects") == 0
    assert await commit(plane.service, topic, [batch(1, pid, 0, 1)]) == [(46, -1, False)]
    for sequence in range(2, 7):
        assert await commit(plane.service, topic, [batch(1, pid, 0, sequence)]) == [(0, sequence, True)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 7)]) == [(0, 7, False)]
    await plane.service.close()


async def test_a_new_epoch_is_known_after_a_restart(tmp_path: Path) -> None:
    path = f"sqlite://{tmp_path}/metadata.db"
    plane = await start_plane(path)
    topic = await create_topic(plane.service)
    pid = await new_producer(plane.service)
    await commit(plane.service, topic, [batch(3, pid, 0, 0)])
    assert (await plane.service.init_producer_id(InitProducerId(None, 0, pid, 0))).producer_epoch == 1
    await commit(plane.service, topic, [batch(2, pid, 1, 0)])
    plane = await _restart(plane, path)
    assert await commit(plane.service, topic, [batch(1, pid, 0, 3)]) == [(47, -1, False)]
    assert await commit(plane.service, topic, [batch(2, pid, 1, 0)]) == [(0, 3, True)]
    assert await commit(plane.service, topic, [batch(1, pid, 1, 2)]) == [(0, 5, False)]
    await plane.service.close()


@pytest.mark.parametrize("by_itself", [False, True])
async def test_a_restart_does_not_bring_back_an_expired_producer(tmp_path: Path, by_itself: bool) -> None:
    path = f"sqlite://{tmp_path}/metadata.db"
    plane = await start_plane(path)
    topic = await create_topic(plane.service)
    pid = await new_producer(plane.service)
    await commit(plane.service, topic, [batch(5, pid, 0, 0)])
    assert await _rows(plane, "recent_objects") == 1
    plane.clock.advance(24 * 3600 + 1)
    if by_itself:
        assert await plane.service.parts.producers.expire_once() == 1
    else:
        assert await commit(plane.service, topic, [batch(1, pid, 0, 77)]) == [(0, 5, False)]
    plane = await _restart(plane, path)
    assert await _rows(plane, "producer_partitions") == int(not by_itself)
    # Were the batch of the time before known, this would be taken for its repetition.
    assert await commit(plane.service, topic, [batch(5, pid, 0, 0)]) == (
        [(0, 5, False)] if by_itself else [(46, -1, False)]
    )
    await plane.service.close()


async def test_commits_go_on_while_much_is_moved() -> None:
    plane = await start_plane()
    topic = await create_topic(plane.service, "t", 21)
    for partition in range(20):
        await plane.service.commit_object(make_object([(topic.topic_id, partition, [batch(1)])]))
    moving = asyncio.create_task(
        plane.service.parts.recent.settle_in_steps(plane.service.parts.jobs._state_lock, extents_per_step=1)
    )
    commits_meanwhile = 0
    while not moving.done():
        await plane.service.commit_object(make_object([(topic.topic_id, 20, [batch(1)])]))
        commits_meanwhile += 1
    # One may slip in before the move and one may end behind it, were it a single one.
    assert commits_meanwhile > 2
    assert await _rows(plane, "extents") == 20
    await plane.service.close()


async def test_batches_are_limited_as_extents_are() -> None:
    plane = await start_plane(settings=ControlSettings(recent_extents_max=10))
    topic = await create_topic(plane.service)
    pids = [await new_producer(plane.service) for _ in range(4)]
    for sequence in range(6):
        await commit(plane.service, topic, [batch(1, pid, 0, sequence) for pid in pids])
        assert await _rows(plane, "recent_objects") <= 2
    assert await _rows(plane, "producer_partitions") == len(pids)
    await plane.service.close()


async def test_states_of_before_the_third_migration_are_known(tmp_path: Path) -> None:
    path = f"sqlite://{tmp_path}/metadata.db"
    plane = await start_plane(path)
    topic = await create_topic(plane.service)
    pid = await new_producer(plane.service)
    for sequence in range(3):
        await commit(plane.service, topic, [batch(1, pid, 0, sequence)])
    async with plane.service.parts.jobs._state_lock:
        await plane.service.parts.recent.settle()
    earlier = msgspec.msgpack.encode([(sequence, sequence, sequence) for sequence in range(3)])
    await plane.metadata.transact(lambda tx: tx.execute("UPDATE producer_partitions SET batches = ?", (earlier,)))
    plane = await _restart(plane, path)
    for sequence in range(3):
        assert await commit(plane.service, topic, [batch(1, pid, 0, sequence)]) == [(0, sequence, True)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 3)]) == [(0, 3, False)]
    plane = await _restart(plane, path)
    assert await commit(plane.service, topic, [batch(1, pid, 0, 0)]) == [(0, 0, True)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 4)]) == [(0, 4, False)]
    await plane.service.close()
