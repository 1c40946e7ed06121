"""Compaction, from planning to the swap, held against an independent computation of what must be left."""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.control.driver import START_MS, Plane, create_topic
from tests.jobs.driver import Read, Writer, read_all, start, work_off

from braidlog.compaction import limits
from braidlog.control.interface import FindExtents, ListJobs, RequestCompaction, TopicInfo
from braidlog.jobs import compacting
from braidlog.jobs.parts import PART_BYTES

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start(f"sqlite://{tmp_path}/metadata.db")
    yield plane
    await plane.service.close()


async def compacted_topic(plane: Plane, partitions: int = 1, **configs: str) -> TopicInfo:
    defaults = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0"}
    return await create_topic(plane.service, "state", partitions, **{**defaults, **configs})


def latest(records: Sequence[Read]) -> dict[bytes, Read]:
    """Key → its newest record. What compaction must leave, computed the simple way."""
    return {record.key: record for record in records if record.key is not None}


async def write_random(plane: Plane, topic: TopicInfo, *, objects: int, seed: int, keys: int = 30) -> None:
    chance = random.Random(seed)
    writer = Writer(plane, f"writer-{seed}")
    for number in range(objects):
        records = {
            partition: [
                (
                    f"k{chance.randrange(keys)}".encode(),
                    None if chance.random() < 0.1 else f"{seed}/{number}/{partition}/{at}".encode(),
                )
                for at in range(chance.randrange(1, 20))
            ]
            for partition in range(len(topic.partition_ids))
            if chance.random() < 0.8
        }
        if records:
            await writer.write(topic, records, timestamp_ms=plane.clock.wall_ms(), batches=chance.randrange(1, 4))


async def test_only_the_newest_record_of_each_key_stays_where_it_was(plane: Plane) -> None:
    topic = await compacted_topic(plane, 3)
    await write_random(plane, topic, objects=30, seed=1)
    before = [await read_all(plane, topic, partition) for partition in range(3)]
    assert await work_off(plane) == 3
    for partition in range(3):
        after = await read_all(plane, topic, partition)
        expected = sorted(latest(before[partition]).values(), key=lambda record: record.offset)
        assert after == expected
        bounds = (await plane.service.find_extents(FindExtents(topic.partition_ids[partition], 0, 1))).bounds
        assert bounds.high_watermark == before[partition][-1].offset + 1
    assert await work_off(plane) == 0


async def test_round_after_round_gives_what_one_would(plane: Plane) -> None:
    topic = await compacted_topic(plane)
    seen: dict[int, Read] = {}
    for number in range(6):
        await write_random(plane, topic, objects=5, seed=number)
        seen |= {record.offset: record for record in await read_all(plane, topic)}
        await work_off(plane)
        after = await read_all(plane, topic)
        everything = [seen[offset] for offset in sorted(seen)]
        assert after == sorted(latest(everything).values(), key=lambda record: record.offset)


async def test_tombstones_stay_for_their_time_and_then_go(plane: Plane) -> None:
    topic = await compacted_topic(plane)
    writer = Writer(plane)
    await writer.write(topic, {0: [(b"a", b"1"), (b"b", b"1"), (b"a", None)]})
    assert await work_off(plane) == 1
    assert [(r.offset, r.key, r.value) for r in await read_all(plane, topic)] == [(1, b"b", b"1"), (2, b"a", None)]
    plane.clock.advance(DAY_MS / 1000 - 60)
    assert await work_off(plane) == 0
    plane.clock.advance(120)
    assert await work_off(plane) == 1
    assert [(r.offset, r.key, r.value) for r in await read_all(plane, topic)] == [(1, b"b", b"1")]
    # The log still ends where it did, and its end can be reached.
    found = await plane.service.find_extents(FindExtents(topic.partition_ids[0], 2, 1 << 20))
    assert found.bounds.high_watermark == 3
    assert [(extent.base_offset, extent.end_offset) for extent in found.extents] == [(0, 3)]
    assert await work_off(plane) == 0
    await writer.write(topic, {0: [(b"b", b"2")]})
    assert await work_off(plane) == 1
    assert [(r.offset, r.key, r.value) for r in await read_all(plane, topic)] == [(3, b"b", b"2")]


async def test_a_log_of_which_nothing_is_left_keeps_its_end(plane: Plane) -> None:
    topic = await compacted_topic(plane, delete_retention_ms="0")
    await Writer(plane).write(topic, {0: [(b"a", b"1"), (b"a", None)]})
    for _ in range(3):
        plane.clock.advance(1)
        await work_off(plane)
    assert await read_all(plane, topic) == []
    await Writer(plane, "other").write(topic, {0: [(b"c", b"1")]})
    assert [record.offset for record in await read_all(plane, topic)] == [2]


async def test_what_is_too_young_is_left_alone(plane: Plane) -> None:
    topic = await compacted_topic(plane, min_compaction_lag_ms="60000")
    writer = Writer(plane)
    await writer.write(topic, {0: [(b"a", b"1"), (b"a", b"2")]}, timestamp_ms=START_MS)
    await writer.write(topic, {0: [(b"a", b"3"), (b"a", b"4")]}, timestamp_ms=START_MS + 50_000)
    assert await work_off(plane) == 0
    plane.clock.advance(61)
    assert await work_off(plane) == 1
    assert [record.value for record in await read_all(plane, topic)] == [b"2", b"3", b"4"]
    plane.clock.advance(60)
    assert await work_off(plane) == 1
    assert [record.value for record in await read_all(plane, topic)] == [b"4"]


async def test_the_dirty_ratio_decides_unless_it_is_asked_for(plane: Plane) -> None:
    topic = await compacted_topic(plane, min_cleanable_dirty_ratio="0.5")
    writer = Writer(plane)
    await writer.write(topic, {0: [(f"k{n}".encode(), b"x" * 100) for n in range(100)]})
    assert await work_off(plane) == 1
    await writer.write(topic, {0: [(f"k{n}".encode(), b"y" * 100) for n in range(10)]})
    assert await work_off(plane) == 0
    answer = await plane.service.request_compaction(RequestCompaction("state"))
    assert (answer.error_code, len(answer.job_ids), answer.busy_partitions) == (0, 1, 0)
    # Asked again, it is the same job.
    again = await plane.service.request_compaction(RequestCompaction("state"))
    assert again.job_ids == answer.job_ids
    assert await work_off(plane) == 1
    assert len(await read_all(plane, topic)) == 100
    assert (await plane.service.request_compaction(RequestCompaction("state"))).job_ids == []


async def test_only_compacted_topics_are_compacted(plane: Plane) -> None:
    await create_topic(plane.service, "plain")
    assert (await plane.service.request_compaction(RequestCompaction("plain"))).error_code == 44
    assert (await plane.service.request_compaction(RequestCompaction("nowhere"))).error_code == 3


@pytest.mark.parametrize("part_bytes", [PART_BYTES, 20_000])
async def test_more_keys_than_there_is_room_for_take_several_passes(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    original = compacting.compaction_limits
    monkeypatch.setattr(compacting, "compaction_limits", lambda task: original(task, 24 * 1024))
    monkeypatch.setattr(limits, "KEY_MAP_BYTES_MAX", 24 * 1024)
    topic = await compacted_topic(plane)
    await write_random(plane, topic, objects=400, seed=3, keys=2000)
    before = await read_all(plane, topic)
    rounds = 0
    while await work_off(plane, part_bytes=part_bytes):
        rounds += 1
        assert rounds < 30
    assert rounds > 1
    assert await read_all(plane, topic) == sorted(latest(before).values(), key=lambda record: record.offset)
    listings = (await plane.service.list_jobs(ListJobs(kinds=["compact"]))).jobs
    assert len(listings) == rounds


async def test_compact_and_delete_does_both(plane: Plane) -> None:
    topic = await compacted_topic(plane, cleanup_policy="compact,delete", retention_ms="3600000")
    writer = Writer(plane)
    await writer.write(topic, {0: [(b"a", b"1"), (b"a", b"2")]}, timestamp_ms=START_MS)
    assert await work_off(plane) == 1
    assert [record.value for record in await read_all(plane, topic)] == [b"2"]
    plane.clock.advance(3601)
    await plane.service.parts.retention.run_once()
    assert await read_all(plane, topic) == []
