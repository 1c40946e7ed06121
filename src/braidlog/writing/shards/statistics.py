"""The figures of one shard in its group."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardStatistics:
    """The number of shard groups now, and the shard's counters so far."""

    shard: int
    """The number of this shard."""
    group: int
    """Its group: the number of the group's first shard."""
    groups: int
    splits: int
    merges: int
    pulls: int
    pulled_bytes: int
    locks: int
    locks_missed: int
