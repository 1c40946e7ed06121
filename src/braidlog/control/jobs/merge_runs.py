"""Chooses neighbouring extents to merge into one. Pure.

Merging as soon as there are two would move every byte over and over. So extents have levels, each `fan_in` times the
size of the one below. A run is merged when it has `fan_in` members of one level; smaller extents between them are
merged along. A byte then moves once or twice per level, and the number of extents stays within a few times the least
possible.
"""

from collections.abc import Iterator, Sequence

LEVEL_BYTES = 4 * 1024
"""Extents below this size are one level: a request for one costs as much as its bytes."""


def merge_runs(lengths: Sequence[int], *, target_bytes: int, fan_in: int) -> list[tuple[int, int]]:
    """Return the runs to merge, as ranges of positions in `lengths`.

    The ranges are half-open, ordered and disjoint.

    No run is much larger than the target. An extent of at least half the target is left alone.
    """
    levels = [_level(length, fan_in) if length * 2 <= target_bytes else None for length in lengths]
    taken = [False] * len(lengths)
    runs: list[tuple[int, int]] = []
    for level in sorted({each for each in levels if each is not None}):
        may_join = [each is not None and each <= level and not taken[at] for at, each in enumerate(levels)]
        for start, end in _stretches(may_join):
            for first, last, is_full in _cut(lengths, start, end, target_bytes):
                of_level = sum(each == level for each in levels[first:last])
                if (is_full and last - first > 1) or of_level >= fan_in:
                    runs.append((first, last))
                    taken[first:last] = [True] * (last - first)
    return sorted(runs)


def _level(length: int, fan_in: int) -> int:
    level, size_bytes = 0, LEVEL_BYTES
    while length > size_bytes:
        level, size_bytes = level + 1, size_bytes * fan_in
    return level


def _stretches(may_join: Sequence[bool]) -> Iterator[tuple[int, int]]:
    start = 0
    for at, is_member in enumerate([*may_join, False]):
        if not is_member:
            if at > start:
                yield start, at
            start = at + 1


def _cut(lengths: Sequence[int], start: int, end: int, target_bytes: int) -> Iterator[tuple[int, int, bool]]:
    """Cut a stretch into pieces up to the target size.

    The flag says whether a piece is full: its next neighbour does not fit.
    """
    size_bytes = 0
    first = start
    for at in range(start, end):
        if at > first and size_bytes + lengths[at] > target_bytes:
            yield first, at, True
            first, size_bytes = at, 0
        size_bytes += lengths[at]
    yield first, end, size_bytes >= target_bytes
