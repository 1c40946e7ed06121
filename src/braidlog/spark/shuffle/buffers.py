"""Buffers for rows that wait to become a batch: one per destination zone. Pure.

Rows enter in chunks and are sorted by partition at once, while they are in the processor's cache. A batch is cut off a
buffer that has reached the batch size. If the input has an end, the buffer waits for half as much again before that, so
that no small batch is left over: the last batch has between half and one and a half times the batch size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.runtime.limits import EXTENTS_PER_OBJECT_MAX, OBJECT_BYTES_MAX

PARTITIONS_MAX = EXTENTS_PER_OBJECT_MAX
"""An object may need an extent for each partition."""
BATCH_BYTES_MAX = OBJECT_BYTES_MAX
OBJECT_ROOM_BYTES = OBJECT_BYTES_MAX - 8 * 1024 * 1024
"""The room for rows in an object. The rest is for headers, padding and the footer."""
RATIO_MIN = 0.25
"""The best compression that is counted on: a buffer holds at most four times the batch size."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows in the order of their partitions.

    Rows of `partitions[i]` are [bounds[i], bounds[i + 1]).
    """

    rows: pa.RecordBatch
    partitions: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    size_bytes: int

    def cut(self, row: int) -> tuple["Chunk", "Chunk"]:
        """Split into the first `row` rows and the rest."""
        split = int(np.searchsorted(self.bounds, row, side="left"))
        head_bounds = np.append(self.bounds[:split], row)
        inside = self.bounds[split] > row
        tail_start = split - 1 if inside else split
        tail_bounds = self.bounds[tail_start:] - row
        tail_bounds[0] = 0
        head_bytes = round(self.size_bytes * row / self.rows.num_rows)
        return (
            Chunk(self.rows.slice(0, row), self.partitions[:split], head_bounds, head_bytes),
            Chunk(self.rows.slice(row), self.partitions[tail_start:], tail_bounds, self.size_bytes - head_bytes),
        )


class ZoneBuffer:
    def __init__(self, batch_bytes: int, linger: float = 0.0) -> None:
        """`linger` is how much more than the batch size to wait for, as a share of it."""
        self._batch_bytes = batch_bytes
        self._full_bytes = batch_bytes * (1.0 + linger)
        self._chunks: list[Chunk] = []
        self.size_bytes = 0
        """The size of the rows in memory."""
        self.ratio = 1.0
        """Bytes stored for each byte in memory, as measured with the last batch."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self.size_bytes += chunk.size_bytes

    def learn(self, rows_bytes: int, stored_bytes: int) -> None:
        self.ratio = min(1.0, max(RATIO_MIN, stored_bytes / rows_bytes)) if rows_bytes else self.ratio

    @property
    def is_full(self) -> bool:
        return self.size_bytes * self.ratio >= self._full_bytes

    def take_full(self) -> list[Chunk]:
        """Take a batch of the usual size."""
        return self._take(min(self._batch_bytes / self.ratio, OBJECT_ROOM_BYTES))

    def take_full_only(self) -> list[Chunk] | None:
        """Take a batch of the usual size without lingering.

        None if there is not enough for one.
        """
        return self.take_full() if self.size_bytes * self.ratio >= self._batch_bytes else None

    def take_all(self) -> list[Chunk]:
        taken, self._chunks, self.size_bytes = self._chunks, [], 0
        return taken

    def put_back(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.add(chunk)

    def take_rest(self) -> list[Chunk]:
        """Take everything, or, if one object cannot hold it, an equal share of it."""
        parts = max(1, -(-self.size_bytes // OBJECT_ROOM_BYTES))
        return self._take(self.size_bytes / parts)

    def _take(self, wanted_bytes: float) -> list[Chunk]:
        """Take about this many bytes, and at least one row."""
        taken: list[Chunk] = []
        taken_bytes = 0
        while self._chunks:
            chunk = self._chunks[0]
            missing_bytes = wanted_bytes - taken_bytes
            if chunk.size_bytes > missing_bytes:
                row = int(missing_bytes / chunk.size_bytes * chunk.rows.num_rows)
                if not taken:
                    row = max(1, row)
                if 0 < row < chunk.rows.num_rows:
                    head, self._chunks[0] = chunk.cut(row)
                    taken.append(head)
                    taken_bytes += head.size_bytes
                    break
                if taken and row == 0:
                    break
            taken.append(self._chunks.pop(0))
            taken_bytes += chunk.size_bytes
        self.size_bytes -= taken_bytes
        return taken


class Splitter:
    """Sorts rows by destination zone and partition."""

    def __init__(self, zone_of_partition: Sequence[str]) -> None:
        if not 1 <= len(zone_of_partition) <= PARTITIONS_MAX:
            raise ValueError(f"there are {len(zone_of_partition)} partitions: 1 to {PARTITIONS_MAX} are possible")
        self.zones = list(dict.fromkeys(sorted(zone_of_partition)))
        order = sorted(range(len(zone_of_partition)), key=lambda each: (zone_of_partition[each], each))
        self._partition_of_rank = np.array(order, dtype=np.int64)
        # numpy sorts 16-bit numbers by counting, ten times as fast as wider ones.
        self._rank_of_partition = np.empty(len(order), dtype=np.uint16)
        self._rank_of_partition[self._partition_of_rank] = np.arange(len(order), dtype=np.uint16)
        zones_in_order = [zone_of_partition[each] for each in order]
        starts = [zones_in_order.index(zone) for zone in self.zones]
        self._rank_bounds = [*starts, len(order)]

    def split(self, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> Iterator[tuple[str, Chunk]]:
        """Yield the rows of each zone that has any.

        They are copies, so that a zone with few rows does not keep the rows of other zones in memory.
        """
        ranks = self._rank_of_partition[partitions]
        order = np.argsort(ranks, kind="stable")
        counts = np.bincount(ranks, minlength=len(self._partition_of_rank))
        ends = np.cumsum(counts)
        for zone, first, end in zip(self.zones, self._rank_bounds, self._rank_bounds[1:], strict=False):
            start_row = int(ends[first] - counts[first])
            end_row = int(ends[end - 1])
            if start_row == end_row:
                continue
            taken = rows.take(pa.array(order[start_row:end_row]))
            present = first + np.flatnonzero(counts[first:end])
            bounds = np.append(ends[present] - counts[present], end_row) - start_row
            yield zone, Chunk(taken, self._partition_of_rank[present], bounds, max(1, taken.nbytes))


def rows_by_partition(
    chunks: Sequence[Chunk], owners: Sequence[int] | None = None
) -> list[tuple[int, int, list[pa.RecordBatch]]]:
    """Slice the chunks by partition and owner. Rows keep the order in which they came."""
    found: dict[tuple[int, int], list[pa.RecordBatch]] = {}
    for chunk, owner in zip(chunks, owners or [0] * len(chunks), strict=True):
        bounds = chunk.bounds.tolist()
        for partition, start, end in zip(chunk.partitions.tolist(), bounds, bounds[1:], strict=False):
            found.setdefault((partition, owner), []).append(chunk.rows.slice(start, end - start))
    return [
        (partition, owner, slices) for (partition, owner), slices in sorted(found.items(), key=lambda each: each[0])
    ]
