"""Offsets of many partitions. Pure.

This module knows how Spark keeps them in a checkpoint, and how far a micro-batch may go.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from braidlog.spark.errors import JobError

TopicPartition: TypeAlias = tuple[str, int]

_MARK = "#"
"""Keys that begin with this are not topics: no topic's name begins with it."""
_IDS = "#ids"
METRICS = "#metrics"


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The next offset to read of each partition.

    Persisted in checkpoints: keep its JSON stable.

    `{"orders": {"0": 17, "1": 4}, "#ids": {"orders": "<topic id in hex>"}}` is what Spark's Kafka source writes, plus
    the topic ids. They tell a topic that was deleted and created again from the first one.
    """

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the offsets as JSON, always in the same order: Spark compares the text."""
        found: dict[str, Any] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        found[_IDS] = dict(sorted(self.topic_ids.items()))
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LogOffsets":
        try:
            offsets = {
                (topic, int(partition)): int(offset)
                for topic, partitions in value.items()
                if not topic.startswith(_MARK)
                for partition, offset in partitions.items()
            }
            return cls(offsets, dict(value.get(_IDS, {})))
        except (AttributeError, TypeError, ValueError) as error:
            raise JobError(
                f"the checkpoint's offsets cannot be read: {error}", help="Another source may have written it."
            ) from error


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], count_max: int
) -> dict[TopicPartition, int]:
    """Limit `end` to about `count_max` offsets from `start` on.

    Partitions share them by their backlog. Every partition with a backlog gets at least one offset, so that none
    waits for ever.
    """
    backlog = {each: max(0, offset - start.get(each, offset)) for each, offset in end.items()}
    total = sum(backlog.values())
    if total <= count_max:
        return dict(end)
    limited: dict[TopicPartition, int] = {}
    for each, offset in end.items():
        share = max(1, backlog[each] * count_max // total) if backlog[each] else 0
        limited[each] = offset - backlog[each] + min(share, backlog[each])
    return limited


def count_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    return sum(max(0, offset - start.get(each, offset)) for each, offset in end.items())


def offsets_behind(
    reached: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[str, int | float]:
    """Compute how far a stream is behind the ends of its partitions.

    The names are those of Spark's Kafka source. A partition that the stream has not begun to read is not counted.
    """
    behind = [max(0, offset - reached[each]) for each, offset in latest.items() if each in reached]
    return {
        "minOffsetsBehindLatest": min(behind, default=0),
        "maxOffsetsBehindLatest": max(behind, default=0),
        "avgOffsetsBehindLatest": sum(behind) / len(behind) if behind else 0.0,
    }
