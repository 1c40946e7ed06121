"""Merges many small extents into few large ones, without decoding records."""

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
    """Merge each partition's extents into one, or several if they are too large.

    No extent is larger than an object.

    Each round reads about one object's worth, of as many partitions as that takes. So an object with extents of many
    partitions is read once, and not once for each of them.
    """
    for chosen in _rounds(task):
        extents = [extent for _, run in chosen for extent in run]
        found = iter(await source.read(extents))
        for partition, run in chosen:
            is_first = run[0] is partition.extents[0]
            if is_first:
                output.begin(partition, run[0].base_offset)
            for extent in run:
                await output.add(placed_part(extent, next(found)))
            if run[-1] is partition.extents[-1]:
                output.end(run[-1].end_offset)
    await output.flush()


def _rounds(task: JobTask) -> list[list[tuple[JobPartition, list[IndexedExtent]]]]:
    """Divide the work into rounds of about `target_bytes`.

    Each round has some extents of some partitions.
    """
    rounds: list[list[tuple[JobPartition, list[IndexedExtent]]]] = [[]]
    size_bytes = 0
    for partition in in_footer_order(task):
        run: list[IndexedExtent] = []
        for extent in partition.extents:
            if size_bytes + extent.length > task.target_bytes and size_bytes > 0:
                if run:
                    rounds[-1].append((partition, run))
                run = []
                rounds.append([])
                size_bytes = 0
            run.append(extent)
            size_bytes += extent.length
        rounds[-1].append((partition, run))
    return rounds
