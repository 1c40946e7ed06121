"""When a partition is compacted, and how far."""

from typing import NamedTuple

import pytest

from braidlog.compaction.due import (
    DueReason,
    DueSettings,
    PartitionFacts,
    cleanable_end_offset,
    is_due,
    partition_facts,
)

NOW_MS = 1_000_000
NEVER_MS = 2**63 - 1
DEFAULTS = DueSettings(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=NEVER_MS)


class IndexedExtent(NamedTuple):
    base_offset: int
    end_offset: int
    length: int
    timestamp_ms_min: int
    timestamp_ms_max: int


EXTENTS = [
    IndexedExtent(0, 10, 100, 1_000, 2_000),
    IndexedExtent(10, 20, 200, 500, 900_000),
    IndexedExtent(20, 30, 300, 950_000, 999_000),
]


def cleanable(stable_offset: int, lag_ms_min: int = 0) -> int:
    settings = DEFAULTS._replace(lag_ms_min=lag_ms_min)
    return cleanable_end_offset(EXTENTS, stable_offset=stable_offset, settings=settings, now_ms=NOW_MS)


def test_nothing_of_an_open_transaction_and_nothing_young_is_compacted() -> None:
    assert cleanable(30) == 30
    assert cleanable(29) == 20
    assert cleanable(0) == 0
    assert cleanable(30, lag_ms_min=1_000) == 30
    assert cleanable(30, lag_ms_min=1_001) == 20
    assert cleanable(30, lag_ms_min=100_001) == 10
    assert cleanable_end_offset([], stable_offset=5, settings=DEFAULTS, now_ms=NOW_MS) == 0


def test_what_is_clean_and_what_is_dirty() -> None:
    def facts(clean_end_offset: int, end_offset: int) -> PartitionFacts:
        return partition_facts(
            EXTENTS, clean_end_offset=clean_end_offset, cleanable_end_offset=end_offset, tombstones_due_ms=None
        )

    assert facts(0, 30) == PartitionFacts(0, 600, 500, None)
    assert facts(10, 30) == PartitionFacts(100, 500, 500, None)
    assert facts(15, 20) == PartitionFacts(100, 200, 500, None)
    assert facts(20, 20) == PartitionFacts(300, 0, None, None)


@pytest.mark.parametrize(
    ("facts", "settings", "reason"),
    [
        (PartitionFacts(100, 100, NOW_MS, None), DEFAULTS, DueReason.DIRTY_RATIO),
        (PartitionFacts(101, 100, NOW_MS, None), DEFAULTS, None),
        (PartitionFacts(0, 1, NOW_MS, None), DEFAULTS._replace(dirty_ratio_min=1.0), DueReason.DIRTY_RATIO),
        (PartitionFacts(100, 0, None, None), DEFAULTS._replace(dirty_ratio_min=0.0), None),
        (PartitionFacts(999, 1, NOW_MS - 11, None), DEFAULTS._replace(lag_ms_max=10), DueReason.MAX_LAG),
        (PartitionFacts(999, 1, NOW_MS - 10, None), DEFAULTS._replace(lag_ms_max=10), None),
        (PartitionFacts(999, 0, None, NOW_MS), DEFAULTS, DueReason.TOMBSTONES),
        (PartitionFacts(999, 0, None, NOW_MS + 1), DEFAULTS, None),
        (PartitionFacts(999, 1, NOW_MS, NOW_MS), DEFAULTS, DueReason.TOMBSTONES),
    ],
)
def test_reasons(facts: PartitionFacts, settings: DueSettings, reason: DueReason | None) -> None:
    assert is_due(facts, settings, NOW_MS) is reason
