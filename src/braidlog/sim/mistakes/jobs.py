"""Mistakes in jobs: merging, compaction, their leases and their swaps."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from msgspec import structs

from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.read_path.reader import ExtentGone, Reader
from braidlog.compaction.rules import Judge, Rules
from braidlog.control.interface import CompleteJob, HeartbeatJobs, JobTask, JobVerdict, TakenJob
from braidlog.control.jobs import results, swap
from braidlog.control.jobs.board import JobBoard
from braidlog.control.jobs.results import JobResults
from braidlog.control.log.sweeper import Sweeper
from braidlog.jobs import compacting, merging, parts, rounds, worker
from braidlog.jobs.output import Completion, ExtentPart, JobOutput
from braidlog.jobs.parts import Part, PartResult
from braidlog.jobs.worker import Worker
from braidlog.objects.store import NotFound
from braidlog.records.batch import scan_batches
from braidlog.records.opened_extents import ExtentBytes
from braidlog.records.placement import write_base_offset
from braidlog.sim.mistakes.mistake import mistake, replaced


@mistake("Swaps extents without checking that the replaced ones are still there.", "merging")
def _swap_without_compare() -> AbstractContextManager[None]:
    return replaced((swap, "check_unchanged", lambda tx, partition: None))


@mistake("Accepts a job's result from any worker, however late, and replaces what is there.", "merging")
def _leases_not_checked() -> AbstractContextManager[None]:
    original_put, original_check = JobBoard.put, swap.check_completion
    known: dict[int, Any] = {}

    def put(self: JobBoard, job: Any) -> None:
        known[job.job_id] = job
        original_put(self, job)

    def leased(self: JobBoard, job_id: int, token: bytes) -> Any:
        if job_id not in self.open and job_id in known:
            original_put(self, known[job_id])
        return self.open.get(job_id)

    def check(task: JobTask, request: CompleteJob, epoch_floor: int) -> Any:
        return original_check(task, request, 0)

    return replaced(
        (JobBoard, "put", put),
        (JobBoard, "leased", leased),
        (results, "check_completion", check),
        (swap, "check_unchanged", lambda tx, partition: None),
    )


@mistake("Removes the old extents first, and adds the new ones in a second transaction.", "merging")
def _swap_in_two_steps() -> AbstractContextManager[None]:
    original = JobResults._swap

    async def swap_slowly(self: JobResults, job: Any, change: swap.Swap, request: CompleteJob) -> None:
        def forget(tx: Any) -> None:
            for partition in change.partitions:
                for run in partition.removed:
                    tx.execute(
                        "DELETE FROM extents WHERE partition_id = ? AND base_offset >= ? AND base_offset < ?",
                        (partition.partition_id, run[0].base_offset, run[-1].end_offset),
                    )

        await self._metadata.plan(forget)
        await asyncio.sleep(0.2)
        await original(self, job, change, request)

    return replaced((JobResults, "_swap", swap_slowly), (swap, "check_unchanged", lambda tx, partition: None))


@mistake("Deletes a job's input as soon as its result is uploaded, before the swap.", "merging")
def _delete_before_the_swap() -> AbstractContextManager[None]:
    original = Worker._report

    async def report(self: Worker, running: Any, completion: Any) -> JobVerdict:
        job = running.job
        kept = {extent.object_number for partition in job.task.partitions for extent in partition.extents}
        store = self._executor._store  # type: ignore[attr-defined]
        await store.delete([stored.key for stored in job.task.objects if stored.number in kept])
        return await original(self, running, completion)

    return replaced((Worker, "_report", report))


@mistake("Deletes objects as soon as their last extent goes, and readers never ask the index again.", "merging")
def _delete_without_grace() -> AbstractContextManager[None]:
    original_init, original_delete = Sweeper.__init__, JobResults._swap

    def init(self: Sweeper, *parts: Any, **options: Any) -> None:
        original_init(self, *parts, **{**options, "unreferenced_grace_ms": 0})
        JobResults.sweeper = self  # type: ignore[attr-defined]

    async def swap_and_sweep(self: JobResults, job: Any, change: swap.Swap, request: CompleteJob) -> None:
        await original_delete(self, job, change, request)
        asyncio.get_running_loop().create_task(self.sweeper._delete_unreferenced())  # type: ignore[attr-defined]

    async def read(self: Reader, partition: Any, offset: int, *arguments: Any) -> Any:
        try:
            return await self._read(partition, offset, *arguments, fresh=False)
        except NotFound as error:
            raise ExtentGone(str(error)) from error

    return replaced(
        (Sweeper, "__init__", init),
        (JobResults, "_swap", swap_and_sweep),
        (Reader, "read", read),
        (ClusterView, "_forget_replaced", lambda self, partition_id, end_offset: None),
    )


@mistake("Never marks unreferenced objects for deletion.", "merging")
def _replaced_objects_forgotten() -> AbstractContextManager[None]:
    return replaced((swap, "unreference", lambda tx, counts, now_ms: None))


@mistake("Puts the batches of a merged extent in the order in which they were read.", "merging")
def _merge_out_of_order() -> AbstractContextManager[None]:
    original = JobOutput.flush

    async def flush(self: JobOutput) -> None:
        for extent in self._extents:
            extent.parts.reverse()
        await original(self)

    return replaced((JobOutput, "flush", flush))


@mistake("Lets readers number the batches of merged extents, as if there were no gaps between them.", "compacting")
def _offsets_not_written() -> AbstractContextManager[None]:
    original = compacting._Replacing._write

    async def write(self: Any, run: Any) -> None:
        parts = [bytearray(part) for part in run.parts]
        for part in parts:
            for position, _ in scan_batches(memoryview(bytes(part))):
                write_base_offset(part, position, 0)
        await original(self, replace(run, parts=[memoryview(part) for part in parts]))

    return replaced((compacting._Replacing, "_write", write))


@mistake("Notes the newest offset of each key one too high, so that no record is the newest.", "compacting")
def _newest_value_dropped() -> AbstractContextManager[None]:
    def shifted(base_offset: int, data: Any, end_offset: int) -> ExtentBytes:
        return ExtentBytes(base_offset + 1, data, end_offset + 1)

    return replaced((compacting, "ExtentBytes", shifted))


@mistake("Removes tombstones when it first meets them.", "compacting")
def _tombstones_go_at_once() -> AbstractContextManager[None]:
    return replaced((Judge, "tombstones_may_go", lambda self, attributes, base_ms, end_offset: True))


@mistake("Removes tombstones after their first compaction, before their retention is over.", "compacting")
def _tombstones_without_retention() -> AbstractContextManager[None]:
    return replaced((Rules, "delete_horizon_ms", property(lambda self: self.now_ms)))


@mistake("Ends a merged extent one batch early.", "merging")
def _last_batch_left_out() -> AbstractContextManager[None]:
    original = merging.placed_part

    def placed(extent: Any, data: Any) -> ExtentPart:
        part = original(extent, data)
        if len(part.batches) < 2:
            return part
        end = part.length - part.batches[-1].length
        return replace(part, pieces=[part.pieces[0][:end]], length=end, batches=part.batches[:-1])

    return replaced((merging, "placed_part", placed), (swap, "MERGE", "nothing that the sum of bytes is checked for"))


@mistake("Renews only the first lease of a round.", "rounds")
def _renew_the_first_lease() -> AbstractContextManager[None]:
    return replaced((worker, "HeartbeatJobs", lambda leases: HeartbeatJobs(leases[:1])))


@mistake("Joins the parts of a compaction without one of them.", "rounds")
def _join_without_a_part() -> AbstractContextManager[None]:
    def join(job: TakenJob, results: Sequence[PartResult]) -> Completion:
        return parts.join(job, results[1:] if len(results) > 1 else results)

    return replaced((rounds, "join", join))


@mistake("Compacts a range of offsets by the keys of that range alone.", "rounds")
def _later_keys_ignored() -> AbstractContextManager[None]:
    original = parts.rewriting_parts

    def rewriting(*arguments: Any) -> list[Part]:
        return [structs.replace(part, keys=part.keys[:1]) for part in original(*arguments)]

    return replaced((rounds, "rewriting_parts", rewriting))
