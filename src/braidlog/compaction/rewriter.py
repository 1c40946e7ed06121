"""The second pass of a compaction: copies everything except what may go."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from braidlog.compaction.judgements import judge_batches
from braidlog.compaction.key_collector import CollectedKeys
from braidlog.compaction.limits import CompactionLimits
from braidlog.compaction.rules import Judge, Treatment
from braidlog.compaction.runs import CompactedRun, RunWriter
from braidlog.compaction.survivors import (
    REWRITE_BYTES_MAX,
    copy_survivors,
    copy_survivors_shifted,
    mark_survivors,
)
from braidlog.records.batch import DELETE_HORIZON_BIT, MAGIC, PREFIX_BYTES, BatchHeader, TimestampType
from braidlog.records.codec import Codec, compress
from braidlog.records.compiled import Bytes, Numbers
from braidlog.records.opened_extents import ExtentBytes, Opened, open_extents
from braidlog.records.raw import RawRecords, index_opened

_SHIFT_MS_MAX = 1 << 62
_KEEP, _DISCARD = int(Treatment.KEEP), int(Treatment.DISCARD)


class Extent(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


E = TypeVar("E", bound=Extent)


@dataclass(slots=True)
class Statistics:
    """Counts what a compaction has done."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    key_count: int = 0
    unreadable_batches: int = 0
    """Batches with a valid CRC whose records cannot be read. They stay as they are."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[E]):
    clean_end_offset: int
    """Below it no key occurs twice. It is lower than requested if the key map could not hold all keys."""
    replaced: Sequence[E]
    """The extents that the runs replace: all that begin below the clean end, except those in `kept`."""
    kept: Sequence[E]
    """Extents from which nothing had to go, and that are large enough to stay."""
    tombstones_due_ms: int | None
    """When the first of the remaining tombstones may go."""
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class _Judged:
    """Opened records, and which of them stay."""

    records: RawRecords
    stays: Bytes
    treatments: list[int]
    survivors: list[list[int]]
    """The result of `mark_survivors`, by batch."""


class Rewriter(Generic[E]):
    """Rewrites extents.

    Feed it extents in the order of their offsets, and it yields runs that replace them.
    """

    def __init__(self, keys: CollectedKeys, limits: CompactionLimits) -> None:
        self._keys = keys
        self._rules = keys.rules
        self._judge = Judge(keys.rules)
        self._clean_end_offset = keys.clean_end_offset
        self._keep_bytes_min = limits.keep_bytes_min
        self._decompressed_bytes_max = limits.decompressed_bytes_max
        self._writer = RunWriter(0, bytes_target=limits.object_bytes_target)
        self._unwritten: list[tuple[BatchHeader, memoryview]] = []
        """Batches of the current extent, from which nothing has been removed so far."""
        self._is_changed = False
        self._group: list[E] = []
        """Adjacent extents that runs will replace, and that are not finished yet."""
        self._is_group_written = False
        self._last_removed: BatchHeader | None = None
        self._replaced: list[E] = []
        self._kept: list[E] = []
        self._tombstones_due_ms: int | None = None
        self._statistics = Statistics(key_count=keys.key_map.key_count)

    def wants(self, extent: Extent) -> bool:
        return extent.base_offset < self._clean_end_offset

    def add(self, extent: E, data: bytes | bytearray | memoryview) -> Iterator[CompactedRun]:
        """Add an extent, and yield the runs that it completes."""
        view = memoryview(data).cast("B")
        self._statistics.bytes_in += len(view)
        self._is_changed = self._keep_bytes_min is None or len(view) < self._keep_bytes_min
        if not self._group:
            self._writer.skip_to(extent.base_offset)
        for opened in open_extents(
            [ExtentBytes(extent.base_offset, view, extent.end_offset)],
            select=_all,
            decompressed_bytes_max=self._decompressed_bytes_max,
            pass_unreadable=True,
        ):
            yield from self._add_opened(opened, view)
        if self._is_changed:
            self._group.append(extent)
        else:
            self._unwritten.clear()
            yield from self._finish_group()
            self._kept.append(extent)

    def finish(self) -> Iterator[CompactedRun]:
        """Yield the last run."""
        yield from self._finish_group()

    def outcome(self) -> Outcome[E]:
        return Outcome(self._clean_end_offset, self._replaced, self._kept, self._tombstones_due_ms, self._statistics)

    def _finish_group(self) -> Iterator[CompactedRun]:
        """Write everything between two extents that are kept.

        At least the last batch must remain, without its records. Otherwise the offsets would belong to no extent.
        """
        if not self._group:
            return
        if not self._is_group_written and self._last_removed is not None:
            yield from self._finished(self._writer.add_empty(self._last_removed))
        yield from self._finished(self._writer.cut(self._group[-1].end_offset))
        self._replaced += self._group
        self._group = []
        self._is_group_written = False
        self._last_removed = None

    def _finished(self, run: CompactedRun | None) -> Iterator[CompactedRun]:
        if run is not None:
            self._statistics.bytes_out += run.summary.length
            yield run

    def _add_opened(self, opened: Opened, view: memoryview) -> Iterator[CompactedRun]:
        judged = self._judged(index_opened(opened))
        records = judged.records
        problems = records.problems.tolist()
        self._statistics.records_in += records.count
        for row, fields in enumerate(opened.table.tolist()):
            position, length, offset, last_offset_delta, attributes, base_ms, max_ms = fields[:7]
            producer_id, producer_epoch, base_sequence, record_count = fields[7:11]
            header = BatchHeader(
                offset,
                length - PREFIX_BYTES,
                -1,
                MAGIC,
                fields[11],
                attributes,
                last_offset_delta,
                base_ms,
                max_ms,
                producer_id,
                producer_epoch,
                base_sequence,
                max(0, record_count),
            )
            batch = view[position : position + length]
            treatment = judged.treatments[row]
            count, tombstone_count, _, _ = judged.survivors[row]
            self._statistics.records_out += count
            if treatment == _KEEP or (problems[row] and treatment != _DISCARD):
                self._statistics.unreadable_batches += problems[row] != 0
                yield from self._keep(header, batch)
            elif not count:
                yield from self._remove(header, batch)
            else:
                horizon_ms = self._new_horizon(header, tombstone_count)
                if horizon_ms is None and count == record_count:
                    yield from self._keep(header, batch)
                else:
                    yield from self._rewrite(header, batch, judged, row, horizon_ms)

    def _judged(self, records: RawRecords) -> _Judged:
        table = records.opened.table
        judgements = judge_batches(self._judge, table)
        stays: Bytes = np.empty(records.count, dtype=np.uint8)
        survivors: Numbers = np.empty(4 * len(table), dtype=np.int64)
        mark_survivors(
            self._keys.key_map.slots,
            self._keys.key_map.hashes(records),
            records.offsets,
            records.timestamps_ms,
            records.places,
            records.is_null,
            records.row_starts,
            *judgements,
            self._rules.log_start_offset,
            self._clean_end_offset,
            stays,
            survivors,
        )
        return _Judged(records, stays, judgements.treatments.tolist(), survivors.reshape(-1, 4).tolist())

    def _new_horizon(self, header: BatchHeader, tombstone_count: int) -> int | None:
        """Return when the batch's tombstones may go, if its header does not say so yet.

        None if a part of the batch is not compacted yet.
        """
        if not tombstone_count or header.end_offset > self._clean_end_offset:
            return None
        due_ms = header.timestamp_ms_base if header.has_delete_horizon else self._rules.delete_horizon_ms
        if due_ms <= self._rules.now_ms:
            # It was due, but other replicas are not that far. Trying again at once would not help.
            due_ms = self._rules.delete_horizon_ms
        if self._tombstones_due_ms is None or due_ms < self._tombstones_due_ms:
            self._tombstones_due_ms = due_ms
        return None if header.has_delete_horizon else self._rules.delete_horizon_ms

    def _keep(self, header: BatchHeader, batch: memoryview) -> Iterator[CompactedRun]:
        if self._is_changed:
            self._is_group_written = True
            yield from self._finished(self._writer.add_copy(batch, header))
        else:
            self._unwritten.append((header, batch))

    def _change(self) -> Iterator[CompactedRun]:
        """Note that the current extent must be rewritten, and write its batches so far."""
        self._is_changed = True
        for header, batch in self._unwritten:
            yield from self._keep(header, batch)
        self._unwritten.clear()

    def _remove(self, header: BatchHeader, batch: memoryview) -> Iterator[CompactedRun]:
        """Handle a batch that has no records left."""
        must_stay = self._judge.stays_empty(
            header.attributes, header.producer_id, header.producer_epoch, header.end_offset - 1
        )
        if must_stay and not header.record_count:
            yield from self._keep(header, batch)
            return
        yield from self._change()
        self._last_removed = header
        if must_stay:
            self._is_group_written = True
            yield from self._finished(self._writer.add_empty(header))

    def _rewrite(
        self, header: BatchHeader, batch: memoryview, judged: _Judged, row: int, horizon_ms: int | None
    ) -> Iterator[CompactedRun]:
        """Write a batch with only the records that stay.

        It gets a new delete horizon if one is given.
        """
        count, _, size, highest_ms = judged.survivors[row]
        shifted: memoryview | None = None
        # With log append time, only the header has the timestamp, so no record needs a new delta.
        if horizon_ms is not None and header.timestamp_type is TimestampType.CREATE:
            shifted = _shifted_payload(judged, row, header.timestamp_ms_base - horizon_ms)
            if shifted is None:
                # A timestamp is too far from the horizon for a delta, so the tombstones stay without a horizon.
                horizon_ms = None
                if count == header.record_count:
                    yield from self._keep(header, batch)
                    return
        yield from self._change()
        self._is_group_written = True
        codec = header.codec
        header = header._replace(timestamp_ms_max=highest_ms, record_count=count)
        if horizon_ms is not None:
            header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, timestamp_ms_base=horizon_ms)
        if shifted is None and codec is Codec.NONE:
            run = self._writer.add(header, size, lambda room: _copy_payload(judged, row, room))
        else:
            payload = _copied_payload(judged, row, size) if shifted is None else shifted
            packed = payload if codec is Codec.NONE else memoryview(compress(codec, payload))
            run = self._writer.add(header, len(packed), lambda room: _fill(room, packed))
        yield from self._finished(run)


def _fill(room: memoryview, content: memoryview) -> None:
    room[:] = content


def _copy_payload(judged: _Judged, row: int, room: memoryview) -> None:
    """Copy the records that stay, unchanged, one after the other."""
    records = judged.records
    start, end = records.row_starts[row : row + 2].tolist()
    out = np.frombuffer(room, dtype=np.uint8)
    copy_survivors(records.opened.payload, records.places, judged.stays, start, end, out)


def _copied_payload(judged: _Judged, row: int, size: int) -> memoryview:
    out = memoryview(bytearray(size))
    _copy_payload(judged, row, out)
    return out


def _shifted_payload(judged: _Judged, row: int, shift_ms: int) -> memoryview | None:
    """Copy the records that stay, with timestamp deltas from another base.

    None if a delta does not fit.
    """
    if not -_SHIFT_MS_MAX < shift_ms < _SHIFT_MS_MAX:
        return None
    records = judged.records
    start, end = records.row_starts[row : row + 2].tolist()
    count, _, size, _ = judged.survivors[row]
    out: Bytes = np.empty(size + REWRITE_BYTES_MAX * count, dtype=np.uint8)
    written = copy_survivors_shifted(records.opened.payload, records.places, judged.stays, start, end, shift_ms, out)
    return out[:written].data if written >= 0 else None


def _all(table: Numbers) -> Numbers:
    return table
