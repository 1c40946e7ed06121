"""Offsets of many partitions: as Spark keeps them in a checkpoint, and how far a micro-batch may go. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from braidlog.spark.errors import JobError

TopicPartition: TypeAlias = tuple[str, int]

_IDS = "#ids"
"""No topic can have this name."""


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Where reading stands, by partition. Persisted in checkpoints: keep its JSON stable.

    `{"orders": {"0": 17, "1": 4}, "#ids": {"orders": "<topic id in hex>"}}`: what Spark's Kafka source writes, and the
    ids, by which a topic that was deleted and created again is told from the first one.
    """

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Always in the same order: Spark compares the text."""
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
                if topic != _IDS
                for partition, offset in partitions.items()
            }
            return cls(offsets, dict(value.get(_IDS, {})))
        except (AttributeError, TypeError, ValueError) as error:
            raise JobError(
                f"the checkpoint's offsets cannot be read: {error}", help="Was it written by another source?"
            ) from error


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], count_max: int
) -> dict[TopicPartition, int]:
    """`end`, or less: about `count_max` offsets from `start` on, each partition's share as large as its backlog.

    Every partition that has anything gets at least one, so that none waits for ever.
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
