"""Merging, from planning to the swap: nothing is lost, nothing moves, and who loses a race changes nothing."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.control.driver import Plane, create_topic, find_job, take_job
from tests.jobs.driver import JOBS, SETTINGS, Writer, read_all, start, work_off, worker

from braidlog.control.interface import (
    DONE,
    FAILED,
    MERGE,
    RUNNING,
    WAITING,
    CommitObject,
    CompleteJob,
    DeleteRecords,
    FindExtents,
    HeartbeatJobs,
    JobLease,
    ListJobs,
    TakenJob,
    TopicInfo,
)
from braidlog.jobs.executor import run_part
from braidlog.jobs.parts import PartResult, first_parts
from braidlog.objects.format import CorruptObject, read_stored_footer
from braidlog.objects.layout import MERGED, RewrittenExtent
from braidlog.runtime.entropy import SeededEntropy


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = await start(f"sqlite://{tmp_path}/metadata.db")
    yield plane
    await plane.service.close()


async def backlog(plane: Plane, objects: int = 20, partitions: int = 3) -> TopicInfo:
    topic = await create_topic(plane.service, "events", partitions)
    writer = Writer(plane)
    for number in range(objects):
        await writer.write(
            topic, {at: [(b"k", f"{number}/{at}/{n}".encode()) for n in range(1 + at)] for at in range(partitions)}
        )
    return topic


async def do(plane: Plane, job: TakenJob, seed: int | str) -> PartResult:
    """The work of a job, without its report."""
    [part] = first_parts(job, 1 << 30, seed=bytes(16))
    return await run_part(part, plane.store, plane.clock, SeededEntropy(seed))


async def extents(plane: Plane, topic: TopicInfo, partition: int) -> list[tuple[int, int, int]]:
    found = await plane.service.find_extents(FindExtents(topic.partition_ids[partition], 0, 1 << 30))
    return [(extent.base_offset, extent.end_offset, extent.object_number) for extent in found.extents]


async def test_small_extents_become_one_and_nothing_else_changes(plane: Plane) -> None:
    topic = await backlog(plane)
    before = [await read_all(plane, topic, partition) for partition in range(3)]
    size_bytes = [plane.service.parts.catalog.partitions[each].size_bytes for each in topic.partition_ids]
    assert await work_off(plane) == 1
    for partition in range(3):
        assert len(await extents(plane, topic, partition)) == 1
        assert await read_all(plane, topic, partition) == before[partition]
    # All partitions are in one object, and the old ones stay for the grace period.
    assert len({(await extents(plane, topic, partition))[0][2] for partition in range(3)}) == 1
    assert len(plane.keys) == 21
    assert [plane.service.parts.catalog.partitions[each].size_bytes for each in topic.partition_ids] == size_bytes
    plane.clock.advance(61)
    assert (await plane.service.parts.sweeper.run_once()).unreferenced_count == 20
    assert len(plane.keys) == 1
    assert [await read_all(plane, topic, partition) for partition in range(3)] == before
    assert await work_off(plane) == 0


async def test_a_merged_object_says_what_it_replaces_and_is_never_appended(plane: Plane) -> None:
    topic = await backlog(plane)
    await work_off(plane)
    found = await plane.service.find_extents(FindExtents(topic.partition_ids[1], 0, 1 << 30))
    [key] = [stored.key for stored in found.objects]
    stored = await read_stored_footer(plane.store, key)
    assert stored.footer.kind == MERGED
    at = [entry.partition for entry in stored.footer.extents].index(1)
    assert stored.footer.rewritten[at] == RewrittenExtent(0, found.extents[0].end_offset, 0)
    with pytest.raises(CorruptObject, match="never appended"):
        await plane.service.commit_object(CommitObject(key, stored.object_size, stored.footer_bytes))


async def test_what_is_young_is_left_alone_and_so_is_what_lies_behind_it(tmp_path: Path) -> None:
    settings = replace(SETTINGS, jobs=replace(JOBS, merge_age_s=60.0))
    plane = await start(f"sqlite://{tmp_path}/metadata.db", settings=settings)
    try:
        topic = await backlog(plane, objects=20, partitions=1)
        assert await work_off(plane) == 0
        plane.clock.advance(61)
        old = await extents(plane, topic, 0)
        writer = Writer(plane, "another")
        for number in range(20):
            await writer.write(topic, {0: [(b"k", b"young %d" % number)]})
        before = await read_all(plane, topic)
        young = (await extents(plane, topic, 0))[len(old) :]
        assert await work_off(plane) == 1
        merged, *rest = await extents(plane, topic, 0)
        assert merged[:2] == (old[0][0], old[-1][1])
        assert rest == young
        assert await read_all(plane, topic) == before
    finally:
        await plane.service.close()


async def test_large_runs_are_cut_into_objects_of_the_target_size(plane: Plane) -> None:
    topic = await create_topic(plane.service)
    writer = Writer(plane)
    for number in range(40):
        await writer.write(topic, {0: [(b"k", bytes([number]) * 8000)]})
    before = await read_all(plane, topic)
    assert await work_off(plane) == 1
    assert await work_off(plane) == 0
    found = await extents(plane, topic, 0)
    assert len(found) <= 6
    assert [end for _, end, _ in found[:-1]] == [base for base, _, _ in found[1:]]
    assert await read_all(plane, topic) == before


async def test_a_lost_workers_job_is_taken_over_and_its_late_result_refused(plane: Plane) -> None:
    topic = await backlog(plane)
    before = await read_all(plane, topic)
    await plane.service.parts.planner.plan_once()
    first = await take_job(plane.service, "first", [MERGE])
    assert await find_job(plane.service, "second", [MERGE]) is None
    result = await do(plane, first, "first")
    late = CompleteJob(first.job_id, first.token, result.objects, result.replacements)
    plane.clock.advance(JOBS.lease_s + 1)
    assert (await plane.service.heartbeat_jobs(HeartbeatJobs([JobLease(first.job_id, first.token)]))).lost == [
        first.job_id
    ]
    # Nobody else has it yet, and still the lease is over.
    assert (await plane.service.complete_job(late)).reason.startswith("lease-lost")
    await plane.service.parts.job_results.expire_once()
    second = await take_job(plane.service, "second", [MERGE])
    assert second.job_id == first.job_id
    assert second.token != first.token
    assert (await plane.service.complete_job(late)).reason.startswith("lease-lost")
    other = await do(plane, second, "second")
    request = CompleteJob(second.job_id, second.token, other.objects, other.replacements)
    assert (await plane.service.complete_job(request)).accepted
    # An answer that got lost is given again; the late one is still refused.
    assert (await plane.service.complete_job(request)).accepted
    assert not (await plane.service.complete_job(late)).accepted
    assert await read_all(plane, topic) == before
    # What the loser uploaded is swept.
    for _ in range(4):
        await plane.service.parts.epochs.advance()
    plane.clock.advance(61)
    await plane.service.parts.sweeper.run_once()
    assert plane.keys == [other.objects[0].key]
    assert await read_all(plane, topic) == before


async def test_a_lease_outlives_the_control_plane(tmp_path: Path) -> None:
    plane = await start(f"sqlite://{tmp_path}/metadata.db")
    topic = await backlog(plane)
    before = await read_all(plane, topic)
    await plane.service.parts.planner.plan_once()
    taken = await take_job(plane.service, "worker", [MERGE])
    result = await do(plane, taken, 1)
    await plane.service.close()
    again = await start(f"sqlite://{tmp_path}/metadata.db", plane=plane)
    assert [job.state for job in (await again.service.list_jobs(ListJobs())).jobs] == [RUNNING]
    assert not (await again.service.heartbeat_jobs(HeartbeatJobs([JobLease(taken.job_id, taken.token)]))).lost
    request = CompleteJob(taken.job_id, taken.token, result.objects, result.replacements)
    assert (await again.service.complete_job(request)).accepted
    assert await read_all(again, topic) == before
    assert [job.state for job in (await again.service.list_jobs(ListJobs())).jobs] == [DONE]
    await again.service.close()


async def test_a_job_whose_extents_were_deleted_changes_nothing(plane: Plane) -> None:
    topic = await backlog(plane, partitions=1)
    await plane.service.parts.planner.plan_once()
    some = worker(plane)
    taken = await take_job(plane.service, "worker", [MERGE])
    result = await do(plane, taken, 1)
    await plane.service.delete_records(DeleteRecords(topic.partition_ids[0], 5))
    before = await read_all(plane, topic)
    found = await extents(plane, topic, 0)
    verdict = await plane.service.complete_job(
        CompleteJob(taken.job_id, taken.token, result.objects, result.replacements)
    )
    assert verdict.reason.startswith("index-changed")
    assert await extents(plane, topic, 0) == found
    assert await read_all(plane, topic) == before
    [listing] = (await plane.service.list_jobs(ListJobs())).jobs
    assert listing.state == FAILED
    # It is planned anew, with what is there now.
    assert await work_off(plane) == 1
    assert await read_all(plane, topic) == before
    assert some.statistics().done == 0


async def test_the_floor_stays_below_what_a_worker_may_bring(plane: Plane) -> None:
    topic = await backlog(plane)
    await plane.service.parts.planner.plan_once()
    taken = await take_job(plane.service, "worker", [MERGE])
    result = await do(plane, taken, 1)
    for _ in range(10):
        await plane.service.parts.epochs.advance()
        plane.clock.advance(10)
        assert not (await plane.service.heartbeat_jobs(HeartbeatJobs([JobLease(taken.job_id, taken.token)]))).lost
        await plane.service.parts.sweeper.run_once()
    request = CompleteJob(taken.job_id, taken.token, result.objects, result.replacements)
    assert (await plane.service.complete_job(request)).accepted
    assert len(await read_all(plane, topic, 2)) == 60


async def test_results_that_do_not_fit_the_job_are_refused(plane: Plane) -> None:
    topic = await backlog(plane, partitions=2)
    await plane.service.parts.planner.plan_once()
    taken = await take_job(plane.service, "worker", [MERGE])
    result = await do(plane, taken, 1)
    wrong = CompleteJob(taken.job_id, taken.token, result.objects, result.replacements[:1])
    verdict = await plane.service.complete_job(wrong)
    assert verdict.reason.startswith("invalid")
    assert len(await extents(plane, topic, 0)) == 20
    # What failed so is not tried again at once.
    assert await plane.service.parts.planner.plan_once() == []
    plane.clock.advance(301)
    assert len(await plane.service.parts.planner.plan_once()) == 1
    assert [job.state for job in (await plane.service.list_jobs(ListJobs(states=[WAITING]))).jobs] == [WAITING]
