"""Decides by Kafka's settings whether, and how far, to compact now. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol


class TimedExtent(Protocol):
    """An extent, as the control plane's index describes it."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def timestamp_ms_min(self) -> int: ...
    @property
    def timestamp_ms_max(self) -> int: ...


class DueSettings(NamedTuple):
    """A topic's settings of compaction.

    They are `min.cleanable.dirty.ratio`, `min.compaction.lag.ms` and `max.compaction.lag.ms`.
    """

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int


class PartitionFacts(NamedTuple):
    """A partition as compaction sees it."""

    clean_bytes: int
    """Bytes that earlier compactions have cleaned: no key occurs twice in them."""
    dirty_bytes: int
    """Bytes after the clean ones that may be compacted."""
    dirty_timestamp_ms_min: int | None
    """The timestamp of the oldest record that was not compacted."""
    tombstones_due_ms: int | None
    """When the first tombstone that earlier compactions have kept may go."""


class DueReason(Enum):
    DIRTY_RATIO = "dirty-ratio"
    MAX_LAG = "max-lag"
    TOMBSTONES = "tombstones"


def cleanable_end_offset(
    extents: Iterable[TimedExtent], *, stable_offset: int, settings: DueSettings, now_ms: int
) -> int:
    """Return how far a partition may be compacted.

    That is to the end of its last extent that is stable and old enough. `stable_offset` is the lower of the last
    stable offset and the high watermark: nothing of an open transaction is touched. `extents` are in the order of
    their offsets.
    """
    end_offset = 0
    for extent in extents:
        if extent.end_offset > stable_offset or (
            settings.lag_ms_min > 0 and extent.timestamp_ms_max > now_ms - settings.lag_ms_min
        ):
            break
        end_offset = extent.end_offset
    return end_offset


def partition_facts(
    extents: Iterable[TimedExtent], *, clean_end_offset: int, cleanable_end_offset: int, tombstones_due_ms: int | None
) -> PartitionFacts:
    clean_bytes = dirty_bytes = 0
    oldest_ms: int | None = None
    for extent in extents:
        if extent.end_offset <= clean_end_offset:
            clean_bytes += extent.length
        elif extent.end_offset <= cleanable_end_offset:
            dirty_bytes += extent.length
            oldest_ms = extent.timestamp_ms_min if oldest_ms is None else min(oldest_ms, extent.timestamp_ms_min)
    return PartitionFacts(clean_bytes, dirty_bytes, oldest_ms, tombstones_due_ms)


def is_due(facts: PartitionFacts, settings: DueSettings, now_ms: int) -> DueReason | None:
    """Return why the partition should be compacted now, or None.

    Kafka's cleaner leaves a tombstone in an idle partition for ever. Here a tombstone that may go is a reason, too.
    One compaction gives all the tombstones that it meets the same end, so it is followed by one more at most.
    """
    if facts.dirty_bytes > 0:
        if facts.dirty_timestamp_ms_min is not None and facts.dirty_timestamp_ms_min < now_ms - settings.lag_ms_max:
            return DueReason.MAX_LAG
        if facts.dirty_bytes >= settings.dirty_ratio_min * (facts.clean_bytes + facts.dirty_bytes):
            return DueReason.DIRTY_RATIO
    if facts.tombstones_due_ms is not None and facts.tombstones_due_ms <= now_ms:
        return DueReason.TOMBSTONES
    return None
