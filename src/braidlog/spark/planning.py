"""From ranges of offsets to tasks: what one Spark task reads. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

COMBINED_BYTES_MAX = 4 * 1024 * 1024
"""Small ranges share a task up to this size: starting a task costs as much as reading some megabytes."""
PIECES_PER_TASK_MAX = 10_000


class Piece(NamedTuple):
    """An extent: where the batches with offsets [base_offset, end_offset) lie."""

    base_offset: int
    end_offset: int
    key: str
    position: int
    length: int


class Aborted(NamedTuple):
    """The producer's transactional batches in [first_offset, marker_offset) are not to be seen."""

    producer_id: int
    first_offset: int
    marker_offset: int


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Offsets [start_offset, end_offset) of one partition, and where they lie. Compaction may have left gaps."""

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


def plan_tasks(slices: Sequence[LogSlice], *, task_bytes_max: int, tasks_min: int) -> list[list[LogSlice]]:
    """Large slices are cut between extents, small ones are read by one task. Never fewer than `tasks_min`, as far as
    there are extents."""
    slices = [each for each in slices if each.pieces]
    total_bytes = sum(each.size_bytes for each in slices)
    combined_bytes_max = COMBINED_BYTES_MAX
    if tasks_min > 0 and slices:
        share = max(1, math.ceil(total_bytes / tasks_min))
        task_bytes_max = min(task_bytes_max, share)
        combined_bytes_max = min(combined_bytes_max, share)
    tasks: list[list[LogSlice]] = []
    room_bytes = room_pieces = 0
    for each in slices:
        for part in _cut(each, task_bytes_max):
            size_bytes, piece_count = part.size_bytes, len(part.pieces)
            if tasks and size_bytes <= room_bytes and piece_count <= room_pieces:
                tasks[-1].append(part)
            else:
                tasks.append([part])
                room_bytes, room_pieces = combined_bytes_max, PIECES_PER_TASK_MAX
            room_bytes -= size_bytes
            room_pieces -= piece_count
    return tasks


def _cut(whole: LogSlice, bytes_max: int) -> list[LogSlice]:
    """Parts of about the same size, `bytes_max` or less, give or take an extent."""
    size_bytes = whole.size_bytes
    part_count = max(1, math.ceil(size_bytes / bytes_max), math.ceil(len(whole.pieces) / PIECES_PER_TASK_MAX))
    if part_count == 1:
        return [whole]
    gathered: dict[int, list[Piece]] = {}
    position = 0
    for index, piece in enumerate(whole.pieces):
        # By where its middle lies; and by number, where many small ones would otherwise come together.
        by_bytes = (2 * position + piece.length) * part_count // (2 * size_bytes)
        gathered.setdefault(max(by_bytes, index // PIECES_PER_TASK_MAX), []).append(piece)
        position += piece.length
    groups = list(gathered.values())
    starts = [whole.start_offset, *(group[0].base_offset for group in groups[1:])]
    ends = [*starts[1:], whole.end_offset]
    return [_part(whole, *each) for each in zip(starts, ends, groups, strict=True)]


def _part(whole: LogSlice, start: int, end: int, pieces: list[Piece]) -> LogSlice:
    # A producer's transaction may go on from one part to the next, so each part knows of all.
    return replace(whole, start_offset=start, end_offset=end, pieces=tuple(pieces))
