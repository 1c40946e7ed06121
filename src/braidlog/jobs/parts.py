"""Divides jobs into parts, one for each task, and joins the results of parts.

A merge is divided by offset ranges, and so is the copying of a compaction. A compaction that is larger than a task
should be has two steps. First each part collects the latest offset of every key in its range, and stores them. Then
each part copies what stays of its range, by the keys of that range and of all later ones: an earlier record never
replaces a later one. Nothing here does I/O.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from braidlog.control.interface import (
    COMPACT,
    MERGE,
    IndexedExtent,
    JobPartition,
    JobTask,
    Message,
    NewObject,
    Replacement,
    TakenJob,
)
from braidlog.jobs.merging import slices
from braidlog.jobs.output import Completion

PART_BYTES = 128 * 1024 * 1024
"""A job with more is divided into several tasks."""
SEED_BYTES = 16
_replace = msgspec.structs.replace


class Step(StrEnum):
    WHOLE = "whole"
    """Merge, or compact in both passes."""
    COLLECT = "collect"
    """Make the first pass of a compaction, and store the keys."""
    REWRITE = "rewrite"
    """Make the second pass of a compaction, with stored keys."""


class StoredKeys(Message, frozen=True):
    """The keys of a range of offsets, in an object that no index refers to."""

    object_key: str
    key_count: int
    end_offset: int
    is_full: bool
    """Whether the key map could not hold all keys of the range. Then the range ends earlier."""


class Part(Message, frozen=True):
    """The input of one task."""

    job_id: int
    token: bytes
    number: int
    """Its place among the parts of the job's step."""
    write_epoch: int
    task: JobTask
    """The job's task, with the extents of this part only."""
    step: Step = Step.WHOLE
    seed: bytes = b""
    """The seed of the key hashes: one for all parts of a compaction."""
    keys: list[StoredKeys] = msgspec.field(default_factory=list)
    clean_end_offset: int = -1
    ends_log: bool = True
    """Whether nothing of the job follows this part."""

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.task.partitions)


class PartResult(Message, frozen=True):
    """The answer of one task."""

    objects: list[NewObject] = msgspec.field(default_factory=list)
    replacements: list[Replacement] = msgspec.field(default_factory=list)
    due_ms: int = -1
    clean_end_offset: int = -1
    keys: StoredKeys | None = None


def has_two_steps(job: TakenJob, bytes_max: int) -> bool:
    """Return whether a compaction is too large for one task."""
    return job.task.kind == COMPACT and size_bytes(job.task.partitions) > bytes_max


def first_parts(job: TakenJob, bytes_max: int, *, seed: bytes) -> list[Part]:
    """Divide a job; of one with two steps, the first.

    Where nothing is dirty, that has no parts.
    """
    task = job.task
    if has_two_steps(job, bytes_max):
        assert task.compaction is not None
        dirty_offset = task.compaction.clean_end_offset
        dirty = _only(task, lambda extent: extent.end_offset > dirty_offset)
        return _parts(job, slices(dirty, bytes_max), step=Step.COLLECT, seed=seed)
    if task.kind == MERGE and size_bytes(task.partitions) > bytes_max:
        return _parts(job, slices(task, bytes_max))
    return _parts(job, [list(task.partitions)], seed=seed)


def rewriting_parts(job: TakenJob, bytes_max: int, collected: Sequence[Part], keys: Sequence[StoredKeys]) -> list[Part]:
    """Divide the second step of a compaction, after the first one's parts."""
    from braidlog.compaction.limits import KEY_MAP_BYTES_MAX, key_count_max  # needs numpy, which merging does not

    assert job.task.compaction is not None
    usable = _usable(keys, key_count_max(KEY_MAP_BYTES_MAX))
    clean_end_offset = usable[-1].end_offset if usable else job.task.compaction.clean_end_offset
    seed = collected[0].seed if collected else bytes(SEED_BYTES)
    parts = _parts(
        job,
        slices(_only(job.task, lambda extent: extent.base_offset < clean_end_offset), bytes_max),
        step=Step.REWRITE,
        seed=seed,
    )
    return [
        _replace(
            part,
            keys=[each for each in usable if each.end_offset > part.task.partitions[0].extents[0].base_offset],
            clean_end_offset=clean_end_offset,
            ends_log=part is parts[-1],
        )
        for part in parts
    ]


def _usable(keys: Sequence[StoredKeys], keys_max: int) -> list[StoredKeys]:
    """Return the first ranges whose keys fit into one map together."""
    chosen: list[StoredKeys] = []
    key_count = 0
    for each in keys:
        key_count += each.key_count
        if chosen and key_count > keys_max:
            break
        chosen.append(each)
        if each.is_full:
            break
    return chosen


def join(job: TakenJob, results: Sequence[PartResult]) -> Completion:
    """Join the results of all parts of a job's last step."""
    joined = Completion()
    for result in results:
        shift = len(joined.objects)
        joined.objects += result.objects
        joined.replacements += [
            _replace(
                replacement,
                extents=[_replace(extent, object_index=extent.object_index + shift) for extent in replacement.extents],
            )
            for replacement in result.replacements
        ]
        if result.due_ms >= 0:
            joined.due_ms = result.due_ms if joined.due_ms < 0 else min(joined.due_ms, result.due_ms)
    if job.task.kind == COMPACT:
        assert job.task.compaction is not None
        joined.clean_end_offset = results[-1].clean_end_offset
        if joined.clean_end_offset < job.task.partitions[0].extents[-1].end_offset:
            joined.due_ms = job.task.compaction.now_ms
    return joined


def _parts(
    job: TakenJob, ranges: Iterable[list[JobPartition]], *, step: Step = Step.WHOLE, seed: bytes = b""
) -> list[Part]:
    return [
        Part(job.job_id, job.token, number, job.write_epoch, _share(job.task, partitions), step, seed)
        for number, partitions in enumerate(ranges)
        if partitions
    ]


def _share(task: JobTask, partitions: list[JobPartition]) -> JobTask:
    """Return the task with these extents and their objects only."""
    used = {extent.object_number for partition in partitions for extent in partition.extents}
    return _replace(task, partitions=partitions, objects=[each for each in task.objects if each.number in used])


def _only(task: JobTask, wants: Callable[[IndexedExtent], bool]) -> JobTask:
    """Return the task with some of its extents, and their partitions only."""
    chosen = [
        _replace(partition, extents=[extent for extent in partition.extents if wants(extent)])
        for partition in task.partitions
    ]
    return _replace(task, partitions=[partition for partition in chosen if partition.extents])


def size_bytes(partitions: Iterable[JobPartition]) -> int:
    return sum(extent.length for partition in partitions for extent in partition.extents)
