"""Sets of whole numbers as ordered, disjoint, half-open ranges.

Immutable and pure.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]
"""[start, end), never empty."""
Ranges: TypeAlias = tuple[Range, ...]
"""Ordered; no two touch."""


def _start(range_: Range) -> int:
    return range_[0]


def _end(range_: Range) -> int:
    return range_[1]


def add(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the ranges with all of [start, end) added."""
    if start >= end:
        return ranges
    # Ranges that overlap or touch it are merged with it.
    first = bisect_left(ranges, start, key=_end)
    last = bisect_right(ranges, end, key=_start)
    if first < last:
        start, end = min(start, ranges[first][0]), max(end, ranges[last - 1][1])
    return (*ranges[:first], (start, end), *ranges[last:])


def remove(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the ranges with all of [start, end) removed."""
    if start >= end:
        return ranges
    first = bisect_right(ranges, start, key=_end)
    last = bisect_left(ranges, end, key=_start)
    if first >= last:
        return ranges
    kept: list[Range] = []
    if ranges[first][0] < start:
        kept.append((ranges[first][0], start))
    if ranges[last - 1][1] > end:
        kept.append((end, ranges[last - 1][1]))
    return (*ranges[:first], *kept, *ranges[last:])


def contains(ranges: Ranges, start: int, end: int) -> bool:
    """Whether all of [start, end) is in the set."""
    place = bisect_right(ranges, start, key=_start) - 1
    return place >= 0 and ranges[place][1] >= end


def overlaps(ranges: Ranges, start: int, end: int) -> bool:
    """Whether anything of [start, end) is in the set."""
    place = bisect_right(ranges, start, key=_end)
    return place < len(ranges) and ranges[place][0] < end


def count(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)


def of_numbers(numbers: Iterable[int]) -> Ranges:
    found: list[Range] = []
    for number in sorted(numbers):
        if found and number <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], number + 1))
        else:
            found.append((number, number + 1))
    return tuple(found)
