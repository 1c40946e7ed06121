"""What the control plane holds in memory of each topic and partition."""

from dataclasses import dataclass, field

from braidlog.control.interface import IndexedExtent, PartitionBounds, TopicInfo


@dataclass(slots=True, eq=False)
class PartitionState:
    """Offsets [log_start_offset, next_offset) are durable.

    `planned_*` are what the plan in progress would make of it: equal to the durable values outside of a plan.
    """

    partition_id: int
    topic_id: bytes
    index: int
    log_start_offset: int = 0
    next_offset: int = 0
    size_bytes: int = 0
    recent: list[IndexedExtent] = field(default_factory=list)
    """The newest extents, which are durable but not in the table of extents yet."""
    planned_next_offset: int = field(init=False)
    planned_size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.discard_plan()

    def apply_plan(self) -> None:
        self.next_offset = self.planned_next_offset
        self.size_bytes = self.planned_size_bytes

    def discard_plan(self) -> None:
        self.planned_next_offset = self.next_offset
        self.planned_size_bytes = self.size_bytes

    @property
    def bounds(self) -> PartitionBounds:
        return PartitionBounds(self.partition_id, self.log_start_offset, self.next_offset, self.size_bytes)


@dataclass(slots=True, eq=False)
class TopicState:
    info: TopicInfo
    partitions: list[PartitionState]
