"""Plans Spark tasks: which offsets and extents each of them reads. Pure."""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

COMBINED_BYTES_MAX = 4 * 1024 * 1024
"""Small ranges share a task up to this size: starting a task costs as much as reading a few megabytes."""
PIECES_PER_TASK_MAX = 10_000
_NO_LIMIT = 1 << 62


class Piece(NamedTuple):
    """An extent: the location of the batches with offsets [base_offset, end_offset)."""

    base_offset: int
    end_offset: int
    key: str
    position: int
    length: int


class ObjectRange(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


class Aborted(NamedTuple):
    """An aborted transaction.

    The producer's transactional batches in [first_offset, marker_offset) are hidden.
    """

    producer_id: int
    first_offset: int
    marker_offset: int


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Offsets [start_offset, end_offset) of one partition and their extents.

    Compaction may have left gaps.
    """

    topic: str
    partition: int
    partition_id: int
    start_offset: int
    end_offset: int
    pieces: tuple[Piece, ...]
    aborted: tuple[Aborted, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(piece.length for piece in self.pieces)


def plan_tasks(
    slices: Sequence[LogSlice], *, task_bytes_max: int, tasks_min: int, task_records_max: int = 0
) -> list[list[LogSlice]]:
    """Plan tasks: cut large slices between extents, and let small slices share a task.

    There are at least `tasks_min` tasks if there are enough extents. `task_records_max` limits the offsets of a task,
    even if that cuts an extent; 0 is no limit.
    """
    slices = [part for each in slices for part in _limited(each, task_records_max) if part.pieces]
    if not slices:
        return []
    counts = _part_counts(slices, task_bytes_max, tasks_min)
    parts = [part for each, count in zip(slices, counts, strict=True) for part in _cut(each, count)]
    combined_bytes_max = COMBINED_BYTES_MAX
    if tasks_min > 0:
        combined_bytes_max = min(combined_bytes_max, sum(part.size_bytes for part in parts) // tasks_min)
    tasks: list[list[LogSlice]] = []
    room_bytes = room_pieces = room_records = 0
    for part in parts:
        size_bytes, piece_count, record_count = part.size_bytes, len(part.pieces), part.end_offset - part.start_offset
        has_room = size_bytes <= room_bytes and piece_count <= room_pieces and record_count <= room_records
        if len(parts) > tasks_min and tasks and has_room:
            tasks[-1].append(part)
        else:
            tasks.append([part])
            room_bytes, room_pieces = combined_bytes_max, PIECES_PER_TASK_MAX
            room_records = task_records_max or _NO_LIMIT
        room_bytes -= size_bytes
        room_pieces -= piece_count
        room_records -= record_count
    return tasks


def _limited(whole: LogSlice, records_max: int) -> list[LogSlice]:
    """Cut a slice into parts with at most this many offsets.

    Both sides of a cut read an extent across it.
    """
    total = whole.end_offset - whole.start_offset
    if not records_max or total <= records_max:
        return [whole]
    count = math.ceil(total / records_max)
    cuts = [whole.start_offset + total * number // count for number in range(count + 1)]
    parts: list[LogSlice] = []
    for start, end in pairwise(cuts):
        first = bisect_right(whole.pieces, start, key=lambda piece: piece.end_offset)
        behind = bisect_left(whole.pieces, end, key=lambda piece: piece.base_offset)
        parts.append(_part(whole, start, end, whole.pieces[first:behind]))
    return parts


def _part_counts(slices: Sequence[LogSlice], task_bytes_max: int, tasks_min: int) -> list[int]:
    """Decide into how many parts each slice is cut.

    The largest are cut first, until there are enough.
    """
    counts = [
        max(1, math.ceil(each.size_bytes / task_bytes_max), math.ceil(len(each.pieces) / PIECES_PER_TASK_MAX))
        for each in slices
    ]
    counts = [min(count, len(each.pieces)) for count, each in zip(counts, slices, strict=True)]
    missing = tasks_min - sum(counts)
    largest = [(-each.size_bytes / counts[index], index) for index, each in enumerate(slices)]
    heapq.heapify(largest)
    while missing > 0 and largest:
        _, index = heapq.heappop(largest)
        if counts[index] < len(slices[index].pieces):
            counts[index] += 1
            missing -= 1
            heapq.heappush(largest, (-slices[index].size_bytes / counts[index], index))
    return counts


def join_pieces(pieces: Iterable[Piece], *, gap_bytes_max: int) -> dict[Piece, ObjectRange]:
    """Combine close pieces of one object, so that one request fetches them."""
    joined: dict[Piece, ObjectRange] = {}
    group: list[Piece] = []
    end = 0
    for piece in sorted(pieces, key=lambda each: (each.key, each.position)):
        if group and (piece.key != group[0].key or piece.position > end + gap_bytes_max):
            joined.update(dict.fromkeys(group, ObjectRange(group[0].key, group[0].position, end)))
            group = []
        end = max(end, piece.position + piece.length) if group else piece.position + piece.length
        group.append(piece)
    if group:
        joined.update(dict.fromkeys(group, ObjectRange(group[0].key, group[0].position, end)))
    return joined


def _cut(whole: LogSlice, part_count: int) -> list[LogSlice]:
    """Cut a slice between extents into parts of about the same size."""
    if part_count == 1:
        return [whole]
    size_bytes = whole.size_bytes
    gathered: dict[int, list[Piece]] = {}
    position = 0
    for index, piece in enumerate(whole.pieces):
        # A piece goes to the part where its middle lies. The bounds keep a part from having too many or no pieces.
        by_bytes = (2 * position + piece.length) * part_count // (2 * size_bytes)
        least = max(index // PIECES_PER_TASK_MAX, part_count - (len(whole.pieces) - index))
        gathered.setdefault(min(max(by_bytes, least), index), []).append(piece)
        position += piece.length
    groups = list(gathered.values())
    starts = [whole.start_offset, *(group[0].base_offset for group in groups[1:])]
    ends = [*starts[1:], whole.end_offset]
    return [_part(whole, *each) for each in zip(starts, ends, groups, strict=True)]


def _part(whole: LogSlice, start: int, end: int, pieces: Iterable[Piece]) -> LogSlice:
    # A transaction may continue from one part to the next, so each part knows all aborted transactions.
    return replace(whole, start_offset=start, end_offset=end, pieces=tuple(pieces))
