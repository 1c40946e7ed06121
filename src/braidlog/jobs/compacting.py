"""Compacts one partition, from the store to the store.

The room `compaction` decides what may go.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from braidlog.compaction.key_collector import CollectedKeys, KeyCollector
from braidlog.compaction.limits import KEY_MAP_BYTES_MAX, CompactionLimits
from braidlog.compaction.rewriter import Rewriter
from braidlog.compaction.rules import Rules
from braidlog.compaction.runs import CompactedRun, RunWriter
from braidlog.control.interface import CompactionTerms, IndexedExtent, JobPartition, JobTask
from braidlog.jobs.input import DamagedInput, JobInput
from braidlog.jobs.output import ExtentPart, JobOutput
from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import Bytes
from braidlog.records.aborted import AbortedTransaction
from braidlog.records.batch import MAGIC, BatchHeader
from braidlog.records.errors import InvalidBatch
from braidlog.records.opened_extents import ExtentBytes
from braidlog.records.placement import place_batches

READ_ONCE_BYTES_MAX = 64 * 1024 * 1024
"""A partition up to this size stays in memory between the two passes over it."""


def compaction_limits(task: JobTask, key_map_bytes_max: int = KEY_MAP_BYTES_MAX) -> CompactionLimits:
    return CompactionLimits(
        key_map_bytes_max=key_map_bytes_max,
        object_bytes_target=task.target_bytes,
        keep_bytes_min=task.target_bytes // 2,
    )


async def collect_keys(extents: "PartitionInput", *, seed: bytes, limits: CompactionLimits) -> CollectedKeys:
    """Make the first pass: find the latest offset of every dirty key."""
    terms = extents.terms
    collector = KeyCollector(
        dirty_offset=terms.clean_end_offset, rules=compaction_rules(terms), seed=seed, limits=limits
    )
    with extents.damage_named():
        async for extent, data in extents.stream(lambda each: collector.wants(each.end_offset)):
            if not collector.wants(extent.end_offset):
                break  # the map is full
            collector.add(ExtentBytes(extent.base_offset, data, extent.end_offset))
    return collector.finish()


async def rewrite(
    extents: "PartitionInput",
    output: JobOutput,
    keys: CollectedKeys,
    limits: CompactionLimits,
    *,
    ends_log: bool = True,
) -> None:
    """Make the second pass: write what stays.

    `ends_log` says that nothing of the job follows these extents.
    """
    rewriter: Rewriter[IndexedExtent] = Rewriter(keys, limits)
    replacing = _Replacing(extents.partition, output, ends_log=ends_log)
    with extents.damage_named():
        async for extent, data in extents.stream(rewriter.wants):
            for run in rewriter.add(extent, data):
                await replacing.add(run)
        for run in rewriter.finish():
            await replacing.add(run)
    await replacing.finish()
    await output.flush()
    outcome, completion = rewriter.outcome(), output.completion
    completion.clean_end_offset = outcome.clean_end_offset
    completion.due_ms = outcome.tombstones_due_ms if outcome.tombstones_due_ms is not None else -1
    if outcome.clean_end_offset < extents.partition.extents[-1].end_offset:
        completion.due_ms = extents.terms.now_ms


def compaction_rules(terms: CompactionTerms) -> Rules:
    return Rules(
        now_ms=terms.now_ms,
        delete_retention_ms=terms.delete_retention_ms,
        log_start_offset=terms.log_start_offset,
        tombstones_end_offset=terms.tombstones_end_offset,
        aborted=[AbortedTransaction(each.producer_id, each.first_offset, each.marker_offset) for each in terms.aborted],
    )


class PartitionInput:
    """Reads the extents of a compaction's partition, for two passes.

    A small partition is read from the store only once.
    """

    def __init__(self, source: JobInput, task: JobTask) -> None:
        [self.partition] = task.partitions
        assert task.compaction is not None
        self.terms = task.compaction
        self._source = source
        self._keeps = sum(extent.length for extent in self.partition.extents) <= READ_ONCE_BYTES_MAX
        self._kept: dict[int, Bytes] = {}

    async def stream(self, wants: Callable[[IndexedExtent], bool]) -> AsyncIterator[tuple[IndexedExtent, Bytes]]:
        chosen = [extent for extent in self.partition.extents if wants(extent)]
        missing = [extent for extent in chosen if extent.base_offset not in self._kept]
        if self._keeps:
            for extent, data in zip(missing, await self._source.read(missing), strict=True):
                self._kept[extent.base_offset] = data
            for extent in chosen:
                yield extent, self._kept[extent.base_offset]
                await asyncio.sleep(0)  # let heartbeats run
        else:
            async for extent, data in self._source.stream(chosen):
                yield extent, data
                await asyncio.sleep(0)

    @contextmanager
    def damage_named(self) -> Iterator[None]:
        """Say which partition a damaged batch is in."""
        try:
            yield
        except InvalidBatch as error:
            raise DamagedInput(f"an extent of partition {self.partition.partition_id} is damaged: {error}") from error


class _Replacing:
    """Passes runs to the output.

    Adjacent runs form one replacement; kept extents separate replacements.
    """

    def __init__(self, partition: JobPartition, output: JobOutput, *, ends_log: bool) -> None:
        self._partition = partition
        self._output = output
        self._ends_log = ends_log
        self._held: CompactedRun | None = None
        """The newest run. It is held back until it is known whether it is the last."""
        self._is_open = False

    async def add(self, run: CompactedRun) -> None:
        if self._held is not None:
            await self._write(self._held)
            if self._held.end_offset != run.base_offset:
                self._output.end(self._held.end_offset)
                self._is_open = False
        self._held = run

    async def finish(self) -> None:
        if self._held is not None:
            await self._write(self._held)
            # Without a batch at the last offset, a consumer could never reach the end of the log.
            filler = _filler(self._held) if self._ends_log else None
            if filler is not None:
                await self._write(filler)
            self._output.end(self._held.end_offset)

    async def _write(self, run: CompactedRun) -> None:
        if not self._is_open:
            await self._output.begin(self._partition, run.base_offset)
            self._is_open = True
        summary = run.summary
        await self._output.add(
            ExtentPart(
                run.end_offset,
                list(run.parts),
                summary.length,
                [BatchEntry(*batch) for batch in summary.batches],
                summary.timestamp_ms_min,
                summary.timestamp_ms_max,
            )
        )


def _filler(run: CompactedRun) -> CompactedRun | None:
    """Make an empty batch at a run's last offset, if no batch reaches that far."""
    end_offset = run.base_offset
    for _, header, offset in place_batches(memoryview(run.parts[-1]), run.base_offset):
        end_offset = offset + header.offset_count
    if end_offset == run.end_offset:
        return None
    writer = RunWriter(end_offset, bytes_target=1)
    newest_ms = run.summary.timestamp_ms_max
    writer.add_empty(BatchHeader(run.end_offset - 1, 0, -1, MAGIC, 0, 0, 0, newest_ms, newest_ms, -1, -1, -1, 0))
    return writer.cut(run.end_offset)
