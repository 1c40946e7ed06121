"""Merges many small extents into few large ones, without decoding records."""

import msgspec

from braidlog.control.interface import IndexedExtent, JobPartition, JobTask
from braidlog.jobs.input import DamagedInput, JobInput
from braidlog.jobs.output import ExtentPart, JobOutput
from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import Bytes
from braidlog.records.batch import has_valid_crc
from braidlog.records.errors import InvalidBatch
from braidlog.records.placement import place_batches, write_base_offset
from braidlog.records.summary import summarize_batch


def placed_part(extent: IndexedExtent, data: Bytes) -> ExtentPart:
    """Write the offsets into the batches of an extent.

    Checks each batch, because the original will be deleted.
    """
    copied = bytearray(data)
    batches: list[BatchEntry] = []
    oldest_ms, newest_ms, end_offset = extent.timestamp_ms_max, -1, extent.base_offset
    with memoryview(copied) as view:
        try:
            for position, header, offset in place_batches(view, extent.base_offset):
                if not has_valid_crc(view[position:], header):
                    raise DamagedInput(f"the batch at offset {offset} of partition {extent.partition_id} is damaged")
                write_base_offset(copied, position, offset)
                batches.append(BatchEntry(*summarize_batch(header)))
                oldest_ms = min(oldest_ms, header.timestamp_ms_lowest)
                newest_ms = max(newest_ms, header.timestamp_ms_highest)
                end_offset = offset + header.offset_count
        except InvalidBatch as error:
            raise DamagedInput(f"an extent of partition {extent.partition_id} is damaged: {error}") from error
    if end_offset != extent.end_offset:
        raise DamagedInput(
            f"an extent of partition {extent.partition_id} ends at {end_offset}, not at {extent.end_offset}"
        )
    return ExtentPart(extent.end_offset, [copied], len(copied), batches, oldest_ms, newest_ms)


def in_footer_order(task: JobTask) -> list[JobPartition]:
    """Return the partitions in the order of an object's footer."""
    return sorted(task.partitions, key=lambda partition: (partition.topic_id, partition.index))


async def merge(task: JobTask, source: JobInput, output: JobOutput) -> None:
    """Merge each run of extents into one, or several if they are too large.

    No extent is larger than an object.

    Each turn reads about one object's worth, of as many partitions as that takes. So an object with extents of many
    partitions is read once, and not once for each of them.
    """
    open_run: JobPartition | None = None
    end_offset = -1
    for chosen in slices(task, task.target_bytes):
        extents = [extent for partition in chosen for extent in partition.extents]
        found = iter(await source.read(extents))
        for partition in chosen:
            run_starts = set(partition.run_starts)
            for extent in partition.extents:
                is_next = open_run is not None and open_run.partition_id == partition.partition_id
                if not is_next or extent.base_offset != end_offset or extent.base_offset in run_starts:
                    if open_run is not None:
                        output.end(end_offset)
                    await output.begin(partition, extent.base_offset)
                    open_run = partition
                await output.add(placed_part(extent, next(found)))
                end_offset = extent.end_offset
    if open_run is not None:
        output.end(end_offset)
    await output.flush()


def slices(task: JobTask, bytes_max: int) -> list[list[JobPartition]]:
    """Divide a task into slices of about `bytes_max`, in the order of footers.

    Each slice has some extents of some partitions.
    """
    found: list[list[JobPartition]] = [[]]
    size_bytes = 0
    for partition in in_footer_order(task):
        start = 0
        for end, extent in enumerate(partition.extents):
            if size_bytes + extent.length > bytes_max and size_bytes > 0:
                if end > start:
                    found[-1].append(msgspec.structs.replace(partition, extents=partition.extents[start:end]))
                start = end
                found.append([])
                size_bytes = 0
            size_bytes += extent.length
        found[-1].append(msgspec.structs.replace(partition, extents=partition.extents[start:]))
    return found
