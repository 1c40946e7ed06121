"""The state of each topic and partition in memory."""

from dataclasses import dataclass, field

from braidlog.control.interface import IndexedExtent, PartitionBounds, TopicInfo
from braidlog.records.leader_epochs import FIRST_EPOCH, LeaderEpochs


@dataclass(slots=True, eq=False)
class PartitionState:
    """The state of one partition. Offsets [log_start_offset, next_offset) are durable.

    `planned_*` are the values that the plan in progress would set. Outside of a plan they equal the durable ones.
    """

    partition_id: int
    topic_id: bytes
    index: int
    log_start_offset: int = 0
    next_offset: int = 0
    size_bytes: int = 0
    recent: list[IndexedExtent] = field(default_factory=list)
    """The newest extents: they are durable, but not in the table of extents yet."""
    open_transactions: dict[int, int] = field(default_factory=dict)
    """The first offset of each producer's open transaction, in the order of these offsets."""
    aborted_end_offset: int = 0
    """The offset after the newest marker of an aborted transaction."""
    leader_epochs: LeaderEpochs = FIRST_EPOCH
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
    def first_unstable_offset(self) -> int:
        """The first offset of the oldest open transaction; -1: there is none."""
        for offset in self.open_transactions.values():
            return max(offset, self.log_start_offset)
        return -1

    @property
    def bounds(self) -> PartitionBounds:
        return PartitionBounds(
            self.partition_id,
            self.log_start_offset,
            self.next_offset,
            self.size_bytes,
            self.first_unstable_offset,
            self.aborted_end_offset,
            self.leader_epochs,
        )


@dataclass(slots=True, eq=False)
class TopicState:
    info: TopicInfo
    partitions: list[PartitionState]
